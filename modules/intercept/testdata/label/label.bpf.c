// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Labels packets as they say: of the three bytes at `at` in the frame, if the first is 1, the others
 * are the label, in network byte order. */
#include <kerb/deliver.h>

KERB_CONFIG(__u16, at, 0);

static __always_inline int label(struct kerb_pkt *pkt)
{
	__u8 *p = kerb_at(pkt, at, 3);

	if (!p || *p != 1)
		return KERB_NEXT;
	return kerb_deliver(pkt, p[1] << 8 | p[2]);
}

KERB_EGRESS(pkt)
{
	return label(pkt);
}

KERB_INGRESS(pkt)
{
	return label(pkt);
}

KERB_LICENSE("Dual BSD/GPL");
