// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* One trivial module, shared by all references: it parses the packet itself, and counts packets and
 * bytes of UDP over IPv4, or in other programs over IPv6, per CPU. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct counter {
	__u64 packets;
	__u64 bytes;
};

/* parse_udp reports whether the frame is unfragmented IPv4 UDP. */
static __always_inline int parse_udp(void *data, void *end)
{
	struct ethhdr *eth = data;
	if ((void *)(eth + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP))
		return 0;
	struct iphdr *ip = (void *)(eth + 1);
	if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
		return 0;
	if (ip->protocol != IPPROTO_UDP || (ip->frag_off & bpf_htons(0x1fff)))
		return 0;
	struct udphdr *udp = (void *)ip + ip->ihl * 4;
	return (void *)(udp + 1) <= end;
}

/* parse_udp6 reports whether the frame is IPv6 UDP without extension headers. */
static __always_inline int parse_udp6(void *data, void *end)
{
	struct ethhdr *eth = data;
	if ((void *)(eth + 1) > end || eth->h_proto != bpf_htons(ETH_P_IPV6))
		return 0;
	struct ipv6hdr *ip = (void *)(eth + 1);
	if ((void *)(ip + 1) > end || ip->version != 6 || ip->nexthdr != IPPROTO_UDP)
		return 0;
	struct udphdr *udp = (void *)(ip + 1);
	return (void *)(udp + 1) <= end;
}

static __always_inline void count_packet(void *map, __u64 bytes)
{
	__u32 key = 0;
	struct counter *c = bpf_map_lookup_elem(map, &key);
	if (!c)
		return;
	c->packets++;
	c->bytes += bytes;
}
