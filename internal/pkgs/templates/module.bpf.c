// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore
/* Counts UDP packets to one port, and drops them if configured to. */
#include <stdbool.h>
#include <kerb/module.h>

KERB_LICENSE("Dual BSD/GPL");

KERB_CONFIG(__u16, port, 9999);
KERB_CONFIG(bool, drop, false);

#define BLOCKED_PORT KERB_DROP_MODULE_FIRST /* dropReasons in kerb.yaml */

enum direction { FROM_SERVICE, TO_SERVICE, DIRECTIONS };

/* Packets to the port, by direction. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DIRECTIONS);
	__type(key, __u32);
	__type(value, __u64);
} packets SEC(".maps");

static __always_inline int watch(struct kerb_pkt *pkt, __u32 direction)
{
	struct udphdr *udp = kerb_udp(pkt);
	__u64 *count;

	if (!udp || udp->dest != bpf_htons(port))
		return KERB_NEXT;
	count = bpf_map_lookup_elem(&packets, &direction);
	if (count)
		*count += 1;
	return drop ? kerb_drop(pkt, BLOCKED_PORT) : KERB_NEXT;
}

KERB_EGRESS(pkt)
{
	return watch(pkt, FROM_SERVICE);
}

KERB_INGRESS(pkt)
{
	return watch(pkt, TO_SERVICE);
}
