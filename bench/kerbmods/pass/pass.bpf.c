// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Counts UDP packets over IPv4, or FAMILY, and their bytes, and lets all pass: what the benchmarks
 * call a trivial module. The references do the same by parsing for themselves; this one asks the
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

static __always_inline int count(struct kerb_pkt *pkt)
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
	return count(pkt);
}

KERB_INGRESS(pkt)
{
	return count(pkt);
}

KERB_LICENSE("Dual BSD/GPL");
