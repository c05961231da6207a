// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* A module that needs of the chain linker what the headers may need: a subprogram (kerb_reparse),
 * relocations against the running kernel (kerb_now), and maps. Packets to the service leave their
 * tunnel (IPIP), packets from it enter it. */
#include <kerb/module.h>

struct event {
	__u64 time;
	__u32 hash, outcome;
};

KERB_EVENTS(events, 4096);
KERB_CONFIG(__u32, seed, 0);

static __always_inline int tell(struct kerb_pkt *pkt)
{
	struct event e = { .time = kerb_now(),
			   .hash = kerb_hash(pkt, seed),
			   .outcome = pkt->outcome };

	return kerb_event(&events, &e, sizeof(e));
}

KERB_EGRESS(pkt)
{
	struct iphdr outer = {.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_IPIP};
	struct iphdr *ip = kerb_ip4(pkt);

	if (!ip)
		return KERB_NEXT;
	outer.saddr = ip->saddr;
	outer.daddr = ip->daddr;
	outer.tot_len = bpf_htons(pkt->len - (__u32)pkt->l3 + sizeof(outer));
	outer.check = kerb_csum(0, (__u64)bpf_htons(0x4500) + outer.tot_len +
					   bpf_htons(64 << 8 | IPPROTO_IPIP) + outer.saddr +
					   outer.daddr + 0xffff);
	if (kerb_adjust_room(pkt, sizeof(outer), 0) ||
	    kerb_store_bytes(pkt, pkt->l3, &outer, sizeof(outer)) || kerb_reparse(pkt))
		return kerb_drop(pkt, KERB_DROP_NO_MEMORY);
	tell(pkt);
	return KERB_NEXT;
}

KERB_INGRESS(pkt)
{
	if (pkt->family != 4 || pkt->proto != IPPROTO_IPIP)
		return KERB_NEXT;
	if (kerb_adjust_room(pkt, -(int)sizeof(struct iphdr), 0) || kerb_reparse(pkt))
		return kerb_drop(pkt, KERB_DROP_MALFORMED);
	tell(pkt);
	return KERB_NEXT;
}

KERB_LICENSE("Dual BSD/GPL");
