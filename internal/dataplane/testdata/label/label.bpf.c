// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Labels every packet, or drops those whose label is not the one that its config says. */
#include <kerb/deliver.h>

KERB_CONFIG(__u16, label, 0); /* 0: examines it */
KERB_CONFIG(__u16, wanted, 0);

static __always_inline int decide(struct kerb_pkt *pkt)
{
	if (label)
		return kerb_deliver(pkt, label);
	return kerb_label(pkt) == wanted ? KERB_NEXT : kerb_drop(pkt, KERB_DROP_POLICY);
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
