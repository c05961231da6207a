// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Reads the packet without a bounds check: the verifier must reject it. */
#include <kerb/module.h>

KERB_EGRESS(pkt)
{
	__u8 *byte = pkt->data;

	return byte[200] == 7 ? KERB_DROP : KERB_NEXT;
}

KERB_LICENSE("Dual BSD/GPL");
