// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Returns whatever its config says, valid or not. */
#include <kerb/module.h>

KERB_CONFIG(__u32, verdict, 0);
KERB_CONFIG(__u32, ifindex, 0);
KERB_CONFIG(_Bool, deferred, 0);
KERB_CONFIG(__u32, reason, 0); /* of a drop, valid or not */

static __always_inline int decide(struct kerb_pkt *pkt)
{
	if (verdict == KERB_DROP)
		pkt->reason = reason;
	if (verdict != KERB_REDIRECT)
		return verdict;
	return deferred ? kerb_redirect_deferred(pkt, ifindex, 0) : kerb_redirect(pkt, ifindex, 0);
}

KERB_EGRESS(pkt)
{
	return decide(pkt);
}

KERB_INGRESS(pkt)
{
	return decide(pkt);
}

KERB_LICENSE("Dual BSD/GPL");
