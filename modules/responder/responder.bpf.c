// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

//go:build ignore

/* The responder answers UDP requests in the kernel: those for the address and port of a listener
 * (engine.h). All other packets pass untouched. control.go fills the maps. */
#include <kerb/module.h>
#include <kerb/scratch.h>
#include "engine.h"

/* Else the verifier would follow all of this, and the modules behind, once for each way through the
 * parser. */
static __always_inline void rsp_reset_verifier(struct kerb_pkt *pkt, __u64 zero)
{
	kerb_mix(pkt, zero);
	pkt->l4_len ^= zero;
	kerb_reload(pkt);
}

static __always_inline int rsp_respond_at(struct kerb_pkt *pkt, __be16 port)
{
	struct rsp_request r = { .req.pkt = pkt, .half = kerb_tunables_half() };
	struct iphdr *ip4 = kerb_ip4(pkt);
	struct ipv6hdr *ip6 = kerb_ip6(pkt);
	int verdict;

	if (ip4)
		r.listener = rsp_find4(pkt, ip4, port, r.half);
	else if (ip6)
		r.listener = rsp_find6(pkt, ip6, port, r.half);
	if (!r.listener)
		return rsp_count_unmatched(RSP_OTHER_ADDRESS, KERB_NEXT);
	r.slot = r.listener->slot;
	if (!kerb_scratch_enter())
		return KERB_NEXT; /* its server answers */
	verdict = rsp_respond(&r);
	kerb_scratch_leave();
	return verdict;
}

/* Packets that are no datagram for an answered port leave here. */
KERB_INGRESS(pkt)
{
	__u32 zero = 0;
	struct rsp_ports *p = bpf_map_lookup_elem(&ports, &zero);
	struct udphdr *udp;

	if (!p)
		return KERB_NEXT;
	rsp_reset_verifier(pkt, kerb_reread(p->zero));
	if (pkt->outcome > KERB_PARSE_NOT_IP)
		return rsp_count_unmatched(RSP_MALFORMED, KERB_NEXT);
	if (pkt->proto != IPPROTO_UDP)
		return KERB_NEXT;
	udp = kerb_udp(pkt);
	if (!udp)
		return pkt->flags & KERB_F_FRAG_LATER
			       ? rsp_count_unmatched(RSP_LATER_FRAGMENT, KERB_NEXT)
			       : KERB_NEXT;
	return rsp_has_port(p->answered, udp->dest) ? rsp_respond_at(pkt, udp->dest) : KERB_NEXT;
}

KERB_LICENSE("Dual BSD/GPL");
