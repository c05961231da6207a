// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

//go:build ignore

/* Packets between services on different nodes, in UDP. From a service: what goes to an address of
 * another node is wrapped and sent to that node. On the underlay interface: what comes from another
 * node is unwrapped and handed to the service. The manifest says that no other direction meets this
 * module, so that an outer packet is never wrapped again. */
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
