// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The trivial module of the benchmarks: it counts packets and bytes of UDP over IPv4, or FAMILY,
 * and passes all. The references parse the packet themselves; this module reads the parsed
 * context. */
#include <kerb/module.h>

#ifndef FAMILY
#define FAMILY 4
#endif

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

static __always_inline int count_udp(struct kerb_pkt *pkt)
{
	__u32 zero = 0;
	struct counts *c;

	if (pkt->family != FAMILY || pkt->proto != IPPROTO_UDP || !(pkt->flags & KERB_F_L4))
		return KERB_NEXT;
	c = bpf_map_lookup_elem(&totals, &zero);
	if (c) {
		c->packets++;
		c->bytes += pkt->len;
	}
	return KERB_NEXT;
}

KERB_EGRESS(pkt)
{
	return count_udp(pkt);
}

KERB_INGRESS(pkt)
{
	return count_udp(pkt);
}

KERB_LICENSE("Dual BSD/GPL");
