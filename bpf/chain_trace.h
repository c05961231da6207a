/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Traces. A packet is matched once, at the head of a chain that the agent has linked for a trace,
 * keeps its id in all chains of this node, and produces an event after each module. Other chains
 * contain no code for traces. */
#ifndef KERB_CHAIN_TRACE_H
#define KERB_CHAIN_TRACE_H

#include "chain_trace_read.h"
#include "chain_trace_maps.h"

/* Events of a packet that a CPU buffers for sessions that report slow packets only; a power of two.
 * In a longer chain, events beyond are omitted up to the module at which the packet became slow. */
#define KERB_TRACE_HELD 32

/* State of the packet in a traced chain on a CPU. Not on the stack, which the parts of a split
 * chain do not share. */
struct kerb_traced {
	__u64 packets; /* number of packets so far */
	__u64 wanted;  /* bit mask of the sessions whose filter matches the present packet */
	__u64 where;   /* trace_where of the present packet */
	__u64 written; /* time of its last event, ns, CLOCK_MONOTONIC */
	__u64 origin;  /* where its trace started: interface and chain */
	__u64 key;     /* trace_key with which it was added to kerb_followed */
	__u64 took;    /* duration of its modules in this chain so far, ns */
	__u64 shown;   /* bit mask of the sessions that get its events, not buffered */
	__u32 held;    /* number of events in modules[] */
	__u32 kept;    /* length of bytes[] */
	struct kerb_trace_event now;   /* the event that is being written */
	struct kerb_trace_event first; /* of the packet at this chain */
	__u8 bytes[KERB_TRACE_BYTES];  /* written to the ring together with first */
	struct kerb_trace_event modules[KERB_TRACE_HELD];
};

/* By ifindex: bit mask of the sessions that trace the interface; no entry: all sessions. Written by
 * the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} kerb_trace_at SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kerb_traced);
} kerb_traced SEC(".maps");

/* The packet context of a traced chain with the note of the module
 * (internal/dataplane/notes.go). */
struct kerb_noted_pkt {
	struct kerb_pkt pkt;
	__u64 note;
};

union trace_what {
	struct {
		__u32 to_ifindex;
		__u16 chain;
		__u8 position, reason;
	};
	__u64 all;
};

/* Returns whether a frame matches the filter expression of a session. The linker replaces this
 * function if there is one (internal/dataplane/expression.go). */
__noinline int kerb_trace_matches(kerb_ctx *ctx, __u32 session)
{
	int matches = 1;

	kerb_opaque2(ctx, matches); /* otherwise clang omits the argument, or the call */
	kerb_opaque(session);
	return matches;
}

/* Returns whether the filter of a session matches the packet of kerb_traced. A global function of
 * scalars and the context, like kerb_trace_event. */
__noinline int kerb_trace_wants(kerb_ctx *ctx, __u32 session)
{
	__u32 zero = 0, i = session;
	struct kerb_traced *packet = bpf_map_lookup_elem(&kerb_traced, &zero);
	const struct kerb_trace_filter *f = bpf_map_lookup_elem(&kerb_filter, &i);

	if (!packet || !f || !f->active || !kerb_trace_wanted(f, &packet->now))
		return 0;
	return kerb_trace_matches(ctx, session) != 0;
}

/* Writes an event to the ring buffer of a session. If it is full, the session gets no more events
 * of the packet, as they would be shown without this one. Returns 0 or -1. */
static __always_inline int trace_ring_write(struct kerb_traced *packet, struct kerb_trace_filter *f,
					    __u64 session, const struct kerb_trace_event *e,
					    __u32 size)
{
	__u32 i = session;
	void *ring = bpf_map_lookup_elem(&kerb_events, &i);

	if (ring && !bpf_ringbuf_output(ring, (void *)e, size, 0))
		return 0;
	__sync_fetch_and_add(&f->lost, 1);
	packet->wanted &= ~(1ULL << session);
	return -1;
}

/* Writes the first event of a packet, with its first bytes. */
static __always_inline int trace_ring_write_first(struct kerb_traced *packet,
						  struct kerb_trace_filter *f, __u64 session)
{
	__u32 bytes = packet->kept < f->bytes ? packet->kept : f->bytes;

	if (bytes > KERB_TRACE_BYTES)
		return 0;
	return trace_ring_write(packet, f, session, &packet->first, sizeof(packet->first) + bytes);
}

/* Writes the present event for a session; or all events of the packet so far, once its modules have
 * taken longer than the filter's `slower`. */
__noinline int kerb_trace_write(__u32 session)
{
	__u32 zero = 0, i = session;
	struct kerb_traced *packet = bpf_map_lookup_elem(&kerb_traced, &zero);
	struct kerb_trace_filter *f = bpf_map_lookup_elem(&kerb_filter, &i);
	__u64 n = session & 63;

	if (!packet || !f || !(packet->wanted >> n & 1))
		return 0;
	if (packet->shown >> n & 1 && packet->now.position != KERB_TRACE_HEAD)
		return trace_ring_write(packet, f, n, &packet->now, sizeof(packet->now));
	if (!(packet->shown >> n & 1) && f->slower && packet->took <= f->slower)
		return 0;
	packet->shown |= 1ULL << n;
	if (trace_ring_write_first(packet, f, n))
		return 0;
	for (__u32 k = 0; k < KERB_TRACE_HELD && k < packet->held; k++)
		if (trace_ring_write(packet, f, n, &packet->modules[k], sizeof(packet->now)))
			return 0;
	return 0;
}

/* Buffers the present event for sessions that do not get the events of the packet yet. */
static __always_inline void trace_hold(struct kerb_traced *packet)
{
	__u32 n = packet->held;

	if (packet->shown == packet->wanted || n >= KERB_TRACE_HELD)
		return;
	packet->modules[n] = packet->now;
	packet->held = n + 1;
}

/* Starts or continues the trace of a packet at the head of a chain. If the same key was seen at the
 * same point, it is another packet with equal contents. Returns the sessions that traced the packet
 * before. */
static __always_inline __u64 trace_begin(struct kerb_traced *packet, __u64 key, __u64 here)
{
	struct kerb_trace_event *e = &packet->now;
	const struct kerb_followed *f = key ? bpf_map_lookup_elem(&kerb_followed, &key) : 0;

	packet->packets += 1;
	packet->key = 0;
	packet->took = 0;
	packet->shown = 0;
	packet->held = 0;
	if (f && f->first != here && f->last != here && e->time - f->time < KERB_FOLLOWED_TIME) {
		packet->origin = f->first;
		packet->shown = f->shown;
		e->trace = f->trace;
		return f->sessions;
	}
	packet->origin = here;
	e->trace = (__u64)e->cpu << 48 | packet->packets;
	return 0;
}

/* Adds a packet, as a module has left it, to kerb_followed, where its next chain finds it. */
static __always_inline void trace_follow(struct kerb_traced *packet, __u64 key, __u64 here)
{
	const struct kerb_trace_event *e = &packet->now;
	struct kerb_followed f = { .trace = e->trace,
				   .time = e->time,
				   .sessions = packet->wanted,
				   .shown = packet->shown,
				   .first = packet->origin,
				   .last = here };

	if (!key || key == packet->key || e->verdict == KERB_DROP)
		return;
	packet->key = key;
	bpf_map_update_elem(&kerb_followed, &key, &f, BPF_ANY);
}

/* Returns the sessions that trace a packet, at the head of a chain. followed: those that traced it
 * in its previous chain. */
static __always_inline __u64 trace_sessions(kerb_ctx *ctx, const __u32 *at, __u64 followed)
{
	__u32 here = at ? *at : ~0U;
	__u64 wanted = 0;

#pragma clang loop unroll(full)
	for (__u32 i = 0; i < KERB_TRACE_SESSIONS; i++)
		if (here >> i & 1 && (followed >> i & 1 || kerb_trace_wants(ctx, i)))
			wanted |= 1ULL << i;
	return wanted;
}

/* Fills an event with the present headers of the packet and the verdict. Returns the offset of the
 * transport header, or 0. */
static __always_inline __u32 trace_read(kerb_ctx *ctx, const void *data, const void *end,
					union trace_where w, union trace_what did, __u32 verdict,
					__u32 to_flags, struct kerb_trace_event *e)
{
	__u32 off = trace_read_ip(data, end, w, w.flags & KERB_F_L4 ? w.l4 : 0, e);

	trace_read_l4(data, end, off, e);
	e->ifindex = kerb_ctx_field(ctx, KERB_CTX_IFINDEX);
	e->len = frame_len(ctx);
	e->chain = did.chain;
	e->to_ifindex = did.to_ifindex;
	e->to_flags = to_flags;
	e->cpu = bpf_get_smp_processor_id();
	e->position = did.position;
	e->verdict = verdict > 0xff ? 0xff : verdict;
	e->reason = did.reason;
	e->outcome = w.outcome;
	return off;
}

/* Produces the event of a packet at the head or after a module. A global function of scalars and
 * the context, so that the verifier checks it once, not in the context of each module. Its callers
 * have no branches, after each of which the verifier would walk the following modules again. word:
 * trace_where at the head, the note of the module after a module; what: union trace_what. */
__noinline int kerb_trace_event(kerb_ctx *ctx, __u64 word, __u64 what, __u32 verdict,
				__u32 to_flags)
{
	union trace_what did = { .all = what };
	union trace_where w;
	__u32 zero = 0, off;
	__u64 key, here, trace;
	struct kerb_traced *packet = bpf_map_lookup_elem(&kerb_traced, &zero);
	struct kerb_trace_event *e;
	void *data = (void *)kerb_ctx_field(ctx, data),
	     *end = (void *)kerb_ctx_field(ctx, data_end);
	int head = did.position == KERB_TRACE_HEAD;

	if (!packet || (!head && !packet->wanted))
		return 0;
	e = &packet->now;
	trace = e->trace;
	__builtin_memset(e, 0, sizeof(*e));
	e->time = bpf_ktime_get_ns();
	if (head)
		packet->where = word;
	else
		e->note = word;
	w.all = packet->where;
	off = trace_read(ctx, data, end, w, did, verdict, to_flags, e);
	key = trace_key(data, end, w, off, e);
	e->key = key;
	here = (__u64)e->ifindex << 16 | did.chain;
	if (head) {
		packet->wanted = trace_begin(packet, key, here);
		packet->wanted = trace_sessions(
			ctx, bpf_map_lookup_elem(&kerb_trace_at, &packet->now.ifindex),
			packet->wanted);
		if (!packet->wanted)
			return 0;
		packet->shown &= packet->wanted;
		e->packet = packet->packets;
		packet->first = *e;
		packet->kept =
			trace_read_bytes(ctx, packet->bytes, data, end, e->len, KERB_TRACE_BYTES);
	} else {
		e->elapsed = e->time - packet->written;
		e->trace = trace;
		e->packet = packet->packets;
		packet->took += e->elapsed;
		trace_hold(packet);
	}
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < KERB_TRACE_SESSIONS; i++)
		kerb_trace_write(i);
	if (!head)
		trace_follow(packet, key, here);
	packet->written = bpf_ktime_get_ns();
	return 0;
}

static __always_inline union trace_where trace_where_of(const struct kerb_pkt *pkt)
{
	union trace_where w = { .l3 = pkt->l3,
				.l4 = pkt->l4,
				.family = pkt->family,
				.proto = pkt->proto,
				.flags = pkt->flags,
				.outcome = pkt->outcome };

	return w;
}

static __always_inline union trace_what trace_what_of(const struct kerb_pkt *pkt, __u32 chain,
						      __u32 position)
{
	union trace_what did = { .to_ifindex = pkt->to_ifindex,
				 .chain = chain,
				 .position = position,
				 .reason = pkt->reason };

	return did;
}

/* Called at the head of a traced chain. */
SEC("kerb/trace_head") int kerb_trace_head(struct kerb_pkt *pkt, __u32 chain)
{
	union trace_where w = trace_where_of(pkt);
	union trace_what did = { .chain = chain, .position = KERB_TRACE_HEAD };

	kerb_trace_event(pkt->ctx, w.all, did.all, KERB_NEXT, 0);
	return 0;
}

/* Called after each module of a traced chain. It reads nothing of the packet context that the head
 * has written: otherwise the verifier would walk the modules once for each path through the
 * parser. */
SEC("kerb/trace")
int kerb_trace(struct kerb_noted_pkt *noted, __u32 position, __u32 verdict, __u32 chain,
	       __u32 to_flags)
{
	union trace_what did = trace_what_of(&noted->pkt, chain, position);

	kerb_trace_event(noted->pkt.ctx, noted->note, did.all, verdict,
			 noted->pkt.to_flags & to_flags);
	return 0;
}

#endif /* KERB_CHAIN_TRACE_H */
