// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

//go:build ignore

/* The responder answers UDP requests to the address and port of a listener in the kernel
 * (engine.h). All other packets pass unchanged. control.go fills the maps. */
#include <kerb/module.h>
#include <kerb/scratch.h>
#include "engine.h"

/* Hides from the verifier which path through the parser the packet took: otherwise it would walk
 * this module and the following ones once for each path. */
static __always_inline void rsp_reset_verifier(struct kerb_pkt *pkt, __u64 zero)
{
	kerb_mix(pkt, zero);
	pkt->l4_len ^= zero;
	kerb_reload(pkt);
}

static __always_inline int rsp_port_answer(struct kerb_pkt *pkt, __be16 port)
{
	struct rsp_request r = { .req.pkt = pkt, .half = kerb_tunables_half() };
	struct iphdr *ip4 = kerb_ip4(pkt);
	struct ipv6hdr *ip6 = kerb_ip6(pkt);
	int verdict;

	if (ip4)
		r.listener = rsp_listener_lookup4(pkt, ip4, port, r.half);
	else if (ip6)
		r.listener = rsp_listener_lookup6(pkt, ip6, port, r.half);
	if (!r.listener)
		return rsp_count_unmatched(RSP_OTHER_ADDRESS, KERB_NEXT);
	r.slot = r.listener->slot;
	if (!kerb_scratch_enter())
		return KERB_NEXT; /* the ordinary server answers */
	verdict = rsp_request_answer(&r);
	kerb_scratch_leave();
	return verdict;
}

/* The fast path: packets that are no UDP datagrams to an answered port return here. */
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
	return rsp_port_is_set(p->answered, udp->dest) ? rsp_port_answer(pkt, udp->dest)
						       : KERB_NEXT;
}

KERB_LICENSE("Dual BSD/GPL");
