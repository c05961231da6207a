/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The one parser: Ethernet, up to two VLAN tags, IPv4 with options (RFC 791), IPv6 with extension headers (RFC 8200),
 * fragments marked, TCP, UDP, ICMP and ICMPv6 headers bounded. It runs once per packet at the head of a chain. */
#ifndef KERB_PARSE_H
#define KERB_PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <kerb/types.h>

#ifndef IPPROTO_MH
#define IPPROTO_MH 135
#endif
#define KERB_VLAN_DEPTH	  2
#define KERB_IP_FRAG_LATER 0x1fff
#define KERB_IP_FRAG_ANY   0x3fff /* more-fragments bit or an offset */

struct kerb_vlan_hdr {
	__be16 tci;
	__be16 eth_type;
};

struct kerb_ext_hdr {
	__u8 next;
	__u8 len; /* in 8-byte units after the first 8; for AH in 4-byte units minus 2 */
	__be16 frag_off;
	__be32 id;
};

/* Pointer to len bytes at offset off of the frame, or NULL when the linear part ends before. The mask is for the verifier:
 * it bounds off whatever became of the value on the way. */
static __always_inline void *kerb_at(const struct kerb_pkt *pkt, __u64 off, __u64 len)
{
	void *p = pkt->data + (off & KERB_MAX_HDRS);

	return p + len > pkt->data_end ? 0 : p;
}

static __always_inline int kerb_parse_l2(struct kerb_pkt *pkt)
{
	struct ethhdr *eth = kerb_at(pkt, 0, sizeof(*eth));
	__u64 off = sizeof(*eth);
	__be16 type;

	if (!eth)
		return KERB_PARSE_SHORT_L2;
	type = eth->h_proto;
	if (type != bpf_htons(ETH_P_IP) && type != bpf_htons(ETH_P_IPV6)) {
#pragma unroll
		for (int i = 0; i < KERB_VLAN_DEPTH; i++) {
			struct kerb_vlan_hdr *vlan;

			if (type != bpf_htons(ETH_P_8021Q) && type != bpf_htons(ETH_P_8021AD))
				break;
			vlan = kerb_at(pkt, off, sizeof(*vlan));
			if (!vlan)
				return KERB_PARSE_SHORT_L2;
			if (!pkt->vlan)
				pkt->vlan = bpf_ntohs(vlan->tci);
			type = vlan->eth_type;
			off += sizeof(*vlan);
		}
		if (type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD))
			return KERB_PARSE_VLAN_DEPTH;
	}
	pkt->eth_type = bpf_ntohs(type);
	pkt->l3 = off;
	return KERB_PARSE_OK;
}

/* Bounds the transport header. avail is the datagram's length from l4 on. */
static __always_inline int kerb_parse_l4(struct kerb_pkt *pkt, __u64 off, __u32 avail)
{
	pkt->l4 = off;
	pkt->l4_len = avail;
	if (pkt->flags & KERB_F_FRAG_LATER)
		return KERB_PARSE_OK;
	if (pkt->proto == IPPROTO_TCP) {
		struct tcphdr *tcp = kerb_at(pkt, off, sizeof(*tcp));

		if (!tcp || avail < sizeof(*tcp))
			return KERB_PARSE_SHORT_L4;
		if (tcp->doff < 5)
			return KERB_PARSE_BAD_L4;
	} else if (pkt->proto == IPPROTO_UDP) {
		struct udphdr *udp = kerb_at(pkt, off, sizeof(*udp));

		if (!udp || avail < sizeof(*udp))
			return KERB_PARSE_SHORT_L4;
		/* 0 is a jumbogram (RFC 2675) or an oversized GSO packet: the IP length is what counts then. */
		if (udp->len && bpf_ntohs(udp->len) < sizeof(*udp))
			return KERB_PARSE_BAD_L4;
	} else if ((pkt->proto == IPPROTO_ICMP && pkt->family == 4) || (pkt->proto == IPPROTO_ICMPV6 && pkt->family == 6)) {
		if (avail < 8 || !kerb_at(pkt, off, 8))
			return KERB_PARSE_SHORT_L4;
	} else {
		return KERB_PARSE_OK;
	}
	pkt->flags |= KERB_F_L4;
	return KERB_PARSE_OK;
}

static __always_inline int kerb_parse_ip4(struct kerb_pkt *pkt)
{
	struct iphdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));
	__u32 hlen, total, avail;
	__u16 frag;

	if (!ip)
		return KERB_PARSE_SHORT_L3;
	if (ip->version != 4)
		return KERB_PARSE_BAD_VERSION;
	hlen = ip->ihl * 4;
	if (hlen < sizeof(*ip))
		return KERB_PARSE_BAD_IHL;
	avail = pkt->len - (__u32)pkt->l3;
	total = bpf_ntohs(ip->tot_len);
	if (!total && avail > 0xffff) /* BIG TCP (Linux 6.3): the field cannot hold the length */
		total = avail;
	if (total < hlen || total > avail)
		return KERB_PARSE_BAD_LENGTH;
	pkt->family = 4;
	pkt->proto = ip->protocol;
	frag = bpf_ntohs(ip->frag_off);
	if (frag & KERB_IP_FRAG_ANY)
		pkt->flags |= frag & KERB_IP_FRAG_LATER ? KERB_F_FRAG_LATER : KERB_F_FRAG_FIRST;
	if (hlen > sizeof(*ip)) {
		pkt->flags |= KERB_F_OPTIONS;
		if (!kerb_at(pkt, pkt->l3 + sizeof(*ip), hlen - sizeof(*ip)))
			return KERB_PARSE_SHORT_L3;
	}
	return kerb_parse_l4(pkt, pkt->l3 + hlen, total - hlen);
}

/* Length of the extension header at ext, or 0 when next is a transport protocol. */
static __always_inline __u32 kerb_ext_len(__u8 next, const struct kerb_ext_hdr *ext)
{
	switch (next) {
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_DSTOPTS:
	case IPPROTO_MH:
		return (ext->len + 1) * 8;
	case IPPROTO_FRAGMENT:
		return 8;
	case IPPROTO_AH:
		return (ext->len + 2) * 4;
	}
	return 0;
}

static __always_inline int kerb_is_ext(__u8 next)
{
	return next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_DSTOPTS || next == IPPROTO_MH ||
	       next == IPPROTO_FRAGMENT || next == IPPROTO_AH;
}

/* Follows the extension headers; *off and *avail move to the transport header. */
static __always_inline int kerb_parse_ext(struct kerb_pkt *pkt, __u64 *off, __u32 *avail)
{
	for (int i = 0; i < KERB_MAX_EXT; i++) {
		struct kerb_ext_hdr *ext;
		__u32 len;

		ext = kerb_at(pkt, *off, sizeof(*ext));
		if (!ext || *avail < sizeof(*ext))
			return KERB_PARSE_SHORT_L3;
		len = kerb_ext_len(pkt->proto, ext);
		if (len > *avail || *off + len > KERB_MAX_HDRS)
			return len > *avail ? KERB_PARSE_BAD_LENGTH : KERB_PARSE_EXT_DEPTH;
		if (pkt->proto == IPPROTO_FRAGMENT) {
			__u16 frag = bpf_ntohs(ext->frag_off);

			if (frag & 0xfff8)
				pkt->flags |= KERB_F_FRAG_LATER;
			else if (frag & 1)
				pkt->flags |= KERB_F_FRAG_FIRST;
		} else {
			pkt->flags |= KERB_F_EXT;
		}
		pkt->proto = ext->next;
		*off += len;
		*avail -= len;
		if (pkt->flags & KERB_F_FRAG_LATER || !kerb_is_ext(pkt->proto))
			return KERB_PARSE_OK;
	}
	return KERB_PARSE_EXT_DEPTH;
}

static __always_inline int kerb_parse_ip6(struct kerb_pkt *pkt)
{
	struct ipv6hdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));
	__u64 off = pkt->l3 + sizeof(*ip);
	__u32 avail, payload;

	if (!ip)
		return KERB_PARSE_SHORT_L3;
	if (ip->version != 6)
		return KERB_PARSE_BAD_VERSION;
	avail = pkt->len - (__u32)off;
	payload = bpf_ntohs(ip->payload_len);
	if (!payload && avail > 0xffff) /* BIG TCP */
		payload = avail;
	if (payload > avail)
		return KERB_PARSE_BAD_LENGTH;
	pkt->family = 6;
	pkt->proto = ip->nexthdr;
	if (kerb_is_ext(pkt->proto)) {
		int rc = kerb_parse_ext(pkt, &off, &payload);

		if (rc)
			return rc;
	}
	return kerb_parse_l4(pkt, off, payload);
}

/* Fills l3, l4, family, proto and flags. data, data_end, len and vlan are set by the caller. */
static __always_inline int kerb_parse(struct kerb_pkt *pkt)
{
	int rc = kerb_parse_l2(pkt);

	if (rc)
		return rc;
	if (pkt->eth_type == ETH_P_IP)
		return kerb_parse_ip4(pkt);
	if (pkt->eth_type == ETH_P_IPV6)
		return kerb_parse_ip6(pkt);
	pkt->l4 = pkt->l3;
	return KERB_PARSE_NOT_IP;
}

#endif
