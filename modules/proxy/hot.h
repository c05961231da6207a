/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Sessions that this CPU has just used, in front of the map of all: a lookup there costs four calls
 * and a hash over 44 bytes. A copy is used for a moment only, so that the map's LRU sees that the
 * session lives; and only while no session whose key has the same hash was forgotten by any CPU. */
#ifndef PX_HOT_H
#define PX_HOT_H

#include "flow.h"

#define PX_HOT	     512 /* a power of two */
/* many more: connections of one service seldom make the copies of another one useless */
#define PX_EPOCHS    32768
#define PX_HOT_TICK  32	 /* jiffies: 32 ms at 1000 Hz, 0.3 s at 100 Hz */

/* Eight bytes of a packet or an address, whatever their type. */
typedef __u64 __attribute__((__may_alias__)) px_wide;

/* What a packet is found by is as it stands in the packet, so that nothing needs to be copied: of
 * IPv4 both addresses are in the first two words. */
struct px_hot {
	__be32 word[8];
	__u32 ports, ifindex;
	__u32 kind;  /* PX_HOT_KIND */
	__u32 epoch; /* of the hash before the session was looked up */
	__u32 tick;  /* jiffies / PX_HOT_TICK then */
	/* differences that the changed addresses, and ports too, make to a checksum */
	__u16 addresses, sum;
	struct px_session session;
};

#define PX_HOT_KIND(family, proto, hook) ((family) << 16 | (proto) << 8 | (hook))

/* By px_hot_slot. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PX_HOT);
	__type(key, __u32);
	__type(value, struct px_hot);
} hot SEC(".maps");

/* How often a session with such a key was forgotten. */
struct px_epoch {
	__u32 count;
	struct bpf_spin_lock lock;
};

/* By px_epoch_slot. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PX_EPOCHS);
	__type(key, __u32);
	__type(value, struct px_epoch);
} epochs SEC(".maps");

/* Fibonacci hashing (Knuth, TAOCP 6.4) of the words that differ most: the last ones of the
 * addresses. */
static __always_inline __u32 px_hot_hash(__be32 src, __be32 dst, __u32 ports, __u32 ifindex)
{
	return ((src ^ dst) + ports * 31 + ifindex) * 2654435769U;
}

static __always_inline __u32 px_hot_hash_of(const struct px_flow *f)
{
	return px_hot_hash(f->src.word[3], f->dst.word[3], *px_ports((void *)&f->sport),
			   f->ifindex);
}

static __always_inline __u32 px_hot_slot(__u32 hash)
{
	return hash >> 23 & (PX_HOT - 1);
}

static __always_inline __u32 px_epoch_slot(__u32 hash)
{
	return hash >> 17 & (PX_EPOCHS - 1);
}

/* To be called after the map has changed. The map's own lock was released by then: taking another
 * one orders the change before the count on every processor (on arm64 a release followed by an
 * acquire is a full barrier). An atomic add alone would not, and those that return a value came
 * with Linux 5.12. */
static __always_inline void px_changed(const struct px_flow *f)
{
	__u32 slot = px_epoch_slot(px_hot_hash_of(f));
	struct px_epoch *epoch = bpf_map_lookup_elem(&epochs, &slot);

	if (!epoch)
		return;
	bpf_spin_lock(&epoch->lock);
	epoch->count++;
	bpf_spin_unlock(&epoch->lock);
}

/* A session, in whichever table it is. */
static __always_inline struct px_session *px_find(const struct px_flow *f)
{
	struct px_session *s = bpf_map_lookup_elem(&sessions, f);

	return s ?: bpf_map_lookup_elem(&pending, f);
}

static __always_inline int px_same_session(const struct px_session *a, const struct px_session *b)
{
	return px_same(&a->addr, &b->addr) &&
	       *px_ports((void *)&a->sport) == *px_ports((void *)&b->sport) &&
	       a->instance == b->instance && a->generation == b->generation &&
	       a->other == b->other && a->local == b->local && a->flags == b->flags;
}

/* Where a flow is kept, and what the epoch and the time are: to be asked before its session is
 * looked up in the map. */
struct px_warm {
	struct px_hot *at;
	__u32 epoch, tick;
};

static __always_inline void px_hot_refresh(const struct px_flow *f, struct px_warm *w)
{
	__u32 hash = px_hot_hash_of(f), slot = px_epoch_slot(hash);
	struct px_epoch *epoch = bpf_map_lookup_elem(&epochs, &slot);

	slot = px_hot_slot(hash);
	w->at = epoch ? bpf_map_lookup_elem(&hot, &slot) : 0;
	w->epoch = epoch ? *(volatile __u32 *)&epoch->count : 0;
	w->tick = bpf_jiffies64() / PX_HOT_TICK;
}

static __always_inline void px_keep_flow(struct px_hot *h, const struct px_flow *f, __u32 family)
{
	if (family == 4) {
		h->word[0] = f->src.word[3];
		h->word[1] = f->dst.word[3];
	} else {
		__builtin_memcpy(h->word, f, 2 * sizeof(struct px_addr));
	}
	h->ports = *px_ports((void *)&f->sport);
	h->ifindex = f->ifindex;
	h->kind = PX_HOT_KIND(family, f->proto, f->hook);
}

/* Not of a hairpin, which changes both addresses. */
static __always_inline void px_keep_session(struct px_hot *h, const struct px_flow *f,
					    const struct px_session *s)
{
	const struct px_addr *before = s->flags & PX_REVERSE ? &f->src : &f->dst;
	__u64 diff = 0;

#pragma unroll
	for (int i = 0; i < 4; i++)
		diff += kerb_diff32(before->word[i], s->addr.word[i]);
	h->addresses = kerb_fold(diff);
	h->sum = kerb_fold(diff + kerb_diff32(h->ports, *px_ports((void *)&s->sport)));
	h->session = *s;
}

/* Keeps a copy, unless another flow has the place; returns whether it did. The map may give an
 * entry to another key while it is being copied: then it is not found again, or not the same. */
static __noinline int px_keep_hot(const struct px_flow *f, __u32 family, const struct px_warm *w,
				  const struct px_session *s)
{
	struct px_hot *h = w->at;

	if (!h || (h->tick == w->tick && h->epoch == w->epoch))
		return 0;
	h->tick = w->tick - 1;
	h->epoch = w->epoch;
	px_keep_flow(h, f, family);
	px_keep_session(h, f, s);
	/* a read barrier in its sequence counter: what is found now is not older than the epoch */
	bpf_ktime_get_ns();
	s = px_find(f);
	if (!s || !px_same_session(s, &h->session))
		return 0;
	h->tick = w->tick;
	return 1;
}

#endif
