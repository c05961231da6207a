/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Classes that are answered by applications of the responder, with all of its checks and limits. */
#ifndef ICPT_ANSWER_H
#define ICPT_ANSWER_H

#include "deliver.h"
#include "../responder/engine.h"

KERB_CONFIG(_Bool, use_answers, 1); /* some class answers or has a fallback */

/* By class; those of half 1 follow those of half 0. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * ICPT_CLASSES);
	__type(key, __u32);
	__type(value, struct rsp_listener);
} answers SEC(".maps");

/* Answers a request. Returns its verdict in bits 0 to 7, and above them the reason of a drop.
 * Global like icpt_classify, so that the verifier checks the applications once, not once per
 * caller. offsets and kind as for that, with the class instead of the direction. */
__attribute__((noinline)) int icpt_reply_create(kerb_ctx *ctx, __u32 offsets, __u32 kind,
						__u32 l4_len, __u32 len)
{
	struct kerb_pkt pkt = ICPT_UNPACK_PKT(ctx, offsets, kind, l4_len, len);
	__u32 half = !!(kind & ICPT_HALF), class = (kind & 0x7f) + half * ICPT_CLASSES;
	struct rsp_request r = { .req.pkt = &pkt, .half = half };
	int verdict;

	r.listener = bpf_map_lookup_elem(&answers, &class);
	if (!r.listener)
		return KERB_NEXT;
	/* otherwise the verifier tracks which values derive from kind, and takes six times as
	 * long */
	kerb_forget(&pkt);
	if (!kerb_udp(&pkt))
		return KERB_NEXT;
	r.slot = r.listener->slot;
	if (!kerb_scratch_enter())
		return KERB_NEXT;
	verdict = rsp_request_answer(&r);
	kerb_scratch_leave();
	return verdict | pkt.reason << 8;
}

/* Returns the present length of the frame. */
static __always_inline __u32 icpt_len(kerb_ctx *ctx)
{
#ifdef KERB_HOOK_XDP
	/* replies are not multi-buffer */
	return kerb_ctx_field(ctx, data_end) - kerb_ctx_field(ctx, data);
#else
	return kerb_ctx_field(ctx, len);
#endif
}

static __always_inline int icpt_reply(struct kerb_pkt *pkt, __u32 class, __u64 *answered)
{
	int verdict = icpt_reply_create(pkt->ctx, ICPT_OFFSETS(pkt), ICPT_KIND(pkt, class),
					pkt->l4_len, pkt->len);

	kerb_reload(pkt);
	if ((verdict & 0xff) == KERB_REPLY) { /* replies have no IP options */
		++*answered;
		pkt->l4 = pkt->l3 +
			  (pkt->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
		pkt->len = icpt_len(pkt->ctx);
	}
	return (verdict & 0xff) == KERB_DROP ? kerb_drop(pkt, verdict >> 8) : verdict & 0xff;
}

#endif
