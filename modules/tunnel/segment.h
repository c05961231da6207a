/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Sizes: the path MTU to a node, and the maximum segment size in TCP handshakes. */
#ifndef TUN_SEGMENT_H
#define TUN_SEGMENT_H

#include "header.h"

#define TUN_TCP_LEN    20
#define TUN_TCPOPT_NOP 1
#define TUN_TCPOPT_MSS 2
#define TUN_TCPOPTS    20 /* searched: the option to find comes early */

/* Bytes of the IP packet, without the frame's padding. */
static __always_inline __u32 tun_length(const struct kerb_pkt *pkt)
{
	return (__u32)(pkt->l4 - pkt->l3) + pkt->l4_len;
}

/* Bytes of the largest packet on the wire: of a segment, if the kernel or the card will segment the
 * packet. */
static __always_inline __u32 tun_wire_length(const struct kerb_pkt *pkt)
{
	__u32 gso = kerb_ctx_field(pkt->ctx, gso_size);

	return gso ? kerb_payload(pkt) - (__u32)pkt->l3 + gso : tun_length(pkt);
}

/* The largest inner packet on the path to a node. The tunnel device adds its own overhead. */
static __always_inline __u32 tun_mtu(const struct tun_node *n)
{
	int ip6 = n->addr.in6_u.u6_addr32[2] != TUN_MAPPED || n->addr.in6_u.u6_addr32[0] ||
		  n->addr.in6_u.u6_addr32[1];

	return mode == TUN_MODE_DEVICE ? n->mtu : n->mtu - TUN_OVERHEAD(ip6);
}

/* Lowers the maximum segment size in a SYN (RFC 9293, 3.7.1) to fit mtu. Malformed options end the
 * search. */
static __noinline int tun_mss_clamp(struct kerb_pkt *pkt, __u32 mtu)
{
	struct tcphdr *tcp = kerb_tcp(pkt);
	__u32 most = mtu - TUN_TCP_LEN -
		     (pkt->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	__u32 off = TUN_TCP_LEN, end;

	if (!tcp || !tcp->syn)
		return 0;
	end = tcp->doff * 4;
#pragma clang loop unroll(disable)
	for (int i = 0; i < TUN_TCPOPTS; i++) {
		__u8 *option = kerb_at(pkt, pkt->l4 + off, 4);
		__u32 mss, odd = off & 1, step;
		__be16 value;

		if (off + 4 > end || !option || !option[0])
			return 0;
		step = option[0] == TUN_TCPOPT_NOP ? 1 : option[1];
		if (option[0] == TUN_TCPOPT_MSS && step == 4) {
			mss = option[2] << 8 | option[3];
			if (mss <= most)
				return 0;
			option[2] = most >> 8;
			option[3] = most;
			/* The checksum sums 16-bit words; at an odd offset the bytes are swapped in
			 * them. */
			value = odd ? __builtin_bswap16(bpf_htons(most)) : bpf_htons(most);
			return kerb_fix_l4(pkt,
					   kerb_diff16(odd ? __builtin_bswap16(bpf_htons(mss))
							   : bpf_htons(mss),
						       value),
					   0);
		}
		if (option[0] != TUN_TCPOPT_NOP && step < 2)
			return 0;
		off = (off + step) & 63;
	}
	return 0;
}

#endif
