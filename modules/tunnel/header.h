/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What lies between the outer UDP header and the inner packet; docs/tunnel.md has the picture. In mode oakestra nothing does. */
#ifndef TUN_HEADER_H
#define TUN_HEADER_H

#include "maps.h"

#define TUN_VERSION 1
#define TUN_F_MAC   (1 << 0) /* eight bytes of MAC follow */
#define TUN_F_KNOWN TUN_F_MAC

#define TUN_MODE_KERB	  0
#define TUN_MODE_OAKESTRA 1
#define TUN_MODE_DEVICE	  2

KERB_CONFIG(__u8, mode, TUN_MODE_KERB);
KERB_CONFIG(__u16, port, 7187);
KERB_CONFIG(__u16, network, 0); /* virtual network: packets of others are not ours */
KERB_CONFIG(_Bool, keyed, 0);	/* every packet needs a MAC */
KERB_CONFIG(__u8, send_key, 0); /* id of the key that is sent with */

struct tun_header {
	__u8 version_flags; /* version in the upper four bits */
	__u8 key;	    /* id; 0 without a MAC */
	__be16 network;
};

#define TUN_HEADER_LEN	   (mode == TUN_MODE_OAKESTRA ? 0 : sizeof(struct tun_header) + (keyed ? sizeof(__u64) : 0))
#define TUN_OVERHEAD(ip6) ((ip6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) + sizeof(struct udphdr) + TUN_HEADER_LEN)

/* What is read of the inner packet. The first 44 bytes are what the MAC covers: nothing in them changes when a large TCP or UDP
 * packet is cut into segments (GSO), each of which gets a copy of the header. */
struct tun_flow {
	struct tun_header header;
	__be32 ports; /* source and destination of TCP and UDP, behind extension headers too; 0 in fragments and all other protocols */
	struct in6_addr src, dst;
	__u8 proto; /* what the IP header names, which may be an extension header */
	__u8 zero[3];
	__u8 tos; /* DSCP and ECN; not covered */
} __attribute__((aligned(8)));

#define TUN_MAPPED bpf_htonl(0xffff) /* third word of ::ffff:0:0/96 */

static __always_inline struct in6_addr tun_mapped(__be32 addr)
{
	return (struct in6_addr){.in6_u.u6_addr32 = {0, 0, TUN_MAPPED, addr}};
}

/* Returns 0 if the packet has no addresses. */
static __always_inline int tun_read(const struct kerb_pkt *pkt, struct tun_flow *f)
{
	struct iphdr *ip4 = kerb_ip4(pkt);
	struct ipv6hdr *ip6 = kerb_ip6(pkt);
	__be16 *ports = pkt->flags & KERB_F_FRAG ? 0 : kerb_ports(pkt);

	if (ip4) {
		f->src = tun_mapped(ip4->saddr);
		f->dst = tun_mapped(ip4->daddr);
		f->proto = ip4->protocol;
		f->tos = ip4->tos;
	} else if (ip6) {
		f->src = ip6->saddr;
		f->dst = ip6->daddr;
		f->proto = ip6->nexthdr;
		f->tos = ip6->priority << 4 | ip6->flow_lbl[0] >> 4;
	} else {
		return 0;
	}
	if (ports)
		f->ports = *(__be32 *)ports;
	return 1;
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define tun_le64(x) (x)
#else
#define tun_le64(x) __builtin_bswap64(x)
#endif

static __always_inline __u64 tun_rol(__u64 x, int n)
{
	return x << n | x >> (64 - n);
}

#define TUN_SIPROUND                                                                                                           \
	do {                                                                                                                   \
		v0 += v1; v1 = tun_rol(v1, 13); v1 ^= v0; v0 = tun_rol(v0, 32);                                                \
		v2 += v3; v3 = tun_rol(v3, 16); v3 ^= v2;                                                                      \
		v0 += v3; v3 = tun_rol(v3, 21); v3 ^= v0;                                                                      \
		v2 += v1; v1 = tun_rol(v1, 17); v1 ^= v2; v2 = tun_rol(v2, 32);                                                \
	} while (0)

#define TUN_MAC_INPUT 44

/* SipHash-2-4 (Aumasson and Bernstein, 2012) of the first 44 bytes, as it is written to the packet. */
static __always_inline __u64 tun_mac(const struct tun_flow *f, const struct tun_key *key)
{
	const __u64 *words = (const __u64 *)f;
	__u64 v0 = key->k[0] ^ 0x736f6d6570736575ULL, v1 = key->k[1] ^ 0x646f72616e646f6dULL;
	__u64 v2 = key->k[0] ^ 0x6c7967656e657261ULL, v3 = key->k[1] ^ 0x7465646279746573ULL;

#pragma unroll
	for (int i = 0; i < 6; i++) {
		__u64 m = i < 5 ? tun_le64(words[i]) : (__u64)TUN_MAC_INPUT << 56 | f->proto;

		v3 ^= m;
		TUN_SIPROUND;
		TUN_SIPROUND;
		v0 ^= m;
	}
	v2 ^= 0xff;
	TUN_SIPROUND;
	TUN_SIPROUND;
	TUN_SIPROUND;
	TUN_SIPROUND;
	return tun_le64(v0 ^ v1 ^ v2 ^ v3);
}

#endif
