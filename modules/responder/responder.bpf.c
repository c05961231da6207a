// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

//go:build ignore

/* The responder answers UDP requests in the kernel. A request that passes every check (check.h) and the rate limits
 * (limit.h) is given to the application of its listener (respond.h, apps/), and its packet becomes the reply (reply.h).
 * All other packets go on untouched. control.go fills the maps. */
#include <kerb/module.h>
#include "respond.h"
#include "check.h"
#include "limit.h"
#include "reply.h"
#include "apps_gen.h"

/* Mixes a zero that the verifier does not know into what the parser found: else it would follow all of this, and the modules
 * behind, once for each way through the parser. */
static __always_inline void blur(struct kerb_pkt *pkt, __u64 zero)
{
	pkt->l3 ^= zero;
	pkt->l4 ^= zero;
	pkt->family ^= zero;
	pkt->proto ^= zero;
	pkt->flags ^= zero;
	pkt->l4_len ^= zero;
	pkt->outcome ^= zero;
	kerb_reload(pkt);
}

static __always_inline int has_port(const __u32 *bits, __be16 port)
{
	__u32 n = bpf_ntohs(port);

	return bits[n >> 5] >> (n & 31) & 1;
}

/* On TC the payload may lie in pages, and one packet may stand for several. */
static __always_inline int is_linear(struct kerb_pkt *pkt, __u32 end)
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

/* Options are taken out of the packet; on TC that needs a link header that the kernel has no tag to look for in. */
static __always_inline int options_harmless(const struct kerb_pkt *pkt)
{
#ifndef KERB_HOOK_XDP
	if (rsp_blurred(pkt->l3) != ETH_HLEN)
		return 0;
#endif
	return pkt->family == 4 ? rsp_ip4_options_harmless(pkt->ctx, pkt->l3, pkt->l4)
				: rsp_ip6_extensions_harmless(pkt->ctx, pkt->l3, pkt->l4);
}

static __always_inline int is_group(const struct ethhdr *eth)
{
	return (eth->h_dest[0] | eth->h_source[0]) & 1;
}

/* Everything that has to be right before the application is asked: RSP_ANSWERED, or the check that failed. */
static __always_inline int examine(struct rsp_request *r, struct rsp_ends *e, const struct rsp_ports *p)
{
	struct kerb_pkt *pkt = r->pkt;
	struct ethhdr *eth = kerb_at(pkt, 0, sizeof(*eth));
	struct udphdr *udp = kerb_at(pkt, pkt->l4, sizeof(*udp));
	struct iphdr *ip4 = kerb_ip4(pkt);
	struct ipv6hdr *ip6 = kerb_ip6(pkt);

	if (!eth || !udp)
		return RSP_MALFORMED;
	if (pkt->flags & KERB_F_FRAG_FIRST)
		return RSP_FRAGMENT;
	if (is_group(eth))
		return RSP_LINK_ADDRESS;
	if (ip4)
		rsp_ends4(pkt, ip4, e);
	else if (ip6)
		rsp_ends6(pkt, ip6, e);
	else
		return RSP_MALFORMED;
	if (e->odd || e->same || e->kind)
		return RSP_SOURCE_ADDRESS;
	if (has_port(p->not_sources, udp->source))
		return RSP_SOURCE_PORT;
	r->len = bpf_ntohs(udp->len) - sizeof(*udp); /* a jumbogram's is too long */
	if (r->len < r->listener->min_request || r->len > r->listener->max_request || r->len > RSP_MAX_REQUEST)
		return RSP_SIZE;
	if (pkt->flags & (KERB_F_OPTIONS | KERB_F_EXT) || (ip6 && pkt->l4 != pkt->l3 + sizeof(*ip6))) {
		if (!options_harmless(pkt))
			return RSP_OPTIONS;
	}
	if (!is_linear(pkt, r->payload + r->len))
		return RSP_NOT_LINEAR;
	ip4 = kerb_ip4(pkt);
	if (ip4 && !rsp_ip4_checksum_right(pkt, ip4))
		return RSP_HEADER_CHECKSUM;
	udp = kerb_at(pkt, pkt->l4, sizeof(*udp));
	if (!udp || rsp_sum(r, r->len))
		return RSP_NOT_LINEAR;
	return rsp_checksum_right(r, e, udp) ? RSP_ANSWERED : RSP_CHECKSUM;
}

/* Takes the options out and gives the frame the reply's length. 0, an outcome to pass with, or -1 when it is too late. */
static __always_inline int make_room(struct rsp_request *r)
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

static __always_inline int answer(struct rsp_request *r, const struct rsp_ends *e)
{
	__u64 before = r->sum;
	int room = make_room(r);

	if (room > 0)
		return rsp_count(r->slot, room, KERB_NEXT);
	if (room || rsp_app_answer(r) || rsp_finish(r, e, before)) {
		rsp_count(r->slot, RSP_LOST, 0);
		return kerb_drop(r->pkt, KERB_DROP_NO_MEMORY);
	}
	return rsp_count(r->slot, RSP_ANSWERED, KERB_REPLY);
}

static __always_inline int consume(struct rsp_request *r)
{
	if (rsp_app_answer(r)) {
		rsp_count(r->slot, RSP_LOST, 0);
		return kerb_drop(r->pkt, KERB_DROP_NO_MEMORY);
	}
	rsp_count(r->slot, RSP_CONSUMED, 0);
	return kerb_drop(r->pkt, RSP_DROP_CONSUMED);
}

static __always_inline int respond(struct rsp_request *r, const struct rsp_ports *p)
{
	struct rsp_ends e;
	int decision, outcome = examine(r, &e, p);

	if (outcome)
		return rsp_count(r->slot, outcome, KERB_NEXT);
	decision = rsp_app_check(r);
	if (decision != RSP_CONSUME && decision != RSP_REPLY)
		return rsp_count(r->slot, RSP_APP + (r->why & (RSP_APP_REASONS - 1)), KERB_NEXT);
	if (decision == RSP_REPLY && !rsp_fits(r))
		return rsp_count(r->slot, RSP_REPLY_SIZE, KERB_NEXT);
	outcome = rsp_limit(r, &e);
	if (outcome)
		return rsp_count(r->slot, outcome, r->listener->drop ? kerb_drop(r->pkt, KERB_DROP_RATE) : KERB_NEXT);
	return decision == RSP_REPLY ? answer(r, &e) : consume(r);
}

/* Packets that are no datagram for an answered port leave here. */
KERB_INGRESS(pkt)
{
	struct rsp_request r = {.pkt = pkt};
	__u32 zero = 0;
	struct rsp_ports *p = bpf_map_lookup_elem(&ports, &zero);
	struct iphdr *ip4;
	struct ipv6hdr *ip6;
	struct udphdr *udp;

	if (!p)
		return KERB_NEXT;
	blur(pkt, *(const volatile __u64 *)&p->zero);
	if (pkt->outcome > KERB_PARSE_NOT_IP)
		return rsp_count(0, RSP_MALFORMED, KERB_NEXT);
	if (pkt->proto != IPPROTO_UDP)
		return KERB_NEXT;
	udp = kerb_udp(pkt);
	if (!udp)
		return pkt->flags & KERB_F_FRAG_LATER ? rsp_count(0, RSP_LATER_FRAGMENT, KERB_NEXT) : KERB_NEXT;
	if (!has_port(p->answered, udp->dest))
		return KERB_NEXT;
	ip4 = kerb_ip4(pkt);
	ip6 = kerb_ip6(pkt);
	if (ip4)
		r.listener = rsp_find4(pkt, ip4, udp->dest);
	else if (ip6)
		r.listener = rsp_find6(pkt, ip6, udp->dest);
	if (!r.listener)
		return rsp_count(0, RSP_OTHER_ADDRESS, KERB_NEXT);
	r.slot = r.listener->slot;
	r.payload = pkt->l4 + sizeof(*udp);
	return respond(&r, p);
}

KERB_LICENSE("Dual BSD/GPL");
