/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Link-level policy: the EtherTypes that pass, and the control protocols that hosts on a link need:
 * IPv6 neighbour and router discovery, multicast group membership, DHCP. A service has a host's
 * role in them: it never acts as a router, a multicast querier or a DHCP server (RFC 6105). */
#ifndef FW_LINK_H
#define FW_LINK_H

#include "flow.h"

KERB_CONFIG(_Bool, allow_non_ip, 0); /* every EtherType */
KERB_CONFIG(__u64, ether_types0, 0x0806); /* the ones that pass otherwise, four in each word */
KERB_CONFIG(__u64, ether_types1, 0);
KERB_CONFIG(_Bool, link_control, 1); /* otherwise the rules decide on control protocols */

#define FW_MIN_ETHER_TYPE 0x600 /* smaller values are the length of an IEEE 802.3 frame */

#define ND_ROUTER_SOLICIT  133 /* RFC 4861 */
#define ND_ROUTER_ADVERT   134
#define ND_NEIGHBOR_SOLICIT 135
#define ND_NEIGHBOR_ADVERT 136
#define ND_REDIRECT	   137
#define MLD_QUERY	   130 /* RFC 2710 */
#define MLD_REPORT	   131
#define MLD_DONE	   132
#define MLD2_REPORT	   143 /* RFC 3810 */

#define IGMP_QUERY     0x11 /* RFC 3376 */
#define IGMP1_REPORT   0x12
#define IGMP2_REPORT   0x16
#define IGMP_LEAVE     0x17
#define IGMP3_REPORT   0x22

#define DHCP4_SERVER 67
#define DHCP4_CLIENT 68
#define DHCP6_CLIENT 546
#define DHCP6_SERVER 547

/* What link_control decides on a packet. */
enum fw_link {
	FW_LINK_NONE = 0, /* nothing: the rules decide */
	FW_LINK_PASS = 1,
	FW_LINK_DROP = 2,
};

static __always_inline int fw_ether_type_listed(__u32 type)
{
	if (type < FW_MIN_ETHER_TYPE)
		return 0;
#pragma unroll
	for (int i = 0; i < 4; i++)
		if ((ether_types0 >> 16 * i & 0xffff) == type ||
		    (ether_types1 >> 16 * i & 0xffff) == type)
			return 1;
	return 0;
}

/* 01:80:c2:00:00:00 to 0f: spanning tree, pause, LACP, 802.1X, LLDP. Neighbouring bridges exchange
 * them, never a service and other hosts. */
static __always_inline int fw_is_reserved_group(const struct kerb_pkt *pkt)
{
	__be16 *to = kerb_at(pkt, 0, ETH_ALEN);

	return to && to[0] == bpf_htons(0x0180) && to[1] == bpf_htons(0xc200) &&
	       (to[2] & bpf_htons(0xfff0)) == 0;
}

/* Neighbour discovery: immediately after the IPv6 header, and never in fragments, so that no device
 * on the path misreads it (RFC 6980, RFC 7113). Hop limit 255 proves that no router has forwarded
 * it. */
static __always_inline int fw_link_nd(const struct kerb_pkt *pkt, const struct ipv6hdr *ip,
				      const struct fw_icmp *icmp, __u32 dir)
{
	if (pkt->l4 != pkt->l3 + sizeof(*ip) || pkt->flags & KERB_F_FRAG)
		return FW_LINK_DROP;
	if (dir == FW_EGRESS && (icmp->type == ND_ROUTER_ADVERT || icmp->type == ND_REDIRECT))
		return FW_LINK_DROP;
	return !icmp->code && ip->hop_limit == 255 ? FW_LINK_PASS : FW_LINK_NONE;
}

/* Multicast listener discovery: hop limit 1, from a link-local address or none, with no extension
 * header but the hop-by-hop header that carries the router alert. */
static __always_inline int fw_link_mld(const struct kerb_pkt *pkt, const struct ipv6hdr *ip,
				       const struct fw_icmp *icmp, __u32 dir)
{
	__u64 ext = pkt->l4 - pkt->l3 - sizeof(*ip);

	if (icmp->code || ip->hop_limit != 1 || pkt->flags & KERB_F_FRAG)
		return FW_LINK_NONE;
	if (ext && (ext != 8 || ip->nexthdr != IPPROTO_HOPOPTS))
		return FW_LINK_NONE;
	if ((ip->saddr.s6_addr32[0] & bpf_htonl(0xffc00000)) != bpf_htonl(0xfe800000) &&
	    (ip->saddr.s6_addr32[0] | ip->saddr.s6_addr32[1] | ip->saddr.s6_addr32[2] |
	     ip->saddr.s6_addr32[3]))
		return FW_LINK_NONE;
	return dir == FW_EGRESS && icmp->type == MLD_QUERY ? FW_LINK_DROP : FW_LINK_PASS;
}

static __always_inline int fw_link6(const struct kerb_pkt *pkt, __u32 dir)
{
	struct ipv6hdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));
	struct fw_icmp *icmp = kerb_at(pkt, pkt->l4, sizeof(*icmp));

	if (!ip || !icmp || !(pkt->flags & KERB_F_L4))
		return FW_LINK_NONE;
	if (icmp->type >= ND_ROUTER_SOLICIT && icmp->type <= ND_REDIRECT)
		return fw_link_nd(pkt, ip, icmp, dir);
	if ((icmp->type >= MLD_QUERY && icmp->type <= MLD_DONE) || icmp->type == MLD2_REPORT)
		return fw_link_mld(pkt, ip, icmp, dir);
	return FW_LINK_NONE;
}

/* IGMP with TTL 1 to a multicast group. */
static __always_inline int fw_link_igmp(const struct kerb_pkt *pkt, __u32 dir)
{
	struct iphdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));
	__u8 *type = kerb_at(pkt, pkt->l4, 8);

	if (!ip || !type || pkt->l4_len < 8 || pkt->flags & KERB_F_FRAG || ip->ttl != 1)
		return FW_LINK_NONE;
	if ((ip->daddr & bpf_htonl(0xf0000000)) != bpf_htonl(0xe0000000))
		return FW_LINK_NONE;
	if (*type == IGMP_QUERY)
		return dir == FW_EGRESS ? FW_LINK_DROP : FW_LINK_PASS;
	return *type == IGMP1_REPORT || *type == IGMP2_REPORT || *type == IGMP_LEAVE ||
			       *type == IGMP3_REPORT
		       ? FW_LINK_PASS
		       : FW_LINK_NONE;
}

static __always_inline int fw_link(const struct kerb_pkt *pkt, __u32 dir)
{
	if (pkt->family == 6 && pkt->proto == IPPROTO_ICMPV6)
		return fw_link6(pkt, dir);
	if (pkt->family == 4 && pkt->proto == IPPROTO_IGMP)
		return fw_link_igmp(pkt, dir);
	return FW_LINK_NONE;
}

/* DHCP. A client has no address yet, or queries all servers, so that the addresses of the answer
 * match no tracked connection. After a request that the rules allow, servers may answer the
 * interface for a while. */
#define FW_DHCP_NS 60000000000ULL

struct fw_dhcp_key {
	__u32 ifindex, family;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096); /* two per interface at most */
	__type(key, struct fw_dhcp_key);
	__type(value, __u64); /* when the last request was allowed */
} dhcp_requests SEC(".maps");

/* Returns whether a UDP packet, whose ports are in f, is sent from one DHCP port to another. */
static __always_inline int fw_is_dhcp(const struct fw_flow *f, __u32 port4, __u32 to4, __u32 port6,
				      __u32 to6)
{
	if (f->proto != IPPROTO_UDP)
		return 0;
	return f->family == 4 ? f->word[FW_DIM_SPORT] == port4 && f->word[FW_DIM_DPORT] == to4 :
				f->word[FW_DIM_SPORT] == port6 && f->word[FW_DIM_DPORT] == to6;
}

static __always_inline int fw_is_dhcp_request(const struct fw_flow *f)
{
	return fw_is_dhcp(f, DHCP4_CLIENT, DHCP4_SERVER, DHCP6_CLIENT, DHCP6_SERVER);
}

static __always_inline int fw_is_dhcp_reply(const struct fw_flow *f)
{
	return fw_is_dhcp(f, DHCP4_SERVER, DHCP4_CLIENT, DHCP6_SERVER, DHCP6_CLIENT);
}

static __always_inline void fw_dhcp_requested(const struct kerb_pkt *pkt, __u64 now)
{
	struct fw_dhcp_key k = {.ifindex = pkt->ifindex, .family = pkt->family};

	bpf_map_update_elem(&dhcp_requests, &k, &now, BPF_ANY);
}

static __always_inline int fw_dhcp_expected(const struct kerb_pkt *pkt, __u64 now)
{
	struct fw_dhcp_key k = {.ifindex = pkt->ifindex, .family = pkt->family};
	__u64 *asked = bpf_map_lookup_elem(&dhcp_requests, &k);

	return asked && (__s64)(now - *asked) <= (__s64)FW_DHCP_NS;
}

#endif
