/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Sessions that this CPU has just used, a cache in front of the map of all: a lookup there costs
 * four calls and a hash over 44 bytes. A copy is used until the session has to be marked as seen,
 * and a copy of an entry of pending only briefly, so that its LRU sees that the session is in use.
 * Copies are invalid once any CPU deletes a session whose key has the same hash. UDP packets
 * without a session are cached in the same way, until a session with such a hash is created. */
#ifndef PX_HOT_H
#define PX_HOT_H

#include "flow.h"

/* sets of copies by default, 16 times 1 << hot_bits: tests have so many CPUs at most */
#define PX_HOT_SETS  4096
/* many more: connections of one service rarely invalidate the copies of another one */
#define PX_EPOCHS    32768
/* Bits of jiffies until a copy is too old: of sessions 8, as PX_TICK, of pending 5, which are 32 ms
 * at 1000 Hz and 0.3 s at 100 Hz. */
#define PX_HOT_AGE(kept) ((kept) ? 8 : 5)

_Static_assert(PX_TICK == 1 << PX_HOT_AGE(1), "copies are used while sessions need no mark");

/* Eight bytes of a packet or an address, whatever their type. */
typedef __u64 __attribute__((__may_alias__)) px_wide;

/* sets of each CPU: 1 << hot_bits */
KERB_CONFIG(__u32, hot_bits, 8);

/* Key and session in packet byte order, so that nothing needs to be copied. The first half is a
 * cache line, and has everything that an IPv4 packet needs. */
struct px_hot {
	px_wide addr; /* IPv4: both addresses; IPv6: the first half of the source */
	__u32 ports, ifindex;
	__u32 kind;  /* PX_HOT_KIND */
	__u32 epoch; /* of the hash, before the lookup of the session */
	__u32 tick;  /* jiffies >> age at that time */
	/* changes of a checksum caused by the addresses, and by the addresses and ports */
	__u16 addresses, sum;
	px_wide to4; /* both new addresses */
	/* of struct px_session */
	__be16 sport, dport;
	__u32 instance, generation, other, local;
	__u16 flags, age; /* PX_HOT_AGE */
	px_wide rest[3];  /* IPv6: the rest of the addresses */
	px_wide to6[4];	  /* both new addresses */
	__u32 zero2[2];
};

_Static_assert(offsetof(struct px_hot, rest) == 64 && sizeof(struct px_hot) == 128,
	       "struct px_hot fills cache lines");

#define PX_HOT_KIND(family, proto, hook) ((family) << 16 | (proto) << 8 | (hook))
/* no session: neither the packet nor its replies belong to one */
#define PX_HOT_DIRECT (1 << 24)

/* Two flows with the same hash both have copies if their ports differ. */
struct px_hot_set {
	struct px_hot way[2];
};

/* Which of the two ways may have the copy of a flow with these ports. */
static __always_inline struct px_hot *px_hot_way(struct px_hot_set *set, __u32 ports)
{
	return &set->way[set->way[0].ports == ports ? 0 : 1];
}

/* Indexed by px_hot_slot. Not a per-CPU map: there an entry is found through its pointer, which is
 * another cache miss. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PX_HOT_SETS);
	__uint(map_flags, BPF_F_MMAPABLE); /* starts on a page, and thus on a cache line */
	__type(key, __u32);
	__type(value, struct px_hot_set);
} hot SEC(".maps");

/* How often a session with such a key was deleted, or a UDP session created. */
struct px_epoch {
	__u32 count;
	struct bpf_spin_lock lock;
};

/* Indexed by px_epoch_slot. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PX_EPOCHS);
	__type(key, __u32);
	__type(value, struct px_epoch);
} epochs SEC(".maps");

/* Fibonacci hashing (Knuth, TAOCP 6.4) of the words that differ most: the last words of the
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

/* Sets of the CPU are side by side. */
static __always_inline __u32 px_hot_slot(__u32 hash)
{
	__u32 bits = hot_bits;

	return bpf_get_smp_processor_id() << bits | hash >> (32 - bits);
}

static __always_inline __u32 px_epoch_slot(__u32 hash)
{
	return hash >> 17 & (PX_EPOCHS - 1);
}

/* Call this after the map has changed. The map's own lock was released by then: taking another one
 * orders the change before the count on every processor (on arm64 a release followed by an acquire
 * is a full barrier). An atomic add alone would not, and atomics that return a value came with
 * Linux 5.12. */
static __always_inline void px_epoch_advance(const struct px_flow *f)
{
	__u32 slot = px_epoch_slot(px_hot_hash_of(f));
	struct px_epoch *epoch = bpf_map_lookup_elem(&epochs, &slot);

	if (!epoch)
		return;
	bpf_spin_lock(&epoch->lock);
	epoch->count++;
	bpf_spin_unlock(&epoch->lock);
}

/* Returns a session from either table. */
static __always_inline struct px_session *px_session_lookup(const struct px_flow *f)
{
	struct px_session *s = bpf_map_lookup_elem(&sessions, f);

	return s ?: bpf_map_lookup_elem(&pending, f);
}

/* Returns whether a copy of a flow's session equals the session. */
static __always_inline int px_hot_same(const struct px_hot *h, const struct px_session *s)
{
	const px_wide *to = &h->to6[s->flags & PX_REVERSE ? 0 : 2];

	if (!px_same((const void *)to, &s->addr))
		return 0;
	return *px_ports((void *)&h->sport) == *px_ports((void *)&s->sport) &&
	       h->instance == s->instance && h->generation == s->generation &&
	       h->other == s->other && h->local == s->local && h->flags == s->flags;
}

/* Position of a flow, and the current epoch and time: determine it before the lookup of the session
 * in the map. */
struct px_warm {
	struct px_hot_set *at;
	__u64 jiffies;
	__u32 epoch;
	__u32 age; /* of a copy */
};

static __always_inline void px_hot_refresh(const struct px_flow *f, struct px_warm *w)
{
	__u32 hash = px_hot_hash_of(f), slot = px_epoch_slot(hash);
	struct px_epoch *epoch = bpf_map_lookup_elem(&epochs, &slot);

	slot = px_hot_slot(hash);
	w->at = epoch ? bpf_map_lookup_elem(&hot, &slot) : 0;
	w->epoch = epoch ? *(volatile __u32 *)&epoch->count : 0;
	w->jiffies = bpf_jiffies64();
	w->age = PX_HOT_AGE(0);
}

static __always_inline void px_hot_store_flow(struct px_hot *h, const struct px_flow *f,
					      __u32 family)
{
	if (family == 4) {
		*px_ports(&h->addr) = f->src.word[3];
		*px_ports((void *)&h->addr + 4) = f->dst.word[3];
	} else {
		__builtin_memcpy(&h->addr, f, sizeof(h->addr));
		__builtin_memcpy(h->rest, &f->src.word[2], sizeof(h->rest));
	}
	h->ports = *px_ports((void *)&f->sport);
	h->ifindex = f->ifindex;
	h->kind = PX_HOT_KIND(family, f->proto, f->hook);
}

/* Writes the name for a copy of a session; returns the change that it makes to a checksum. */
static __noinline __u32 px_hot_store_name(struct px_hot *h, const struct px_flow *f,
					  const struct px_session *s)
{
	struct px_addr *to = (void *)&h->to6[s->flags & PX_REVERSE ? 2 : 0];
	struct px_name *name = px_client_name(f, s);
	__u64 diff = 0;

	if (!name) {
		h->flags = PX_HAIRPIN; /* of no use */
		return 0;
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		diff += kerb_diff32(to->word[i], name->other.word[i]);
	*to = name->other;
	return kerb_fold(diff);
}

/* Not for a hairpin, which rewrites both addresses with one. */
static __always_inline void px_hot_store_session(struct px_hot *h, const struct px_flow *f,
						 const struct px_session *s)
{
	struct px_addr *to = (void *)&h->to6[s->flags & PX_REVERSE ? 0 : 2];
	__u64 diff = 0;

	__builtin_memcpy(h->to6, f, sizeof(h->to6));
#pragma unroll
	for (int i = 0; i < 4; i++)
		diff += kerb_diff32(to->word[i], s->addr.word[i]);
	*to = s->addr;
	h->flags = s->flags;
	if (px_changes_both(s))
		diff += px_hot_store_name(h, f, s);
	*px_ports(&h->to4) = *px_ports((void *)h->to6 + 12);
	*px_ports((void *)&h->to4 + 4) = *px_ports((void *)h->to6 + 28);
	h->addresses = kerb_fold(diff);
	h->sum = kerb_fold(diff + kerb_diff32(h->ports, *px_ports((void *)&s->sport)));
	*px_ports((void *)&h->sport) = *px_ports((void *)&s->sport);
	h->instance = s->instance;
	h->generation = s->generation;
	h->other = s->other;
	h->local = s->local;
}

static __always_inline __u32 px_hot_tick(__u32 age, __u64 jiffies)
{
	return jiffies >> (age & 31);
}

/* Returns whether a flow was copied there in this moment. */
static __always_inline int px_hot_taken(const struct px_hot *h, const struct px_warm *w)
{
	return h->tick == px_hot_tick(h->age, w->jiffies) && h->epoch == w->epoch;
}

/* Returns room for a copy, or NULL if other flows have both ways. */
static __always_inline struct px_hot *px_hot_place(const struct px_flow *f, const struct px_warm *w)
{
	struct px_hot *h;

	if (!w->at)
		return 0;
	h = &w->at->way[0];
	if (px_hot_taken(h, w))
		h = px_hot_way(w->at, *px_ports((void *)&f->sport));
	return px_hot_taken(h, w) ? 0 : h;
}

/* Stores a copy, unless other flows have both ways; returns whether it did. The map may reuse an
 * entry for another key while it is being copied: then the lookup fails afterwards, or returns
 * another one. */
static __noinline int px_hot_store(const struct px_flow *f, __u32 family, const struct px_warm *w,
				   const struct px_session *s)
{
	struct px_hot *h = px_hot_place(f, w);

	if (!h)
		return 0;
	h->age = w->age;
	h->tick = px_hot_tick(h->age, w->jiffies) - 1;
	h->epoch = w->epoch;
	px_hot_store_flow(h, f, family);
	px_hot_store_session(h, f, s);
	/* a read barrier in its sequence counter: what is found now is not older than the epoch */
	bpf_ktime_get_ns();
	s = px_session_lookup(f);
	if (!s || !px_hot_same(h, s))
		return 0;
	h->tick = px_hot_tick(w->age, w->jiffies);
	return 1;
}

/* Returns whether this CPU knows that neither the packets of a flow nor their replies belong to a
 * session. */
static __always_inline int px_hot_is_direct(const struct px_flow *f, __u32 family,
					    const struct px_warm *w)
{
	__u32 ports = *px_ports((void *)&f->sport), kind = PX_HOT_KIND(family, f->proto, f->hook);
	const struct px_hot *h;

	if (f->proto != IPPROTO_UDP || !w->at)
		return 0;
	h = px_hot_way(w->at, ports);
	if (h->kind != (kind | PX_HOT_DIRECT) || !px_hot_taken(h, w) || h->ports != ports ||
	    h->ifindex != f->ifindex)
		return 0;
	if (family == 4)
		return *px_ports((void *)&h->addr) == f->src.word[3] &&
		       *px_ports((void *)&h->addr + 4) == f->dst.word[3];
	return !__builtin_memcmp(&h->addr, f, sizeof(h->addr)) &&
	       !__builtin_memcmp(h->rest, &f->src.word[2], sizeof(h->rest));
}

/* Returns whether replies to a UDP packet without a session would be taken for those of a session.
 * No packet indicates that a flow begins: all of them are compared, unless they are cached. */
static __noinline int px_is_ambiguous(const struct px_flow *f, __u32 family,
				      const struct px_warm *w)
{
	struct px_session *s;
	struct px_flow answer;
	struct px_hot *h;

	if (f->proto != IPPROTO_UDP)
		return 0;
	px_answer_key(f, &answer);
	s = px_session_lookup(&answer);
	if (s && s->flags & PX_REVERSE)
		return 1;
	h = px_hot_place(f, w);
	if (h) {
		h->age = PX_HOT_AGE(1);
		h->epoch = w->epoch;
		px_hot_store_flow(h, f, family);
		h->kind |= PX_HOT_DIRECT;
		h->tick = px_hot_tick(h->age, w->jiffies);
	}
	return 0;
}

#endif
