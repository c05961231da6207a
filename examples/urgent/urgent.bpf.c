// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Sensors send their value, a number of 4 bytes in network byte order, over UDP and IPv4. Labels
 * packets whose value differs from the sensor's previous one by more than `jump`, so that a class
 * of intercept delivers them before all others. */
#include <kerb/deliver.h>

KERB_LICENSE("Dual BSD/GPL");

KERB_CONFIG(__u16, port, 9000);
KERB_CONFIG(__u32, jump, 100);

#define URGENT 1 /* match: {label: 1} */

/* The last value by source address. When it is full, the least recently used sensor is evicted. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __be32);
	__type(value, __u32);
} last SEC(".maps");

/* Returns whether the value has jumped; the first value of a sensor has not. */
static __always_inline int urgent_is_jump(__be32 sensor, __u32 value)
{
	__u32 *before = bpf_map_lookup_elem(&last, &sensor), old = before ? *before : value;

	bpf_map_update_elem(&last, &sensor, &value, BPF_ANY);
	return (value > old ? value - old : old - value) > jump;
}

KERB_INGRESS(pkt)
{
	struct udphdr *udp = kerb_udp(pkt);
	struct iphdr *ip = kerb_ip4(pkt);
	__be32 value;

	if (!ip || !udp || udp->dest != bpf_htons(port))
		return KERB_NEXT;
	if (kerb_load_bytes(pkt, kerb_payload(pkt), &value, sizeof(value)))
		return KERB_NEXT;
	return urgent_is_jump(ip->saddr, bpf_ntohl(value)) ? kerb_deliver(pkt, URGENT) : KERB_NEXT;
}
