// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* A token bucket for each interface and direction. A token is a second of waiting at a rate of one
 * packet per second, in nanoseconds: waiting earns elapsed time * rate, so that no rate is rounded
 * and nothing is divided. */
#include <stdbool.h>
#include <kerb/module.h>

KERB_LICENSE("Dual BSD/GPL");

KERB_CONFIG(__u64, rate, 1000);
KERB_CONFIG(__u64, burst, 100);

#define OVER_LIMIT KERB_DROP_MODULE_FIRST /* dropReasons in kerb.yaml */
#define TOKEN	   1000000000ULL
/* ns that are credited at once: times the highest rate it fits 64 bits */
#define LONGEST	   (1ULL << 38)

enum direction { FROM_SERVICE, TO_SERVICE };

struct place {
	__u32 ifindex, direction;
};

struct bucket {
	struct bpf_spin_lock lock;
	__u64 credit; /* in TOKEN */
	__u64 last;   /* when credit was right, ns since boot */
};

/* Full when it is new: it is a config map, so that a new configuration begins with full buckets,
 * and those of interfaces that have vanished go. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct place);
	__type(value, struct bucket);
} buckets SEC(".maps");

static __always_inline struct bucket *bucket_of(struct kerb_pkt *pkt, __u32 direction, __u64 now)
{
	struct place place = {.ifindex = pkt->ifindex, .direction = direction};
	struct bucket *found = bpf_map_lookup_elem(&buckets, &place);
	struct bucket full = {.credit = burst * TOKEN, .last = now};

	if (found)
		return found;
	/* another CPU's bucket, if it was first, is as good */
	bpf_map_update_elem(&buckets, &place, &full, BPF_NOEXIST);
	return bpf_map_lookup_elem(&buckets, &place);
}

/* Takes a token. Time that has not been credited yet, beyond LONGEST, stays for the next packet. */
static __always_inline bool take(struct bucket *b, __u64 now)
{
	bool taken = false;
	__u64 elapsed;

	bpf_spin_lock(&b->lock);
	/* another CPU may have examined the clock later and come first */
	elapsed = now > b->last ? now - b->last : 0;
	if (elapsed > LONGEST)
		elapsed = LONGEST;
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

/* The exact clock: the coarse one of kerb_now() stands still for milliseconds, in which a small
 * bucket runs dry. */
static __always_inline int limit(struct kerb_pkt *pkt, __u32 direction)
{
	__u64 now = bpf_ktime_get_ns();
	struct bucket *b = bucket_of(pkt, direction, now);

	return !b || take(b, now) ? KERB_NEXT : kerb_drop(pkt, OVER_LIMIT);
}

KERB_EGRESS(pkt)
{
	return limit(pkt, FROM_SERVICE);
}

KERB_INGRESS(pkt)
{
	return limit(pkt, TO_SERVICE);
}
