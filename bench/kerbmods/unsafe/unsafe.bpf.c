// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Reads the packet without looking whether the bytes are there: the verifier must refuse it. */
#include <kerb/module.h>

KERB_EGRESS(pkt)
{
	__u8 *byte = pkt->data;

	return byte[200] == 7 ? KERB_DROP : KERB_NEXT;
}

KERB_LICENSE("Dual BSD/GPL");
