/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Underlay interfaces whose packets begin with the IP header: WireGuard, XFRM interfaces. The
 * parser, which expects Ethernet, cannot parse them. Packets of the tunnel get an Ethernet header,
 * and are parsed again; all others stay unchanged. */
#ifndef TUN_RAW_H
#define TUN_RAW_H

#include "icmp.h"

/* MAC addresses for packets that had no link header. Locally administered, and of no interface. */
#define TUN_NO_MAC { 2, 0, 0, 0, 0, 1 }

static __always_inline int tun_is_raw(const struct kerb_pkt *pkt)
{
	__u32 zero = 0;
	struct tun_raw *raw = bpf_map_lookup_elem(&raw_links, &zero);

	if (!raw || !raw->ifindex[0])
		return 0;
#pragma unroll
	for (int i = 0; i < TUN_RAW; i++) {
		if (raw->ifindex[i] == pkt->ifindex)
			return 1;
	}
	return 0;
}

static __always_inline int tun_load_net(const struct kerb_pkt *pkt, __u32 off, void *to, __u32 len)
{
	return bpf_skb_load_bytes_relative(pkt->ctx, off, to, len, BPF_HDR_START_NET);
}

/* The kernel provides the offset of the IP header. An XFRM interface keeps a link header before it,
 * that of the decrypted packet. */
static __always_inline int tun_has_link_header(const struct kerb_pkt *pkt)
{
	__u64 link[2] = {}, net[2] = {};

	if (bpf_skb_load_bytes_relative(pkt->ctx, 0, link, 2 * ETH_ALEN, BPF_HDR_START_MAC) ||
	    tun_load_net(pkt, 0, net, 2 * ETH_ALEN))
		return 0;
	return link[0] != net[0] || link[1] != net[1];
}

/* Inserts an Ethernet header before the packet if it has none; the packet has to be parsed again
 * then. Returns 0 if that fails. */
static __noinline int tun_add_link_header(struct kerb_pkt *pkt)
{
	struct ethhdr eth = {.h_dest = TUN_NO_MAC, .h_source = TUN_NO_MAC};

	if (!tun_is_raw(pkt))
		return 1;
	eth.h_proto = kerb_ctx_field(pkt->ctx, protocol);
	if (!tun_has_link_header(pkt) && bpf_skb_change_head(pkt->ctx, ETH_HLEN, 0)) {
		kerb_reload(pkt); /* a call that fails also invalidates the pointers */
		return 0;
	}
	pkt->len = kerb_ctx_field(pkt->ctx, len);
	bpf_skb_pull_data(pkt->ctx, pkt->len < TUN_PULL ? pkt->len : TUN_PULL);
	return !kerb_store_bytes(pkt, 0, &eth, sizeof(eth));
}

/* Returns whether a packet without link header is UDP to our port at one of our addresses. Reports
 * ICMP errors. */
static __noinline int tun_is_for_us(const struct kerb_pkt *pkt, __u32 half)
{
	__u32 off = sizeof(struct ipv6hdr), proto;
	struct in6_addr dst;
	struct ipv6hdr ip6;
	struct udphdr udp;
	struct iphdr ip;

	if (kerb_ctx_field(pkt->ctx, protocol) == bpf_htons(ETH_P_IP)) {
		if (tun_load_net(pkt, 0, &ip, sizeof(ip)))
			return 0;
		dst = tun_mapped(ip.daddr);
		off = ip.ihl * 4;
		proto = ip.protocol;
	} else {
		if (kerb_ctx_field(pkt->ctx, protocol) != bpf_htons(ETH_P_IPV6) ||
		    tun_load_net(pkt, 0, &ip6, sizeof(ip6)))
			return 0;
		dst = ip6.daddr;
		proto = ip6.nexthdr;
	}
	if (proto == IPPROTO_ICMP || proto == IPPROTO_ICMPV6)
		tun_report_icmp(pkt, off);
	return proto == IPPROTO_UDP && !tun_load_net(pkt, off, &udp, sizeof(udp)) &&
	       udp.dest == bpf_htons(tun_port(half)) && bpf_map_lookup_elem(&own, &dst);
}

#endif
