// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Writes the time into UDP packets to one port: the intercept benchmark has T1 of the same packets
 * in a socket's program, too. The payload is struct message of bench/intercept/src/message.h; the
 * checksum is left to offload or zero. */
#include <kerb/module.h>

KERB_CONFIG(__u16, port, 8080);

enum { ARRIVED = 24 }; /* offset in struct message */

static __always_inline int stamp(struct kerb_pkt *pkt)
{
	struct udphdr *udp = kerb_udp(pkt);
	__u64 *arrived = kerb_at(pkt, pkt->l4 + sizeof(*udp) + ARRIVED, sizeof(*arrived));

	if (udp && arrived && udp->dest == bpf_htons(port))
		*arrived = bpf_ktime_get_ns();
	return KERB_NEXT;
}

KERB_EGRESS(pkt)
{
	return stamp(pkt);
}

KERB_INGRESS(pkt)
{
	return stamp(pkt);
}

KERB_LICENSE("Dual BSD/GPL");
