// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore
/* Counts UDP packets to some ports, and drops them if configured to. */
#include <stdbool.h>
#include <kerb/module.h>

KERB_LICENSE("Dual BSD/GPL");

KERB_CONFIG(bool, drop, false);

#define BLOCKED_PORT KERB_DROP_MODULE_FIRST /* dropReasons in kerb.yaml */

/* The watched ports, in host byte order. maps.config in kerb.yaml: new and empty for each
 * configuration, sized and filled by control.py. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u16);
	__type(value, __u8);
} ports SEC(".maps");

/* Packets by port. State: it persists across configurations. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u16);
	__type(value, __u64);
} packets SEC(".maps");

static __always_inline void count(__u16 port)
{
	__u64 *n = bpf_map_lookup_elem(&packets, &port), none = 0;

	if (!n) {
		bpf_map_update_elem(&packets, &port, &none, BPF_NOEXIST);
		n = bpf_map_lookup_elem(&packets, &port);
	}
	if (n)
		__sync_fetch_and_add(n, 1);
}

static __always_inline int watch(struct kerb_pkt *pkt)
{
	struct udphdr *udp = kerb_udp(pkt);
	__u16 port;

	if (!udp)
		return KERB_NEXT;
	port = bpf_ntohs(udp->dest);
	if (!bpf_map_lookup_elem(&ports, &port))
		return KERB_NEXT;
	count(port);
	return drop ? kerb_drop(pkt, BLOCKED_PORT) : KERB_NEXT;
}

KERB_EGRESS(pkt)
{
	return watch(pkt);
}

KERB_INGRESS(pkt)
{
	return watch(pkt);
}
