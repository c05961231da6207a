/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The answer to a packet that does not fit: ICMP "fragmentation needed" (RFC 1191), ICMPv6 "packet too big" (RFC 4443). */
#ifndef TUN_TOOBIG_H
#define TUN_TOOBIG_H

#include "header.h"

#define TUN_QUOTE 128 /* bytes of the packet that are sent back: every IP header with options, and more of what follows than the rules ask for */

struct tun_icmp {
	__u8 type, code;
	__sum16 check;
	__be32 mtu;
};

struct tun_too_big4 {
	struct iphdr ip;
	struct tun_icmp icmp;
};

struct tun_too_big6 {
	struct ipv6hdr ip;
	struct tun_icmp icmp;
};

/* Sum of the quoted bytes, which the packet has been cut to. -1 if they are not there. */
static __always_inline __s64 tun_sum_quote(struct kerb_pkt *pkt)
{
	void *quote = kerb_at(pkt, ETH_HLEN, TUN_QUOTE);

	return quote ? bpf_csum_diff(0, 0, quote, TUN_QUOTE, 0) : -1;
}

static __always_inline int tun_answer(struct kerb_pkt *pkt, const void *header, __u32 len)
{
	int rc = kerb_adjust_room(pkt, len, 0) ?: kerb_store_bytes(pkt, ETH_HLEN, header, len) ?: kerb_swap_macs(pkt);

	return rc ? kerb_drop(pkt, KERB_DROP_TOO_BIG) : KERB_REPLY;
}

static __always_inline int tun_answer4(struct kerb_pkt *pkt, const struct tun_flow *f, __u32 mtu)
{
	struct tun_too_big4 a = {
		.ip = {.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_ICMP, .tot_len = bpf_htons(sizeof(a) + TUN_QUOTE),
		       .saddr = f->dst.in6_u.u6_addr32[3], .daddr = f->src.in6_u.u6_addr32[3]},
		.icmp = {.type = 3, .code = 4, .mtu = bpf_htonl(mtu)},
	};
	__u32 *ip = (__u32 *)&a.ip;
	__s64 sum = tun_sum_quote(pkt);

	if (sum < 0)
		return kerb_drop(pkt, KERB_DROP_TOO_BIG);
	a.ip.check = ~kerb_fold((__u64)ip[0] + ip[1] + ip[2] + ip[3] + ip[4]);
	a.icmp.check = ~kerb_fold((__u64)sum + bpf_htons(3 << 8 | 4) + a.icmp.mtu);
	return tun_answer(pkt, &a, sizeof(a));
}

static __always_inline int tun_answer6(struct kerb_pkt *pkt, const struct tun_flow *f, __u32 mtu)
{
	struct tun_too_big6 a = {
		.ip = {.version = 6, .hop_limit = 64, .nexthdr = IPPROTO_ICMPV6, .saddr = f->dst, .daddr = f->src,
		       .payload_len = bpf_htons(sizeof(a.icmp) + TUN_QUOTE)},
		.icmp = {.type = 2, .mtu = bpf_htonl(mtu)},
	};
	__s64 quote = tun_sum_quote(pkt);
	__u64 sum = (__u64)quote + bpf_htons(2 << 8) + a.icmp.mtu + a.ip.payload_len + bpf_htons(IPPROTO_ICMPV6);

	if (quote < 0)
		return kerb_drop(pkt, KERB_DROP_TOO_BIG);
#pragma unroll
	for (int i = 0; i < 4; i++)
		sum += (__u64)f->src.in6_u.u6_addr32[i] + f->dst.in6_u.u6_addr32[i];
	a.icmp.check = ~kerb_fold(sum);
	return tun_answer(pkt, &a, sizeof(a));
}

/* Answers unless that is forbidden: to later fragments (RFC 1812, 4.3.2.7). A sender without DF is told too: Linux then makes
 * its packets smaller, which costs less than fragments of tunnelled packets would. */
static __always_inline int tun_too_big(struct kerb_pkt *pkt, const struct tun_flow *f, __u32 mtu)
{
	if (pkt->flags & KERB_F_FRAG_LATER)
		return kerb_drop(pkt, KERB_DROP_TOO_BIG);
	if (bpf_skb_change_tail(pkt->ctx, ETH_HLEN + TUN_QUOTE, 0))
		return kerb_drop(pkt, KERB_DROP_TOO_BIG);
	kerb_reload(pkt);
	return pkt->family == 4 ? tun_answer4(pkt, f, mtu) : tun_answer6(pkt, f, mtu);
}

#endif
