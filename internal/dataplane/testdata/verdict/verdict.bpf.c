// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Returns whatever its config says, valid or not. */
#include <kerb/module.h>

KERB_CONFIG(__u32, verdict, 0);
KERB_CONFIG(__u32, ifindex, 0);

KERB_EGRESS(pkt)
{
	if (verdict == KERB_REDIRECT)
		return kerb_redirect(pkt, ifindex, 0);
	return verdict;
}

KERB_INGRESS(pkt)
{
	if (verdict == KERB_REDIRECT)
		return kerb_redirect(pkt, ifindex, 0);
	return verdict;
}

KERB_LICENSE("Dual BSD/GPL");
