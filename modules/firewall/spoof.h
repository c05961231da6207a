/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Anti-spoofing: a service may send only from its own addresses, in the Ethernet, IP and ARP
 * headers and in neighbour discovery. spoof.go writes the addresses of each service. */
#ifndef FW_SPOOF_H
#define FW_SPOOF_H

#include "flow.h"
#include "link.h"

KERB_CONFIG(_Bool, anti_spoof, 0);

#define FW_OWN		16384
#define FW_ND_OPTIONS	4

/* One lookup checks the MAC and the IP address together. Family 0 means the MAC alone, and an IP
 * address of zeros that of an interface without one. A key with nothing but the interface exempts
 * it: an interface that is not a service has no addresses. */
struct fw_own_key {
	__u32 ifindex;
	__u8 mac[ETH_ALEN];
	__u16 family; /* 4, 6, 0 */
	__be32 addr[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FW_OWN);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct fw_own_key);
	__type(value, __u32);
} own SEC(".maps");

struct fw_arp {
	__be16 hw_type, proto_type;
	__u8 hw_len, proto_len;
	__be16 op;
	__u8 sender_mac[ETH_ALEN], sender[4], target_mac[ETH_ALEN], target[4];
};

struct fw_nd_option {
	__u8 type, len; /* in units of 8 bytes */
	__u8 mac[ETH_ALEN];
};

static __always_inline int fw_owns(const struct fw_own_key *k)
{
	return bpf_map_lookup_elem(&own, k) != 0;
}

static __always_inline int fw_is_own_mac(const struct fw_own_key *k, const __u8 *mac)
{
	return !__builtin_memcmp(k->mac, mac, ETH_ALEN);
}

/* Only DHCP requests and IGMP come from 0.0.0.0. */
static __always_inline int fw_own4(const struct kerb_pkt *pkt, struct fw_own_key *k)
{
	struct iphdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));
	struct udphdr *udp;

	if (!ip)
		return 0;
	k->addr[0] = ip->saddr;
	if (ip->saddr || pkt->proto == IPPROTO_IGMP)
		return 1;
	udp = kerb_at(pkt, pkt->l4, sizeof(*udp));
	return pkt->proto == IPPROTO_UDP && pkt->flags & KERB_F_L4 && udp &&
	       udp->dest == bpf_htons(DHCP4_SERVER);
}

static __always_inline int fw_own_arp(const struct kerb_pkt *pkt, struct fw_own_key *k)
{
	struct fw_arp *arp = kerb_at(pkt, pkt->l3, sizeof(*arp));

	if (!arp || arp->hw_type != bpf_htons(1) || arp->proto_type != bpf_htons(ETH_P_IP) ||
	    arp->hw_len != ETH_ALEN || arp->proto_len != 4 || !fw_is_own_mac(k, arp->sender_mac))
		return 0;
	k->family = 4;
	__builtin_memcpy(k->addr, arp->sender, sizeof(arp->sender));
	return 1;
}

/* The link-layer addresses that a neighbour discovery message announces; its options start at
 * off. */
static __always_inline int fw_own_nd_options(const struct kerb_pkt *pkt, const struct fw_own_key *k,
					     __u64 off)
{
	__u64 end = pkt->l4 + pkt->l4_len;

#pragma unroll
	for (int i = 0; i < FW_ND_OPTIONS; i++) {
		struct fw_nd_option *option;

		if (off >= end)
			return 1;
		option = kerb_at(pkt, off, sizeof(*option));
		if (!option || !option->len)
			return 0;
		if ((option->type == 1 || option->type == 2) && !fw_is_own_mac(k, option->mac))
			return 0;
		off += option->len * 8;
	}
	return off >= end;
}

/* A neighbour advertisement is about an own address, and so is a solicitation from no address
 * (duplicate address detection). k holds the source address and takes the other one. */
static __always_inline int fw_own_nd(const struct kerb_pkt *pkt, struct fw_own_key *k)
{
	struct fw_icmp *icmp = kerb_at(pkt, pkt->l4, sizeof(*icmp));
	__be32 *target = kerb_at(pkt, pkt->l4 + sizeof(*icmp), 16);
	__u8 type;

	if (!icmp)
		return 0;
	type = icmp->type;
	if (type == ND_ROUTER_SOLICIT)
		return fw_own_nd_options(pkt, k, pkt->l4 + sizeof(*icmp));
	if (type != ND_NEIGHBOR_SOLICIT && type != ND_NEIGHBOR_ADVERT)
		return 1;
	if (!target || !fw_own_nd_options(pkt, k, pkt->l4 + sizeof(*icmp) + 16))
		return 0;
	if (type == ND_NEIGHBOR_SOLICIT && (k->addr[0] | k->addr[1] | k->addr[2] | k->addr[3]))
		return 1;
	if (!fw_owns(k))
		return 0;
	__builtin_memcpy(k->addr, target, 16);
	return 1;
}

/* Only neighbour discovery and multicast listener discovery come from the unspecified address. */
static __always_inline int fw_own6(const struct kerb_pkt *pkt, struct fw_own_key *k)
{
	struct ipv6hdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));

	if (!ip)
		return 0;
	__builtin_memcpy(k->addr, &ip->saddr, 16);
	if (pkt->proto == IPPROTO_ICMPV6 && pkt->flags & KERB_F_L4)
		return fw_own_nd(pkt, k);
	return (k->addr[0] | k->addr[1] | k->addr[2] | k->addr[3]) != 0;
}

/* Returns whether all sender addresses in the frame belong to the service. */
static __noinline int fw_is_own(const struct kerb_pkt *pkt)
{
	struct fw_own_key k = {.ifindex = pkt->ifindex, .family = pkt->family};
	struct fw_own_key exempt = {.ifindex = pkt->ifindex};
	struct ethhdr *eth = kerb_at(pkt, 0, sizeof(*eth));
	int ok = 1;

	if (!eth)
		return 0;
	__builtin_memcpy(k.mac, eth->h_source, ETH_ALEN);
	if (pkt->family == 4)
		ok = fw_own4(pkt, &k);
	else if (pkt->family == 6)
		ok = fw_own6(pkt, &k);
	else if (pkt->eth_type == ETH_P_ARP)
		ok = fw_own_arp(pkt, &k);
	return (ok && fw_owns(&k)) || fw_owns(&exempt);
}

#endif
