/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Rate limits: they bound what is sent to a source, whose address may be spoofed. */
#ifndef RSP_LIMIT_H
#define RSP_LIMIT_H

#include "check.h"
#include "reply.h"

KERB_CONFIG(_Bool, limit_sources, 1); /* some listener has such a limit */
KERB_CONFIG(_Bool, limit_total, 1);

#define RSP_WINDOW_SHIFT 27 /* 2^27 ns: 0.134 s */

struct rsp_source {
	__u64 addr;
	union {
		__u64 slot; /* in its lower half */
		struct {
			__u32 zero, family;
		};
	};
};

/* Theoretical arrival time of a source's next request: the generic cell rate algorithm (GCRA).
 * Concurrent requests on two CPUs may count as one. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct rsp_source);
	__type(value, __u64);
} sources SEC(".maps");

/* Requests in the present window. A CPU that starts a new window may lose a concurrent count. */
struct rsp_total {
	__u64 window, used;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RSP_SLOTS);
	__type(key, __u32);
	__type(value, struct rsp_total);
} totals SEC(".maps");

/* Returns whether the reply exceeds the amplification limit, to a source without proof of its
 * address. */
static __always_inline int rsp_reply_amplifies(const struct rsp_request *r)
{
	int amplifies = kerb_reply_amplifies(&r->req, r->req.reply_len, r->listener->amplification);

	return amplifies & !r->proven;
}

/* Returns how many requests a request counts as: n if the reply has n times its bytes, including
 * headers. A source without proof of its address gets listener->amplification times its bytes at
 * most (rsp_reply_amplifies). */
static __always_inline __u64 rsp_rate_weight(const struct rsp_request *r)
{
	__u32 headers = kerb_ip_len(r->req.pkt) + sizeof(struct udphdr), len = r->req.len & 0x7ff;

	return r->req.reply_len <= len
		       ? 1
		       : (headers + r->req.reply_len + headers + len - 1) / (headers + len);
}

static __always_inline int rsp_source_is_over_limit(const struct rsp_request *r, __u64 now)
{
	struct rsp_source key = { .addr = r->req.source };
	const struct rsp_listener *l = r->listener;
	__u64 cost = l->source_cost * rsp_rate_weight(r), next = now + cost, *until;

	key.slot = r->slot;
	kerb_overwritten(key.slot);
	key.family = r->req.pkt->family;
	until = bpf_map_lookup_elem(&sources, &key);
	if (!until) {
		bpf_map_update_elem(&sources, &key, &next, BPF_ANY);
		return 0;
	}
	if (*until > now)
		next = *until + cost;
	if (next - cost + l->source_cost > now + l->source_burst)
		return 1;
	*until = next;
	return 0;
}

static __always_inline int rsp_total_is_over_limit(const struct rsp_request *r, __u64 now)
{
	__u64 window = now >> RSP_WINDOW_SHIFT;
	kerb_key32 slot = r->slot;
	struct rsp_total *t = bpf_map_lookup_elem(&totals, &slot);

	if (!t)
		return 0;
	if (t->window != window) {
		t->window = window;
		t->used = 0;
	}
	if (t->used >= r->listener->total_rate)
		return 1;
	__sync_fetch_and_add(&t->used, 1);
	return 0;
}

/* Returns RSP_ANSWERED, or the limit that the request exceeds. */
static __always_inline int rsp_limits_check(const struct rsp_request *r)
{
	const struct rsp_listener *l = r->listener;
	int sources = limit_sources && l->source_cost, total = limit_total && l->total_rate;
	__u64 now;

	if (!sources && !total)
		return RSP_ANSWERED;
	now = kerb_now();
	if (sources && rsp_source_is_over_limit(r, now))
		return RSP_SOURCE_LIMIT;
	return total && rsp_total_is_over_limit(r, now) ? RSP_TOTAL_LIMIT : RSP_ANSWERED;
}

#endif
