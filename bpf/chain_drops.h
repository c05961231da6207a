/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The last packets that the modules of a chain have dropped, or for which they returned an invalid
 * verdict, stored without a trace for `kerb drops`. Only such packets are handled here, and a rate
 * limit skips most of a flood. Slow packets are in chain_slow.h. */
#ifndef KERB_CHAIN_DROPS_H
#define KERB_CHAIN_DROPS_H

#define KERB_DROPPED_BYTES  128 /* of a frame; a power of two */
#define KERB_DROPPED_GROUPS 32	/* hash buckets by interface, module, reason */
#define KERB_DROPPED_BEFORE 32	/* older packets; a power of two */
#define KERB_DROPPED_PERIOD (100 * 1000 * 1000ULL) /* ns between two packets of a group */
#define KERB_DROPPED_BURST  10
#define KERB_DROPPED_PASSED 0x8000 /* flag: it passed, as the module fails open */
#define KERB_DROP_PASSED    0x80   /* the same flag in an argument of kerb_drop_keep */

/* A packet, as the module left it. */
struct kerb_dropped {
	__u64 time; /* ns, CLOCK_MONOTONIC; 0: empty, or being written */
	__u32 ifindex;
	__u32 len;    /* of the frame */
	__u8 place;   /* position of the module in the chain */
	__u8 key;     /* of the note (kerb_drop_noted); 0: none */
	__u16 note;
	__u16 reason; /* enum kerb_drop_reason, and KERB_DROPPED_PASSED */
	__u16 bytes;  /* length of frame[] */
	__u8 frame[KERB_DROPPED_BYTES];
};

/* Rate limit of a group: a token bucket of KERB_DROPPED_BURST, one token per period. */
struct kerb_dropped_limit {
	__u64 next;  /* ns: theoretical arrival time of the next packet */
	__u64 jiffy; /* in which a packet was over the limit: others in it do not read the clock */
};

/* The stored packets of a chain. The last packet of a group is replaced only by one of the same
 * group, and moves to `before`, so that a flood at one service does not hide drops at another. All
 * CPUs write this without a lock: concurrent writers may lose or mix up a packet, but not later
 * ones. It follows the counters of the CPUs in kerb_counts, as programs are limited to 64 maps and
 * some chains have that many. The agent reads it (internal/dataplane/lastdrops.go). */
struct kerb_last_drops {
	__u64 written; /* number of packets written to before so far */
	struct kerb_dropped_limit limits[KERB_DROPPED_GROUPS];
	struct kerb_dropped last[KERB_DROPPED_GROUPS];
	struct kerb_dropped before[KERB_DROPPED_BEFORE];
};

const volatile __u64 kerb_last_drops_at = 0; /* offset in kerb_counts; set by the linker */

#ifdef KERB_HOOK_XDP
/* Copies n bytes, size <= n <= 2 * size, as the first size and the last size bytes, which may
 * overlap. So the loop has a constant count, and the verifier leaves it in one state. Returns 0 for
 * other n. */
static __always_inline int dropped_copy(__u8 *to, void *data, void *end, __u64 n, __u64 size)
{
	__u64 last = n - size;

	kerb_opaque(last);
	if (last > size || data + size > end || data + last + size > end)
		return 0;
	for (__u64 i = 0; i < size; i += 8) {
		*(__u64 *)(to + i) = *(__u64 *)(data + i);
		*(__u64 *)(to + last + i) = *(__u64 *)(data + last + i);
	}
	return 1;
}
#endif

/* Copies the first bytes of the frame and returns their number. On XDP only from the first
 * buffer. */
static __always_inline __u32 dropped_read(kerb_ctx *ctx, __u8 *to)
{
#ifdef KERB_HOOK_XDP
	void *data = (void *)kerb_ctx_field(ctx, data),
	     *end = (void *)kerb_ctx_field(ctx, data_end);
	__u64 n = end - data;

	if (n > KERB_DROPPED_BYTES)
		n = KERB_DROPPED_BYTES;
	if (dropped_copy(to, data, end, n, 64) || dropped_copy(to, data, end, n, 32) ||
	    dropped_copy(to, data, end, n, 16) || dropped_copy(to, data, end, n, 8))
		return n;
	return 0;
#else
	__u32 n = ctx->len - 1;

	if (n > KERB_DROPPED_BYTES - 1)
		n = KERB_DROPPED_BYTES - 1;
	kerb_bound(n, KERB_DROPPED_BYTES - 1);
	return bpf_skb_load_bytes(ctx, 0, to, n + 1) ? 0 : n + 1;
#endif
}

/* Returns whether a packet of a group is over the limit. */
static __always_inline int dropped_is_limited(struct kerb_dropped_limit *l)
{
	__u64 jiffy = bpf_jiffies64(), now, earliest;

	if (l->jiffy == jiffy)
		return 1;
	now = bpf_ktime_get_ns();
	if (l->next > now) {
		l->jiffy = jiffy;
		return 1;
	}
	earliest = now - (KERB_DROPPED_BURST - 1) * KERB_DROPPED_PERIOD;
	l->next = (l->next > earliest ? l->next : earliest) + KERB_DROPPED_PERIOD;
	return 0;
}

/* Stores a dropped packet; noted: pkt->reason. A global function of scalars and the context, so
 * that the verifier checks it once, not in each state in which a module drops. */
__noinline int kerb_drop_keep(kerb_ctx *ctx, __u32 call, __u32 noted)
{
	__u32 place = call >> KERB_CALL_COUNT_SHIFT, ifindex, group;
	__u32 reason = noted & (KERB_DROP_REASONS - 1);
	struct kerb_last_drops *all = (void *)&kerb_counts + kerb_last_drops_at;
	struct kerb_dropped *d;

	if (!place) /* not counted either */
		return 0;
	ifindex = kerb_ctx_field(ctx, KERB_CTX_IFINDEX);
	group = (ifindex * 0x9e3779b1 + place * 0xc2b2ae35 + reason * 0x85ebca6b) >> 27;
	kerb_bound(group, KERB_DROPPED_GROUPS - 1);
	if (dropped_is_limited(&all->limits[group]))
		return 0;
	d = &all->last[group];
	if (d->time)
		all->before[all->written++ & (KERB_DROPPED_BEFORE - 1)] = *d;
	d->time = 0;
	d->ifindex = ifindex;
	d->len = frame_len(ctx);
	d->place = place - 1;
	d->key = noted >> 8;
	d->note = noted >> 16;
	d->reason = reason | (noted & KERB_DROP_PASSED ? KERB_DROPPED_PASSED : 0);
	d->bytes = dropped_read(ctx, d->frame);
	d->time = bpf_ktime_get_ns();
	return 0;
}

#endif
