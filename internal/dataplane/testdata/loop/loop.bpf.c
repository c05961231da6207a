// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Loops for as long as chance wants: the verifier must refuse it, after a sequence of 8193
 * jumps. */
#include <kerb/module.h>

KERB_EGRESS(pkt)
{
	__u32 x = pkt->len;

	while (x) {
		x = x * 3 + 1;
		if (x & 4)
			x ^= bpf_get_prandom_u32();
	}
	return KERB_NEXT;
}

KERB_LICENSE("Dual BSD/GPL");
