/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Rate limits of rules: a token bucket per rule, shared by all interfaces. For those of reports see
 * log.h. */
#ifndef FW_LIMIT_H
#define FW_LIMIT_H

#include "classify.h"
#include "state.h"

/* Time between packets, and the burst as a time, ns. */
struct fw_rate {
	__u64 interval, burst;
};

struct fw_limit {
	struct fw_rate packets, reports;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fw_limit);
} limits SEC(".maps");

KERB_CONFIG(__u32, limits_half, 0); /* as tree_half */

struct fw_bucket {
	__u64 due;     /* theoretical arrival time of the next packet (GCRA, ITU-T I.371), ns */
	__u64 limited; /* packets over the limit */
	union {
		__u64 suppressed; /* packets that were not reported: see log.h */
		__u64 owner;	  /* of a bucket of reports: interface and slot */
	};
};

#define FW_LOG_BUCKETS 4096
#define FW_LOG_WAYS    4

/* By slot, then FW_LOG_BUCKETS for reports: kept when the rules change. The control plane clears
 * those of slots that it reuses. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FW_SLOTS + FW_LOG_BUCKETS);
	__type(key, __u32);
	__type(value, struct fw_bucket);
} buckets SEC(".maps");

/* Takes a token. Several CPUs may take the last one at the same time: a lock would cost more than
 * that. */
static __always_inline int fw_bucket_take(struct fw_bucket *b, const struct fw_rate *l)
{
	__u64 now = bpf_ktime_get_ns(), due = b->due; /* the coarse clock is too coarse */

	if ((__s64)(due - now) > (__s64)l->burst) {
		b->due = now + l->burst; /* of a limit that the rule had before */
		return 0;
	}
	if ((__s64)(due - now) > (__s64)(l->burst - l->interval))
		return 0;
	if ((__s64)(due - now) < 0)
		b->due = now;
	__sync_fetch_and_add(&b->due, l->interval);
	return 1;
}

/* The limit of the rule found, see fw_classify, and its decision. */
static __always_inline const struct fw_limit *fw_limit_of(struct fw_flow *f, __u32 *decision)
{
	struct fw_rule4 *r4 = f->family == 4 ? fw_rule4_at(f, f->best) : NULL;
	struct fw_rule6 *r6 = f->family == 4 ? NULL : fw_rule6_at(f, f->best);
	__u32 index = f->half * limits_half;

	*decision = 0;
	if (r4) {
		index += r4->l4.limit;
		*decision = r4->l4.decision;
	} else if (r6) {
		index += r6->l4.limit;
		*decision = r6->l4.decision;
	}
	return bpf_map_lookup_elem(&limits, &index);
}

/* The decision of a rule with a limit. Connections that other rules allowed are not limited: they
 * are evaluated again immediately. Packets that fw_admit() denies although the rule allows them
 * take no tokens either: these are for connections. Global, so that the verifier checks it once. */
__noinline __u32 fw_limit_apply(__u32 decision)
{
	__u32 slot = decision & 0xffff, same;
	struct fw_flow *f = fw_flow();
	struct fw_bucket *b = bpf_map_lookup_elem(&buckets, &slot);
	const struct fw_limit *l;

	if (!f || !b)
		return FW_DENY(slot, KERB_DROP_RATE);
	if (f->stale != FW_UNKNOWN)
		return decision & ~FW_LIMIT;
	if (state && !(decision & FW_DENIED) && fw_is_midstream(f, f->now))
		return decision & ~FW_LIMIT;
	l = fw_limit_of(f, &same);
	if (l && fw_bucket_take(b, &l->packets))
		return decision & ~FW_LIMIT;
	__sync_fetch_and_add(&b->limited, 1);
	return FW_DENY(slot, KERB_DROP_RATE) | (decision & FW_LOG);
}

#endif
