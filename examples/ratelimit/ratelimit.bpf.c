// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* A token bucket for each interface and direction. A token is 10^9 units, and each ns adds `rate`
 * units, so that rates are exact and no division is needed. */
#include <stdbool.h>
#include <kerb/module.h>

KERB_LICENSE("Dual BSD/GPL");

KERB_CONFIG(__u64, rate, 1000);
KERB_CONFIG(__u64, burst, 100);

#define OVER_LIMIT KERB_DROP_MODULE_FIRST /* dropReasons in kerb.yaml */
#define TOKEN	   1000000000ULL
/* the most ns that are credited at once: times the highest rate, this fits 64 bits */
#define MAX_ELAPSED (1ULL << 38)

enum direction { FROM_SERVICE, TO_SERVICE };

struct place {
	__u32 ifindex, direction;
};

struct bucket {
	struct bpf_spin_lock lock;
	__u64 credit; /* in units of 1 / TOKEN */
	__u64 last;   /* time of the last update of credit, ns since boot */
};

/* A config map (maps.config in kerb.yaml), so that a new configuration starts with full buckets,
 * and buckets of removed interfaces disappear. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct place);
	__type(value, struct bucket);
} buckets SEC(".maps");

static __always_inline struct bucket *bucket_lookup(struct kerb_pkt *pkt, __u32 direction,
						    __u64 now)
{
	struct place place = {.ifindex = pkt->ifindex, .direction = direction};
	struct bucket *found = bpf_map_lookup_elem(&buckets, &place);
	struct bucket full = {.credit = burst * TOKEN, .last = now};

	if (found)
		return found;
	/* fails if another CPU was first: its bucket is used then */
	bpf_map_update_elem(&buckets, &place, &full, BPF_NOEXIST);
	return bpf_map_lookup_elem(&buckets, &place);
}

/* Takes a token. Returns false if there is none. Time beyond MAX_ELAPSED is credited by the next
 * packet. */
static __always_inline bool token_take(struct bucket *b, __u64 now)
{
	bool taken = false;
	__u64 elapsed;

	bpf_spin_lock(&b->lock);
	/* another CPU may have read the clock later, but updated the bucket first */
	elapsed = now > b->last ? now - b->last : 0;
	if (elapsed > MAX_ELAPSED)
		elapsed = MAX_ELAPSED;
	b->last += elapsed;
	b->credit += elapsed * rate;
	if (b->credit > burst * TOKEN)
		b->credit = burst * TOKEN;
	if (b->credit >= TOKEN) {
		b->credit -= TOKEN;
		taken = true;
	}
	bpf_spin_unlock(&b->lock);
	return taken;
}

/* Not kerb_now(): that clock advances once per tick, several ms, in which a small bucket would run
 * empty. */
static __always_inline int rate_limit(struct kerb_pkt *pkt, __u32 direction)
{
	__u64 now = bpf_ktime_get_ns();
	struct bucket *b = bucket_lookup(pkt, direction, now);

	return !b || token_take(b, now) ? KERB_NEXT : kerb_drop(pkt, OVER_LIMIT);
}

KERB_EGRESS(pkt)
{
	return rate_limit(pkt, FROM_SERVICE);
}

KERB_INGRESS(pkt)
{
	return rate_limit(pkt, TO_SERVICE);
}
