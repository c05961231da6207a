// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Takes its time: the steps depend on each other, so that no CPU does one in less than a
 * nanosecond. */
#include <kerb/module.h>

KERB_CONFIG(__u32, steps, 4000);

static __always_inline int spin(struct kerb_pkt *pkt)
{
	__u64 x = pkt->len;

	for (__u32 i = 0; i < steps; i++) {
		x = (x ^ i) * 0x9e3779b97f4a7c15;
		asm volatile("" : "+r"(x));
	}
	return x ? KERB_NEXT : KERB_DROP; /* a result that nothing needs would not be computed */
}

KERB_EGRESS(pkt)
{
	return spin(pkt);
}

KERB_INGRESS(pkt)
{
	return spin(pkt);
}

KERB_LICENSE("Dual BSD/GPL");
