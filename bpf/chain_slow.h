/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The last slow packets of a chain, with the same events as a trace, stored without a trace. Only
 * packets that are measured in the timed copy (chain_latency.h) are handled here, outside of the
 * measured time. */
#ifndef KERB_CHAIN_SLOW_H
#define KERB_CHAIN_SLOW_H

#define KERB_SLOW_BYTES	 KERB_DROPPED_BYTES
#define KERB_SLOW_BEFORE 8 /* older packets; a power of two */
#define KERB_SLOW_HEAD	 2 /* entries of a packet before those of modules */

/* A packet has an entry for its event at the head, whose elapsed is the duration of the chain, one
 * for its first bytes, and one for the event of each module, in their order. Stale entries have
 * another id. */
struct kerb_slow_entry {
	__u64 id;    /* CPU and number of the packet; 0: empty, or being written */
	__u64 bytes; /* length of frame */
	union {
		__u64 written; /* of element 0: number of older packets written so far */
		struct kerb_trace_event event;
		__u8 frame[KERB_SLOW_BYTES];
	};
};

/* After element 0: the present packet of each CPU, the last packet in which each module was the
 * slowest, and KERB_SLOW_BEFORE older ones. The last packet of a module is replaced only by one of
 * the same module, so that a module that is always slow does not hide others. CPUs write without a
 * lock; the ids show mixed packets. The linker sets the number of entries; the agent reads them
 * (internal/dataplane/lastslow.go). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kerb_slow_entry);
} kerb_slow SEC(".maps");

/* Set by the linker. Read after calls of helpers: the linker would take an address before a call
 * for an argument. */
const volatile __u32 kerb_slow_modules = 0;
const volatile __u64 kerb_slow_above = 0; /* ns */

static __always_inline struct kerb_slow_entry *slow_entry_lookup(__u32 packet, __u32 i,
								 __u32 modules)
{
	__u32 key = 1 + packet * (KERB_SLOW_HEAD + modules) + i;

	return bpf_map_lookup_elem(&kerb_slow, &key);
}

/* Ends the time of a module, or of the head, and stores the packet as it left it. A global function
 * of scalars and the context, like kerb_trace_event. */
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
	s = stamps_get();
	if (!s || !s->measured)
		return 0;
	if (!head)
		i = KERB_SLOW_HEAD + did.position;
	entry = slow_entry_lookup(cpu, i, modules);
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
		frame = slow_entry_lookup(cpu, 1, modules);
		if (frame) {
			frame->id = entry->id;
			frame->bytes = dropped_read(ctx, frame->frame);
		}
	}
	s->last = bpf_ktime_get_ns();
	return 0;
}

/* Copies a packet. Its first entry becomes valid last. */
__noinline int kerb_slow_copy(__u32 to, __u32 from)
{
	__u32 modules = kerb_slow_modules;
	struct kerb_slow_entry *head = slow_entry_lookup(to, 0, modules), *t, *f;

	if (!head)
		return 0;
	head->id = 0;
	for (__u32 i = KERB_SLOW_HEAD + modules; i > 0; i--) {
		t = slow_entry_lookup(to, i - 1, modules);
		f = slow_entry_lookup(from, i - 1, modules);
		if (t && f)
			*t = *f;
	}
	return 0;
}

/* Ends the time of the chain, and stores the packet if it took longer than kerb_slow_above. */
__noinline int kerb_slow_keep(void)
{
	__u32 cpu = bpf_get_smp_processor_id(), modules = kerb_slow_modules, cpus = kerb_cpus;
	__u32 zero = 0, last;
	struct kerb_slow_entry *first, *kept;
	struct kerb_stamps *s;

	kerb_stamp_at(KERB_STAMP_CHAIN);
	s = stamps_get();
	if (!s || !s->measured || s->total <= kerb_slow_above)
		return 0;
	first = bpf_map_lookup_elem(&kerb_slow, &zero);
	kept = slow_entry_lookup(cpu, 0, modules);
	if (!first || !kept)
		return 0;
	kept->event.elapsed = s->total;
	last = cpus + s->slowest;
	kept = slow_entry_lookup(last, 0, modules);
	if (kept && kept->id)
		kerb_slow_copy(cpus + modules + (first->written++ & (KERB_SLOW_BEFORE - 1)), last);
	kerb_slow_copy(last, cpu);
	return 0;
}

/* Called in a timed copy where a traced chain calls kerb_trace_head and kerb_trace. */
SEC("kerb/slow_head") int kerb_slow_head(struct kerb_pkt *pkt)
{
	union trace_where w = trace_where_of(pkt);
	union trace_what did = { .position = KERB_TRACE_HEAD };

	kerb_slow_event(pkt->ctx, w.all, did.all, KERB_NEXT, 0);
	return 0;
}

SEC("kerb/slow_module")
int kerb_slow_module(struct kerb_noted_pkt *noted, __u32 position, __u32 verdict, __u32 chain,
		     __u32 to_flags)
{
	union trace_what did = trace_what_of(&noted->pkt, chain, position);

	kerb_slow_event(noted->pkt.ctx, noted->note, did.all, verdict,
			noted->pkt.to_flags & to_flags);
	return 0;
}

SEC("kerb/slow_end") int kerb_slow_end(void)
{
	kerb_slow_keep();
	return 0;
}

#endif /* KERB_CHAIN_SLOW_H */
