/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Delivery of packets to programs. Each class has its own ring, so that a slow consumer affects no
 * other class. */
#ifndef ICPT_DELIVER_H
#define ICPT_DELIVER_H

#include <kerb/histogram.h>

#include "class.h"

#define ICPT_MIN_RING    4096
/* delivered to a program; KERB_DROP_MODULE_FIRST is the responder's */
#define ICPT_DROP_STOLEN (KERB_DROP_MODULE_FIRST + 1)

struct icpt_ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, ICPT_MIN_RING);
};

#define ICPT_EACH_RING(do)                                                                        \
	do                                                                                        \
	(0) do(1) do(2) do(3) do(4) do(5) do(6) do(7) do(8) do(9) do(10) do(11) do(12) do(13) do( \
		14) do(15)
#define ICPT_DECLARE_RING(n) struct icpt_ring ring_##n SEC(".maps");
#define ICPT_PLACE_RING(n) [n] = &ring_##n,

ICPT_EACH_RING(ICPT_DECLARE_RING)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, ICPT_RINGS);
	__type(key, __u32);
	__array(values, struct icpt_ring);
} rings SEC(".maps") = {.values = {ICPT_EACH_RING(ICPT_PLACE_RING)}};

/* A struct icpt_state. A map for each class, as the program gets its descriptor. */
struct icpt_page {
	__u8 bytes[ICPT_PAGE];
};

struct icpt_page_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct icpt_page);
};

#define ICPT_DECLARE_STATE(n) struct icpt_page_map state_##n SEC(".maps");
#define ICPT_PLACE_STATE(n) [n] = &state_##n,

ICPT_EACH_RING(ICPT_DECLARE_STATE)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, ICPT_RINGS);
	__type(key, __u32);
	__array(values, struct icpt_page_map);
} states SEC(".maps") = {.values = {ICPT_EACH_RING(ICPT_PLACE_STATE)}};

static __always_inline struct icpt_state *icpt_state(__u32 slot)
{
	void *page = bpf_map_lookup_elem(&states, &slot);
	__u32 zero = 0;

	return page ? bpf_map_lookup_elem(page, &zero) : 0;
}

/* By slot: 1 if a program has the class open. Not in struct icpt_state, which a program can keep
 * mapped after it has closed the class, and so could suppress the fallback. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ICPT_RINGS);
	__type(key, __u32);
	__type(value, __u32);
} consumers SEC(".maps");

static __always_inline int icpt_has_consumer(__u32 slot)
{
	__u32 *open = bpf_map_lookup_elem(&consumers, &slot);

	return open && *(volatile __u32 *)open;
}

/* State of a class that its consumer cannot write. */
struct icpt_flow {
	__u64 seq, lost;
	/* the record whose age is tracked: its position in the ring and its time, ns. The consumer
	 * has stalled if it does not read past position */
	__u64 position, since;
	__u64 last;	       /* time of the last packet */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ICPT_CLASSES);
	__type(key, __u32);
	__type(value, struct icpt_flow);
} flows SEC(".maps");

#define ICPT_REASONS 8 /* a power of two */

struct icpt_counts {
	__u64 packets, bytes; /* of the class */
	__u64 delivered;      /* to a program */
	__u64 lost;	      /* passed, as the ring was full */
	/* passed instead of being stolen: no consumer, or it has stalled (watchdog) */
	__u64 unread;
	__u64 unmarked; /* passed without a priority, which XDP cannot set */
	__u64 answered;
	__u64 fallbacks; /* answered instead of the program */
	__u64 forwarded;
	__u64 unforwarded[ICPT_REASONS]; /* by enum icpt_unforwarded */
	__u64 gaps[ICPT_BUCKETS];	 /* histogram of the time between packets, ns */
};

/* By icpt_class.identity, so that they continue when the configuration changes. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 2 * ICPT_CLASSES);
	__type(key, __u64);
	__type(value, struct icpt_counts);
} class_counts SEC(".maps");

/* AF_XDP sockets, by slot and queue, on the interface of xsk_interfaces. */
#define ICPT_QUEUES 64

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, ICPT_RINGS * ICPT_QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

struct icpt_sockets {
	__u32 ifindex;
	__u32 bells; /* 1: wake sockets, which only wake the consumer */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ICPT_RINGS);
	__type(key, __u32);
	__type(value, struct icpt_sockets);
} xsk_interfaces SEC(".maps");

static __always_inline void icpt_gap_count(struct icpt_counts *n, struct icpt_flow *f, __u64 now)
{
	__u64 last = f->last;

	f->last = now;
	if (last && now >= last)
		kerb_histogram_count(n->gaps, ICPT_BUCKETS, now - last);
}

/* Returns whether a record has been unread for longer than limit, ns: then packets pass or are
 * answered as if there were no consumer, until it reads that record. The age of one record at a
 * time is tracked: the first one that is added while no tracked record is unread. Then *begin is
 * set to the position of this packet's record, for icpt_age_track. */
static __always_inline int icpt_consumer_is_stalled(void *ring, const struct icpt_flow *f,
						    __u64 now, __u64 limit, __u64 *begin)
{
	__u64 waiting = bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA);

	if (waiting && bpf_ringbuf_query(ring, BPF_RB_CONS_POS) <= f->position)
		/* since may be later than now: another CPU may have been first to deliver */
		return now > f->since && now - f->since > limit;
	*begin = bpf_ringbuf_query(ring, BPF_RB_PROD_POS);
	return 0;
}

#define ICPT_UNTRACKED (~0ULL)

/* Starts tracking the age of a record that is in the ring. */
static __always_inline void icpt_age_track(struct icpt_flow *f, __u64 begin, __u64 now)
{
	if (begin == ICPT_UNTRACKED)
		return;
	f->position = begin;
	f->since = now;
}

/* Submits a record, which is a full barrier, and wakes the consumer only if it waits for the ring,
 * as a wake-up costs more than the delivery. */
static __always_inline void icpt_record_submit(struct icpt_record *r, struct icpt_state *s)
{
	volatile __u32 *waiting = &s->waiting;
	__u32 asleep = *waiting == ICPT_BY_RING;

	if (asleep)
		*waiting = ICPT_AWAKE;
	bpf_ringbuf_submit(r, asleep ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

static __always_inline void icpt_wake_by_ring(void *ring)
{
	void *none = bpf_ringbuf_reserve(ring, sizeof(__u64), 0);

	if (none)
		bpf_ringbuf_discard(none, BPF_RB_FORCE_WAKEUP);
}

/* Records have fixed sizes, as bpf_ringbuf_reserve takes constants only; so the frame is copied
 * once, directly into the ring. */
#define ICPT_EMIT(step)                                                                          \
	static __noinline int icpt_emit_##step(                                                  \
		kerb_ctx *ctx, void *ring, const struct icpt_record *head, struct icpt_state *s) \
	{                                                                                        \
		struct icpt_record *r = bpf_ringbuf_reserve(ring, sizeof(*r) + step, 0);         \
		__u32 rest = head->caplen - 1; /* see icpt_payload_matches */                    \
                                                                                                 \
		if (!r)                                                                          \
			return -1;                                                               \
		*r = *head;                                                                      \
		kerb_opaque(rest);                                                               \
		if (rest >= step || icpt_bytes_load(ctx, 0, r + 1, rest + 1)) {                  \
			bpf_ringbuf_discard(r, BPF_RB_NO_WAKEUP);                                \
			return -1;                                                               \
		}                                                                                \
		icpt_record_submit(r, s);                                                        \
		return 0;                                                                        \
	}

#define ICPT_EACH_STEP(do) \
	do                 \
	(64) do(128) do(256) do(512) do(1024) do(1536) do(2048) do(4096) do(9216) do(16384)
#define ICPT_EMIT_STEP(step)      \
	if (head->caplen <= step) \
		return icpt_emit_##step(ctx, ring, head, s);

ICPT_EACH_STEP(ICPT_EMIT)

static __always_inline int icpt_record_emit(kerb_ctx *ctx, void *ring,
					    const struct icpt_record *head, struct icpt_state *s)
{
	ICPT_EACH_STEP(ICPT_EMIT_STEP)
	return -1;
}

static __always_inline __u32 icpt_record_flags(const struct kerb_pkt *pkt,
					       const struct icpt_found *k)
{
	__u32 flags = k->direction == ICPT_OUTGOING ? ICPT_EGRESS : 0;

	flags |= pkt->family == 4 ? ICPT_IP4 : ICPT_IP6;
	if (pkt->flags & KERB_F_L4)
		flags |= ICPT_L4;
	if (pkt->flags & KERB_F_FRAG)
		flags |= ICPT_FRAGMENT;
	if (k->action == ICPT_STEAL)
		flags |= ICPT_STOLEN;
#ifdef KERB_HOOK_TC
	if (kerb_ctx_field(pkt->ctx, gso_size))
		flags |= ICPT_SEGMENTS;
	if (kerb_ctx_field(pkt->ctx, vlan_present))
		flags |= kerb_ctx_field(pkt->ctx, vlan_tci) << ICPT_TCI_SHIFT;
#endif
	return flags;
}

/* Returns the thread that this CPU was running, 0 if unknown. bpf_get_current_pid_tgid is allowed
 * in all program types since Linux 6.17, which is detected by a type that was added with it. */
struct bpf_stream___icpt {
	int unused;
} __attribute__((preserve_access_index));

static __always_inline __u32 icpt_current_pid(void)
{
	return bpf_core_type_exists(struct bpf_stream___icpt) ? (__u32)bpf_get_current_pid_tgid()
							      : 0;
}

static __always_inline void icpt_record_fill(struct icpt_record *r, const struct kerb_pkt *pkt,
					     const struct icpt_found *k)
{
	r->time = k->time;
	r->len = pkt->len;
	r->caplen = pkt->len < k->max_bytes ? pkt->len : k->max_bytes;
	r->l3 = pkt->l3;
	r->l4 = pkt->l4;
	r->payload = k->payload;
	r->slot = k->ring;
	r->ifindex = pkt->ifindex;
	r->flags = icpt_record_flags(pkt, k) | (r->caplen < r->len ? ICPT_TRUNCATED : 0);
	r->cpu = bpf_get_smp_processor_id();
	r->pid = icpt_current_pid();
}

#ifdef KERB_HOOK_XDP

/* Returns the index in xsks of the socket for the packet's interface and queue, or -1. bell: of a
 * wake socket. */
static __always_inline int icpt_xsk_lookup(const struct kerb_pkt *pkt, __u32 slot, __u32 bell)
{
	__u32 queue = kerb_ctx_field(pkt->ctx, rx_queue_index), at = slot * ICPT_QUEUES + queue;
	struct icpt_sockets *all = bpf_map_lookup_elem(&xsk_interfaces, &slot);

	if (!all || all->ifindex != pkt->ifindex || all->bells != bell || queue >= ICPT_QUEUES)
		return -1;
	return bpf_map_lookup_elem(&xsks, &at) ? at : -1;
}

/* Redirects the packet to an AF_XDP socket. Returns 0 if there is none, or if the driver has no
 * room for metadata before the frame. */
static __always_inline int icpt_xsk_deliver(struct kerb_pkt *pkt, const struct icpt_found *k,
					    struct icpt_flow *f)
{
	int rc, at = icpt_xsk_lookup(pkt, k->ring, 0);
	struct icpt_meta *m;

	if (at < 0)
		return 0;
	rc = bpf_xdp_adjust_meta(pkt->ctx, -(int)sizeof(*m));
	kerb_reload(pkt);
	if (rc)
		return 0;
	m = (void *)kerb_ctx_field(pkt->ctx, data_meta);
	if ((void *)(m + 1) > pkt->data)
		return 0;
	m->seq = __sync_fetch_and_add(&f->seq, 1);
	m->time = k->time;
	m->lost = f->lost;
	m->l3 = pkt->l3;
	m->l4 = pkt->l4;
	m->payload = k->payload;
	m->slot = k->ring;
	return bpf_redirect_map(&xsks, at, 0) == XDP_REDIRECT;
}

/* A frame is cut to this length for a wake socket, which copies it and accepts no multi-buffer
 * frames. */
#define ICPT_WAKE_BYTES 64

/* Redirects a packet that is in the ring already to a wake socket. Returns 0 if there is none. */
static __always_inline int icpt_wake_by_xsk(struct kerb_pkt *pkt, const struct icpt_found *k)
{
	int rc = 0, at = icpt_xsk_lookup(pkt, k->ring, 1);

	if (at < 0)
		return 0;
	if (pkt->len > ICPT_WAKE_BYTES)
		rc = bpf_xdp_adjust_tail(pkt->ctx, ICPT_WAKE_BYTES - (int)pkt->len);
	kerb_reload(pkt);
	return !rc && bpf_redirect_map(&xsks, at, 0) == XDP_REDIRECT;
}

#else

static __always_inline int icpt_xsk_deliver(struct kerb_pkt *pkt, const struct icpt_found *k,
					    struct icpt_flow *f)
{
	return 0;
}

static __always_inline int icpt_wake_by_xsk(struct kerb_pkt *pkt, const struct icpt_found *k)
{
	return 0;
}

#endif

/* Wakes a waiting consumer after the record was submitted, and returns the verdict. The consumer
 * sets waiting, then checks the ring; this side submits, then reads waiting: at least one sees the
 * other's write. */
static __always_inline int icpt_consumer_wake(struct kerb_pkt *pkt, const struct icpt_found *k,
					      void *ring, struct icpt_state *s)
{
	volatile __u32 *waiting = &s->waiting;
	__u32 steal = k->action == ICPT_STEAL, how = *waiting;

	if (how) {
		*waiting = ICPT_AWAKE;
		if (how == ICPT_BY_SOCKET && steal && k->xdp_sockets && icpt_wake_by_xsk(pkt, k))
			return kerb_redirect(pkt, 0, KERB_TO_MAP);
		icpt_wake_by_ring(ring);
	}
	return steal ? kerb_drop(pkt, ICPT_DROP_STOLEN) : KERB_NEXT;
}

/* Returns the ns for which records may stay unread before packets are answered; 0: no fallback. */
static __always_inline __u64 icpt_fallback_time(const struct icpt_found *k)
{
	struct icpt_table *t = icpt_table(k->half);

	return t ? t->classes[0][k->class & (ICPT_CLASSES - 1)].fallback * 1000ULL : 0;
}

#define ICPT_UNDELIVERED (-1) /* answer the packet by the fallback of the class */

/* Delivers a packet and returns its verdict: if it cannot be delivered, KERB_NEXT, or
 * ICPT_UNDELIVERED in a class with a fallback. Not inlined because of the stack limit. */
static __noinline int icpt_deliver(struct kerb_pkt *pkt, const struct icpt_found *k,
				   struct icpt_flow *f, struct icpt_counts *n)
{
	__u32 slot = k->ring, steal = k->action == ICPT_STEAL;
	__u64 begin = ICPT_UNTRACKED, fallback = steal ? icpt_fallback_time(k) : 0;
	int undelivered = fallback ? ICPT_UNDELIVERED : KERB_NEXT;
	struct icpt_state *s = icpt_state(slot);
	void *ring = bpf_map_lookup_elem(&rings, &slot);
	struct icpt_record head;

	if (!s || !ring) /* a class without a ring */
		return undelivered;
	if (steal && !icpt_has_consumer(slot)) {
		n->unread++;
		return undelivered;
	}
	/* not with a fallback: unread frames of a socket have no known age */
	if (steal && !fallback && k->xdp_sockets && icpt_xsk_deliver(pkt, k, f)) {
		n->delivered++;
		return kerb_redirect(pkt, 0, KERB_TO_MAP);
	}
	if (steal && icpt_consumer_is_stalled(ring, f, k->time, fallback ?: s->watchdog, &begin)) {
		n->unread++;
		return undelivered;
	}
	icpt_record_fill(&head, pkt, k);
	head.seq = __sync_fetch_and_add(&f->seq, 1);
	head.lost = f->lost;
	if (icpt_record_emit(pkt->ctx, ring, &head, s)) {
		__sync_fetch_and_add(&f->lost, 1);
		n->lost++;
		return undelivered;
	}
	icpt_age_track(f, begin, k->time);
	n->delivered++;
	return icpt_consumer_wake(pkt, k, ring, s);
}

#endif
