// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* A module that takes a hop off. */
#include <kerb/module.h>

static __always_inline int hop(struct kerb_pkt *pkt)
{
	return kerb_decrement_ttl(pkt) ? kerb_drop(pkt, KERB_DROP_NO_ROUTE) : KERB_NEXT;
}

KERB_EGRESS(pkt)
{
	return hop(pkt);
}

KERB_INGRESS(pkt)
{
	return hop(pkt);
}

KERB_LICENSE("Dual BSD/GPL");
