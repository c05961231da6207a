/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Answering a request that is a listener's. It has to pass every check (check.h) and the rate
 * limits (limit.h), is given to the application of its listener (respond.h, apps/), and its packet
 * becomes the reply (reply.h). */
#ifndef RSP_ENGINE_H
#define RSP_ENGINE_H

#include "respond.h"
#include "check.h"
#include "limit.h"
#include "reply.h"
#include "apps_gen.h"

static __always_inline int rsp_has_port(const __u32 *bits, __be16 port)
{
	__u32 n = bpf_ntohs(port);

	return bits[n >> 5] >> (n & 31) & 1;
}

/* On TC the payload may lie in pages, and one packet may stand for several. */
static __always_inline int rsp_is_linear(struct kerb_pkt *pkt, __u32 end)
{
#ifdef KERB_HOOK_XDP
	return pkt->data + pkt->len <= pkt->data_end;
#else
	if (kerb_ctx_field(pkt->ctx, gso_size))
		return 0;
	if (pkt->data + (end & 0x7ff) <= pkt->data_end)
		return 1;
	bpf_skb_pull_data(pkt->ctx, end);
	kerb_reload(pkt);
	return pkt->data + (end & 0x7ff) <= pkt->data_end;
#endif
}

/* Options are taken out of the packet; on TC that needs a link header that the kernel has no tag to
 * look for in. */
static __always_inline int rsp_options_ok(const struct kerb_pkt *pkt)
{
#ifndef KERB_HOOK_XDP
	if (rsp_offset(pkt->l3) != ETH_HLEN)
		return 0;
#endif
	return pkt->family == 4 ? rsp_ip4_options_harmless(pkt->ctx, pkt->l3, pkt->l4)
				: rsp_ip6_extensions_harmless(pkt->ctx, pkt->l3, pkt->l4);
}

static __always_inline int rsp_is_group(const struct ethhdr *eth)
{
	return (eth->h_dest[0] | eth->h_source[0]) & 1;
}

/* Everything that has to be right before the application is asked: RSP_ANSWERED, or the check that
 * failed. */
static __always_inline int rsp_request_check(struct rsp_request *r, struct rsp_ends *e)
{
	__u32 half = r->half;
	struct rsp_ports *p = bpf_map_lookup_elem(&ports, &half);
	struct kerb_pkt *pkt = r->pkt;
	struct ethhdr *eth = kerb_at(pkt, 0, sizeof(*eth));
	struct udphdr *udp = kerb_at(pkt, pkt->l4, sizeof(*udp));
	struct iphdr *ip4 = kerb_ip4(pkt);
	struct ipv6hdr *ip6 = kerb_ip6(pkt);

	if (!p || !eth || !udp)
		return RSP_MALFORMED;
	if (pkt->flags & KERB_F_FRAG_FIRST)
		return RSP_FRAGMENT;
	if (rsp_is_group(eth))
		return RSP_LINK_ADDRESS;
	if (ip4)
		rsp_ends4(pkt, ip4, e);
	else if (ip6)
		rsp_ends6(pkt, ip6, e);
	else
		return RSP_MALFORMED;
	if (e->odd || e->same || e->kind)
		return RSP_SOURCE_ADDRESS;
	if (rsp_has_port(p->not_sources, udp->source))
		return RSP_SOURCE_PORT;
	r->len = bpf_ntohs(udp->len) - sizeof(*udp); /* a jumbogram's is too long */
	if (r->len < r->listener->min_request || r->len > r->listener->max_request ||
	    r->len > RSP_MAX_REQUEST)
		return RSP_SIZE;
	if (pkt->flags & (KERB_F_OPTIONS | KERB_F_EXT) ||
	    (ip6 && pkt->l4 != pkt->l3 + sizeof(*ip6))) {
		if (!rsp_options_ok(pkt))
			return RSP_OPTIONS;
	}
	if (!rsp_is_linear(pkt, r->payload + r->len))
		return RSP_NOT_LINEAR;
	ip4 = kerb_ip4(pkt);
	if (ip4 && !rsp_ip4_checksum_right(pkt, ip4))
		return RSP_HEADER_CHECKSUM;
	udp = kerb_at(pkt, pkt->l4, sizeof(*udp));
	if (!udp || rsp_sum(r, r->len))
		return RSP_NOT_LINEAR;
	return rsp_checksum_right(r, e, udp) ? RSP_ANSWERED : RSP_CHECKSUM;
}

/* Takes the options out and gives the frame the reply's length. 0, an outcome to pass with, or -1
 * when it is too late. */
static __always_inline int rsp_make_room(struct rsp_request *r)
{
	struct kerb_pkt *pkt = r->pkt;
	__u32 len = rsp_frame_len(r);

	if (len != pkt->len && kerb_set_len(pkt, len))
		return RSP_NO_ROOM;
	if (pkt->l4 == pkt->l3 + rsp_ip_len(pkt))
		return 0;
	if (kerb_remove_options(pkt))
		return -1;
	r->payload = pkt->l4 + sizeof(struct udphdr);
	return 0;
}

static __always_inline int rsp_answer(struct rsp_request *r, const struct rsp_ends *e)
{
	__u64 before = r->sum;
	int room = rsp_make_room(r);

	if (room > 0)
		return rsp_count(r->slot, room, KERB_NEXT);
	if (room || rsp_app_answer(r) || rsp_reply_finish(r, e, before)) {
		rsp_count(r->slot, RSP_LOST, 0);
		return kerb_drop(r->pkt, KERB_DROP_NO_MEMORY);
	}
	return rsp_count(r->slot, r->challenge ? RSP_CHALLENGED : RSP_ANSWERED, KERB_REPLY);
}

static __always_inline int rsp_consume(struct rsp_request *r)
{
	if (rsp_app_answer(r)) {
		rsp_count(r->slot, RSP_LOST, 0);
		return kerb_drop(r->pkt, KERB_DROP_NO_MEMORY);
	}
	rsp_count(r->slot, RSP_CONSUMED, 0);
	return kerb_drop(r->pkt, RSP_DROP_CONSUMED);
}

static __always_inline int rsp_respond(struct rsp_request *r)
{
	struct rsp_ends e;
	int decision, outcome = rsp_request_check(r, &e);

	if (outcome)
		return rsp_count(r->slot, outcome, KERB_NEXT);
	decision = rsp_app_check(r);
	if (decision != RSP_CONSUME && decision != RSP_REPLY)
		return rsp_count(r->slot, RSP_APP + (r->why & (RSP_APP_REASONS - 1)), KERB_NEXT);
	if (decision == RSP_REPLY && !rsp_fits(r))
		return rsp_count(r->slot, RSP_REPLY_SIZE, KERB_NEXT);
	if (decision == RSP_REPLY && rsp_amplifies(r))
		return rsp_count(r->slot, RSP_UNPROVEN, KERB_NEXT);
	outcome = rsp_limit(r, &e);
	if (outcome)
		return rsp_count(r->slot, outcome,
				 r->listener->drop ? kerb_drop(r->pkt, KERB_DROP_RATE) : KERB_NEXT);
	return decision == RSP_REPLY ? rsp_answer(r, &e) : rsp_consume(r);
}

#endif
