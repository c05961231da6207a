/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The last packets that took long in a chain, as a trace shows them, kept without a trace for an
 * operator who asks later. Only packets come here that run in the timed copy and are measured
 * (chain_latency.h); what is written here is outside of what is measured. */
#ifndef KERB_CHAIN_SLOW_H
#define KERB_CHAIN_SLOW_H

#define KERB_SLOW_BYTES	 KERB_DROPPED_BYTES
#define KERB_SLOW_BEFORE 8 /* a power of two */
#define KERB_SLOW_HEAD	 2 /* entries of a packet before those of the modules */

/* Entries of a packet are its event at the head, in which elapsed is what the chain took, its first
 * bytes, and an event for each module, in their order. Those that are not of the packet have
 * another id. */
struct kerb_slow_entry {
	__u64 id;    /* CPU and number of the packet, 0: none, or it is being written */
	__u64 bytes; /* of frame, at the head */
	union {
		__u64 written; /* packets to those before, so far; in the first entry */
		struct kerb_trace_event event;
		__u8 frame[KERB_SLOW_BYTES];
	};
};

/* Behind the first entry are the packets that the CPUs work on, the last one in which each module
 * was the slowest, and those before. The last one of a module is replaced by one of the same module
 * only: a module that is always slow does not hide the others. CPUs write it without a lock: should
 * two of them meet, the ids show it. The linker sets the number of entries; the agent reads them
 * (internal/dataplane/lastslow.go). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kerb_slow_entry);
} kerb_slow SEC(".maps");

/* Read behind calls of helpers: the linker takes the address before a call for an argument. */
const volatile __u32 kerb_slow_modules = 0;
const volatile __u64 kerb_slow_above = 0; /* ns */

static __always_inline struct kerb_slow_entry *slow_entry(__u32 packet, __u32 i, __u32 modules)
{
	__u32 key = 1 + packet * (KERB_SLOW_HEAD + modules) + i;

	return bpf_map_lookup_elem(&kerb_slow, &key);
}

/* Ends the time of a module, or of the head, and keeps what it made of the packet. Takes numbers
 * and the hook's context only, as kerb_trace_event does. */
__noinline int kerb_slow_event(kerb_ctx *ctx, __u64 word, __u64 what, __u32 verdict, __u32 to_flags)
{
	union trace_what did = { .all = what };
	union trace_where w;
	__u32 cpu = bpf_get_smp_processor_id(), modules = kerb_slow_modules, i = 0;
	struct kerb_slow_entry *entry, *frame;
	struct kerb_stamps *s;
	void *data = (void *)kerb_ctx_field(ctx, data),
	     *end = (void *)kerb_ctx_field(ctx, data_end);
	int head = did.position == KERB_TRACE_HEAD;

	kerb_stamp_at(head ? KERB_STAMP_HEAD : 1 + did.position);
	s = stamps();
	if (!s || !s->measured)
		return 0;
	if (!head)
		i = KERB_SLOW_HEAD + did.position;
	entry = slow_entry(cpu, i, modules);
	if (!entry)
		return 0;
	__builtin_memset(&entry->event, 0, sizeof(entry->event));
	if (head) {
		s->where = word;
		s->longest = 0;
		s->slowest = 0;
	} else {
		entry->event.note = word;
		entry->event.elapsed = s->took;
		if (s->took > s->longest) {
			s->longest = s->took;
			s->slowest = did.position;
		}
	}
	w.all = s->where;
	trace_read(ctx, data, end, w, did, verdict, to_flags, &entry->event);
	entry->event.packet = s->measured;
	entry->event.time = bpf_ktime_get_ns();
	entry->id = (__u64)cpu << 48 | s->measured;
	if (head) {
		frame = slow_entry(cpu, 1, modules);
		if (frame) {
			frame->id = entry->id;
			frame->bytes = dropped_bytes(ctx, frame->frame);
		}
	}
	s->last = bpf_ktime_get_ns();
	return 0;
}

/* Copies a packet. Its first entry is valid last. */
__noinline int kerb_slow_copy(__u32 to, __u32 from)
{
	__u32 modules = kerb_slow_modules;
	struct kerb_slow_entry *head = slow_entry(to, 0, modules), *t, *f;

	if (!head)
		return 0;
	head->id = 0;
	for (__u32 i = KERB_SLOW_HEAD + modules; i > 0; i--) {
		t = slow_entry(to, i - 1, modules);
		f = slow_entry(from, i - 1, modules);
		if (t && f)
			*t = *f;
	}
	return 0;
}

/* Ends the time of the chain, and keeps the packet if it took long. */
__noinline int kerb_slow_keep(void)
{
	__u32 cpu = bpf_get_smp_processor_id(), modules = kerb_slow_modules, cpus = kerb_cpus;
	__u32 zero = 0, last;
	struct kerb_slow_entry *first, *kept;
	struct kerb_stamps *s;

	kerb_stamp_at(KERB_STAMP_CHAIN);
	s = stamps();
	if (!s || !s->measured || s->total <= kerb_slow_above)
		return 0;
	first = bpf_map_lookup_elem(&kerb_slow, &zero);
	kept = slow_entry(cpu, 0, modules);
	if (!first || !kept)
		return 0;
	kept->event.elapsed = s->total;
	last = cpus + s->slowest;
	kept = slow_entry(last, 0, modules);
	if (kept && kept->id)
		kerb_slow_copy(cpus + modules + (first->written++ & (KERB_SLOW_BEFORE - 1)), last);
	kerb_slow_copy(last, cpu);
	return 0;
}

/* These are called in a timed copy as kerb_trace_head and kerb_trace are in a traced chain. */
SEC("kerb/slow_head") int kerb_slow_head(struct kerb_pkt *pkt)
{
	union trace_where w = trace_where(pkt);
	union trace_what did = { .position = KERB_TRACE_HEAD };

	kerb_slow_event(pkt->ctx, w.all, did.all, KERB_NEXT, 0);
	return 0;
}

SEC("kerb/slow_module")
int kerb_slow_module(struct kerb_noted_pkt *noted, __u32 position, __u32 verdict, __u32 chain,
		     __u32 to_flags)
{
	const struct kerb_pkt *pkt = &noted->pkt;
	union trace_what did = { .to_ifindex = pkt->to_ifindex,
				 .chain = chain,
				 .position = position,
				 .reason = pkt->reason };

	kerb_slow_event(pkt->ctx, noted->note, did.all, verdict, pkt->to_flags & to_flags);
	return 0;
}

SEC("kerb/slow_end") int kerb_slow_end(void)
{
	kerb_slow_keep();
	return 0;
}

#endif /* KERB_CHAIN_SLOW_H */
