/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Sessions that this CPU has just used, in front of the map of all: a lookup there costs four calls and a hash over 44 bytes.
 * A copy is used for a moment only, so that the map's LRU sees that the session lives; and only while no session whose key
 * has the same hash was made or forgotten by any CPU. */
#ifndef PX_HOT_H
#define PX_HOT_H

#include "flow.h"

#define PX_HOT	     512 /* a power of two */
#define PX_HOT_TICK  32	 /* jiffies: 32 ms at 1000 Hz, 0.3 s at 100 Hz */

struct px_hot {
	struct px_flow flow;
	__u32 epoch; /* of the hash when the session was looked up */
	__u32 tick;  /* jiffies / PX_HOT_TICK then */
	__u32 zero;
	struct px_session session;
};

/* By px_hot_hash. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PX_HOT);
	__type(key, __u32);
	__type(value, struct px_hot);
} hot SEC(".maps");

/* By px_hot_hash: how often a session was made or forgotten. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PX_HOT);
	__type(key, __u32);
	__type(value, __u32);
} epochs SEC(".maps");

/* Fibonacci hashing (Knuth, TAOCP 6.4) of the words that differ most. */
static __always_inline __u32 px_hot_hash(const struct px_flow *f)
{
	__u32 mix = (f->src.word[3] ^ f->dst.word[3]) + *px_ports((void *)&f->sport) * 31 + f->ifindex;

	return mix * 2654435769U >> 23 & (PX_HOT - 1);
}

static __always_inline int px_same_flow(const struct px_flow *a, const struct px_flow *b)
{
	return px_same(&a->src, &b->src) && px_same(&a->dst, &b->dst) && a->ifindex == b->ifindex &&
	       *px_ports((void *)&a->sport) == *px_ports((void *)&b->sport) &&
	       *px_ports((void *)&a->proto) == *px_ports((void *)&b->proto);
}

/* To be called after the map has changed. */
static __always_inline void px_changed(const struct px_flow *f)
{
	__u32 slot = px_hot_hash(f), *epoch = bpf_map_lookup_elem(&epochs, &slot);

	if (epoch)
		__sync_fetch_and_add(epoch, 1);
}

static __always_inline int px_same_session(const struct px_session *a, const struct px_session *b)
{
	return px_same(&a->addr, &b->addr) && *px_ports((void *)&a->sport) == *px_ports((void *)&b->sport) &&
	       a->instance == b->instance && a->generation == b->generation && a->other == b->other && a->local == b->local &&
	       a->flags == b->flags;
}

/* Where a flow is kept, and what the epoch and the time are: to be asked before its session is looked up in the map. */
struct px_warm {
	struct px_hot *at;
	__u32 epoch, tick;
};

/* The copy of a flow's session, or NULL. */
static __always_inline const struct px_session *px_find_hot(const struct px_flow *f, struct px_warm *w)
{
	__u32 slot = px_hot_hash(f), *epoch = bpf_map_lookup_elem(&epochs, &slot);

	w->at = bpf_map_lookup_elem(&hot, &slot);
	if (!w->at || !epoch)
		return 0;
	w->epoch = *(volatile __u32 *)epoch;
	w->tick = bpf_jiffies64() / PX_HOT_TICK;
	if (w->at->tick == w->tick && w->at->epoch == w->epoch && px_same_flow(&w->at->flow, f))
		return &w->at->session;
	return 0;
}

/* Keeps a copy, unless another flow has the place; returns whether it did. The map may give an entry to another key while it is
 * being copied: then it is not found again, or not the same. */
static __noinline int px_keep_hot(const struct px_flow *f, const struct px_warm *w, const struct px_session *s)
{
	struct px_hot *h = w->at;

	if (!h || (h->tick == w->tick && h->epoch == w->epoch))
		return 0;
	h->tick = w->tick - 1;
	h->flow = *f;
	h->epoch = w->epoch;
	h->session = *s;
	s = bpf_map_lookup_elem(&sessions, f);
	if (!s || !px_same_session(s, &h->session))
		return 0;
	h->tick = w->tick;
	return 1;
}

#endif
