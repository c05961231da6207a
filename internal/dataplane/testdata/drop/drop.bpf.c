// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Drops UDP packets to a configured port. */
#include <kerb/module.h>

KERB_CONFIG(__u16, port, 9);

static __noinline int judge(struct kerb_pkt *pkt)
{
	struct udphdr *udp = kerb_udp(pkt);

	kerb_note(pkt, 1, udp ? bpf_ntohs(udp->dest) : ~0ULL);
	if (udp && udp->dest == bpf_htons(port))
		return kerb_drop_noted(pkt, KERB_DROP_POLICY, 1, bpf_ntohs(udp->dest));
	return KERB_NEXT;
}

KERB_EGRESS(pkt)
{
	return judge(pkt);
}

KERB_INGRESS(pkt)
{
	return judge(pkt);
}

KERB_LICENSE("Dual BSD/GPL");
