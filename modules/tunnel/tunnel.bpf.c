// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

//go:build ignore

/* Packets between services on different nodes, in UDP. From a service: packets to an address of
 * another node are encapsulated and sent to that node. On the underlay interface: packets from
 * another node are decapsulated and delivered to the service. The manifest attaches the module in
 * no other direction, so that an outer packet is never encapsulated again. */
#define KERB_PARSE_STAGE __noinline /* kerb_reparse: the verifier checks the parser once */
#include "drops.h"
#include "encap.h"
#include "decap.h"

KERB_EGRESS(pkt)
{
	return tun_send(pkt);
}

KERB_INGRESS(pkt)
{
	__u32 mark = kerb_ctx_field(pkt->ctx, mark);

	kerb_forget(pkt);
	if ((mark & TUN_MARK_MASK) == TUN_MARK)
		return tun_send_piece(pkt, mark & ~TUN_MARK_MASK);
	return mode == TUN_MODE_DEVICE ? tun_from_device(pkt) : tun_from_underlay(pkt);
}

KERB_LICENSE("Dual BSD/GPL");
