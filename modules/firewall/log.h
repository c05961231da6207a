/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets that match rules with log, as events for the control plane. Each rule has a token bucket
 * per interface: neither a flood on another interface nor one that matches another rule suppresses
 * a report. Packets that the bucket does not report are counted. */
#ifndef FW_LOG_H
#define FW_LOG_H

#include "limit.h"

#define FW_LOG_WORDS 11 /* addresses, protocol, ports: see FW_DIM_PROTO */

/* A packet that a rule matched. */
struct fw_report {
	__u64 time;	  /* monotonic clock */
	__u64 suppressed; /* packets of this rule and interface since the report before */
	__u32 word[FW_LOG_WORDS];
	__u32 slot;	/* of the rule */
	__u32 decision; /* on the packet, without flags */
	__u32 ifindex;
	__u32 len; /* of the frame */
	__u8 dir, family, tcp, rejected;
};

/* Not KERB_EVENTS, whose map of counters would be one more of the 64 maps that a chain may have:
 * lost events count as suppressed. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} reports SEC(".maps");

/* The bucket of a rule on an interface, among FW_LOG_WAYS candidates: its own, otherwise a full
 * one, which equals a new one. If all are in use, two rules share one. If two CPUs choose at the
 * same time, two rules may get the same bucket; one of them finds another one with its next
 * packet. */
static __always_inline struct fw_bucket *fw_log_bucket(__u32 ifindex, __u32 slot)
{
	__u32 hash = (ifindex * 0x9e3779b1 ^ slot) * 0x85ebca6b,
	      first = FW_SLOTS + (hash >> 20 & (FW_LOG_BUCKETS - FW_LOG_WAYS)), index;
	__u64 owner = (__u64)ifindex << 32 | slot, now = bpf_ktime_get_ns();
	struct fw_bucket *b, *free = NULL;

#pragma unroll
	for (int i = 0; i < FW_LOG_WAYS; i++) {
		index = first + i;
		b = bpf_map_lookup_elem(&buckets, &index);
		if (!b || b->owner == owner)
			return b;
		if (!free || (__s64)(free->due - now) > 0)
			free = b;
	}
	if ((__s64)(free->due - now) <= 0) {
		free->limited = 0;
		free->owner = owner;
	}
	return free;
}

static __always_inline void fw_report_fill(struct fw_report *r, const struct fw_flow *f)
{
	r->time = bpf_ktime_get_ns();
#pragma unroll
	for (int i = 0; i < FW_LOG_WORDS; i++)
		r->word[i] = f->word[i];
	r->ifindex = f->key4.ifindex;
	r->len = f->len;
	r->dir = f->dir;
	r->family = f->family;
	r->tcp = f->tcp;
}

/* Reports the packet in the scratch map, which matches the rule f->best, if the limit permits.
 * Replies to packets of the other side are not reported, because no rule has matched them, nor are
 * tracked connections that are still allowed. Global, so that the verifier checks it once. */
__noinline int fw_log(__u32 decision)
{
	struct fw_flow *f = fw_flow();
	const struct fw_limit *l;
	struct fw_bucket *b, *of;
	struct fw_report *r;
	__u32 rule, slot;

	if (!f || f->stale == FW_STALE_ANSWER || (f->stale == FW_STALE && !(decision & FW_DENIED)))
		return 0;
	l = fw_limit_of(f, &rule);
	slot = rule & 0xffff;
	b = fw_log_bucket(f->key4.ifindex, slot);
	of = bpf_map_lookup_elem(&buckets, &slot);
	if (!l || !b || !of)
		return 0;
	r = fw_bucket_take(b, &l->reports) ? bpf_ringbuf_reserve(&reports, sizeof(*r), 0) : NULL;
	if (!r) {
		__sync_fetch_and_add(&b->limited, 1);
		__sync_fetch_and_add(&of->suppressed, 1);
		return 0;
	}
	fw_report_fill(r, f);
	r->slot = slot;
	r->decision = decision & (0xffff | FW_DENIED);
	r->rejected = !!(decision & FW_REJECT);
	r->suppressed = b->limited;
	b->limited = 0;
	bpf_ringbuf_submit(r, 0);
	return 0;
}

#endif
