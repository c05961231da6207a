// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Counts IPv4 UDP packets, and drops UDP packets to a configured port: asks what kind each is. */
#include <kerb/module.h>

KERB_CONFIG(__u16, port, 9);

struct counts {
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} totals SEC(".maps");

static __always_inline int judge(struct kerb_pkt *pkt)
{
	struct udphdr *udp;
	__u32 zero = 0;
	struct counts *c;

	if (pkt->proto != IPPROTO_UDP || !(pkt->flags & KERB_F_L4))
		return KERB_NEXT;
	if (pkt->family == 4) {
		c = bpf_map_lookup_elem(&totals, &zero);
		if (c) {
			c->packets++;
			c->bytes += pkt->len;
		}
	}
	udp = kerb_udp(pkt);
	if (udp && udp->dest == bpf_htons(port))
		return kerb_drop(pkt, KERB_DROP_POLICY);
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
