/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The fast path of the parser (kerb/parse.h): straight-line code for nearly every packet. */
#ifndef KERB_PLAIN_H
#define KERB_PLAIN_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <kerb/types.h>

/* more-fragments bit or an offset */
#define KERB_IP_FRAG_ANY 0x3fff

/* Returns whether the TCP or UDP header at l4, of which 8 bytes are present, fits the frame and the
 * rest of a datagram. */
static __always_inline int kerb_is_plain_l4(const void *l4, const void *end, __u8 proto, __u32 left)
{
	const struct udphdr *udp = l4;
	const __u8 *tcp = l4;
	__u32 len;

	if (proto == IPPROTO_UDP) {
		len = bpf_ntohs(udp->len);
		return len >= sizeof(*udp) && len <= left;
	}
	if (proto != IPPROTO_TCP || l4 + sizeof(struct tcphdr) > end)
		return 0;
	len = (tcp[12] & 0xf0) >> 2;
	return len >= sizeof(struct tcphdr) && len <= left && l4 + len <= end;
}

/* Sets the fields that modules read most, in one write, because the chain's entry reads them in one
 * (internal/dataplane/kinds.go): a load that spans several smaller stores is slow (no store
 * forwarding). */
static __always_inline void kerb_set_kind(struct kerb_pkt *pkt, __u8 family, __u8 proto, __u8 flags,
					  __u8 outcome)
{
#ifdef KERB_FIXED_LAYOUT
	union {
		struct {
			__u8 family, proto, flags, outcome;
		};
		__u32 all;
	} kind = {{family, proto, flags, outcome}};

	_Static_assert(__builtin_offsetof(struct kerb_pkt, outcome) ==
		       __builtin_offsetof(struct kerb_pkt, family) + 3,
		       "read at once");
	*(__u32 *)&pkt->family = kind.all;
#else
	pkt->family = family;
	pkt->proto = proto;
	pkt->flags = flags;
	pkt->outcome = outcome;
#endif
}

/* Parses TCP or UDP directly after a plain Ethernet and IP header; returns 0 for any other packet,
 * and then writes nothing. The caller sets the same fields as for kerb_parse_stages. */
static __always_inline int kerb_parse_plain(struct kerb_pkt *pkt)
{
	void *data = pkt->data, *end = pkt->data_end;
	struct iphdr *ip4 = data + ETH_HLEN;
	struct ipv6hdr *ip6 = data + ETH_HLEN;
	__u32 left, off = ETH_HLEN + sizeof(*ip4);
	__be16 type;
	__u8 proto;

	if (data + off + sizeof(struct udphdr) > end)
		return 0;
	type = *(__be16 *)(data + __builtin_offsetof(struct ethhdr, h_proto));
	if (type == bpf_htons(ETH_P_IP)) {
		left = bpf_ntohs(ip4->tot_len) - sizeof(*ip4);
		proto = ip4->protocol;
		if (*(__u8 *)ip4 != 0x45 || ip4->frag_off & bpf_htons(KERB_IP_FRAG_ANY))
			return 0;
	} else {
		off = ETH_HLEN + sizeof(*ip6);
		if (type != bpf_htons(ETH_P_IPV6) || data + off + sizeof(struct udphdr) > end ||
		    ip6->version != 6)
			return 0;
		left = bpf_ntohs(ip6->payload_len);
		proto = ip6->nexthdr;
	}
	if (left > pkt->len - off || !kerb_is_plain_l4(data + off, end, proto, left))
		return 0;
	pkt->l3 = ETH_HLEN;
	pkt->l4 = off;
	pkt->eth_type = bpf_ntohs(type);
	kerb_set_kind(pkt, type == bpf_htons(ETH_P_IP) ? 4 : 6, proto, KERB_F_L4, KERB_PARSE_OK);
	pkt->l4_len = left;
	return 1;
}

#endif
