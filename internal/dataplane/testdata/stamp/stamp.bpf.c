// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Marks the payload of UDP packets to one port: the swap benchmark sees by it how many generations
 * met a packet. Payload, little endian: u64 sequence, u32 stamps, u32 generation. The checksum is
 * left to offload or zero. */
#include <kerb/module.h>

KERB_CONFIG(__u16, port, 7007);
KERB_CONFIG(__u32, generation, 0);

struct payload {
	__u64 sequence;
	__u32 stamps;
	__u32 generation;
};

static __always_inline int stamp(struct kerb_pkt *pkt)
{
	struct udphdr *udp = kerb_udp(pkt);
	struct payload *p = kerb_at(pkt, pkt->l4 + sizeof(*udp), sizeof(*p));

	if (udp && p && udp->dest == bpf_htons(port)) {
		p->stamps++;
		p->generation = generation;
	}
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
