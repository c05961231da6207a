// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Drops what a set has, which it looks up as kerb/set.h did before there was the map kerb_table:
 * in kerb_elements alone. */
#include <kerb/module.h>

struct kerb_set_element {
	__u32 set;
	__be32 word[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 524288);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct kerb_set_element);
	__type(value, __u32);
} kerb_elements SEC(".maps");

KERB_INGRESS(pkt)
{
	struct kerb_set_element element = {};
	struct iphdr *ip4 = kerb_ip4(pkt);

	if (!ip4)
		return KERB_NEXT;
	element.word[0] = ip4->saddr;
	if (!bpf_map_lookup_elem(&kerb_elements, &element))
		return KERB_NEXT;
	return kerb_drop(pkt, KERB_DROP_POLICY);
}

KERB_LICENSE("Dual BSD/GPL");
