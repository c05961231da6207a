/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The header between the outer UDP header and the inner packet; docs/tunnel.md has a picture. Mode
 * oakestra has none. */
#ifndef TUN_HEADER_H
#define TUN_HEADER_H

#include <kerb/siphash.h>

#include "maps.h"

#define TUN_VERSION 1
#define TUN_F_MAC   (1 << 0) /* eight bytes of MAC follow */
/* the MAC is of version 2: bound to the pair of nodes, and to the fragment */
#define TUN_F_BOUND (1 << 1)
#define TUN_F_KNOWN (TUN_F_MAC | TUN_F_BOUND)

#define TUN_MODE_KERB	  0
#define TUN_MODE_OAKESTRA 1
#define TUN_MODE_DEVICE	  2

KERB_CONFIG(__u8, mode, TUN_MODE_KERB);
KERB_CONFIG(_Bool, keyed, 0);	/* every packet needs a MAC */

struct tun_header {
	__u8 version_flags; /* version in the upper four bits */
	__u8 key;	    /* id; 0 without a MAC */
	__be16 network;
};

#define TUN_PULL (ETH_HLEN + 60 + 60) /* IPv4 and TCP with all options */

#define TUN_HEADER_LEN \
	(mode == TUN_MODE_OAKESTRA ? 0 : sizeof(struct tun_header) + (keyed ? sizeof(__u64) : 0))
#define TUN_OVERHEAD(ip6)                                                                \
	((ip6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) + sizeof(struct udphdr) + \
	 TUN_HEADER_LEN)

/* The fields of the inner packet that are used. The MAC covers the first 52 bytes: nothing in them
 * changes when a large TCP or UDP packet is segmented (GSO), and each segment gets a copy of the
 * header. Fragments are never segmented, so the MAC covers more of them. */
struct tun_flow {
	struct tun_header header;
	/* source and destination of TCP and UDP, also after extension headers; 0 without them */
	__be32 ports;
	struct in6_addr src, dst;
	__u8 proto; /* the IP header's next protocol, maybe an extension header */
	__u8 zero;
	/* of fragments: the field with the offset and more-fragments bit, without DF */
	__be16 offset;
	__be32 id;     /* of fragments */
	__be32 len;    /* of fragments: bytes of the IP packet; 0 in others */
	__u8 tos;      /* DSCP and ECN; like the following, not covered */
	__u8 half;     /* of the config that applies to this packet */
} __attribute__((aligned(8)));

#define TUN_MAPPED bpf_htonl(0xffff) /* third word of ::ffff:0:0/96 */

static __always_inline struct in6_addr tun_mapped(__be32 addr)
{
	return (struct in6_addr){.in6_u.u6_addr32 = {0, 0, TUN_MAPPED, addr}};
}

static __always_inline void tun_read_fragment(const struct kerb_pkt *pkt, struct tun_flow *f)
{
	struct iphdr *ip4 = kerb_ip4(pkt);
	struct kerb_ext_hdr *ext = ip4 ? 0 : kerb_fragment(pkt);

	f->len = bpf_htonl((__u32)(pkt->l4 - pkt->l3) + pkt->l4_len);
	if (ip4) {
		f->offset = ip4->frag_off & bpf_htons(KERB_IP_FRAG_ANY);
		f->id = (__be32)ip4->id;
	} else if (ext) {
		f->offset = ext->frag_off;
		f->id = ext->id;
	}
}

/* An address whose constant part the verifier does not know: otherwise it would follow IPv4 and
 * IPv6 packets separately. */
static __always_inline struct in6_addr tun_address4(__be32 addr, __u32 zero)
{
	return (struct in6_addr){.in6_u.u6_addr32 = {zero, zero, TUN_MAPPED ^ zero, addr}};
}

/* Reads addresses, protocol and TOS. Returns 0 if the packet has none. */
static __always_inline int tun_read_addresses(const struct kerb_pkt *pkt, struct tun_flow *f)
{
	struct iphdr *ip4 = kerb_ip4(pkt);
	struct ipv6hdr *ip6 = kerb_ip6(pkt);
	__u32 zero = kerb_unknown_zero(pkt->ctx);

	if (ip4) {
		f->src = tun_address4(ip4->saddr, zero);
		f->dst = tun_address4(ip4->daddr, zero);
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
	return 1;
}

static __always_inline int tun_read(const struct kerb_pkt *pkt, struct tun_flow *f)
{
	__be16 *ports = kerb_ports(pkt);
	/* otherwise the verifier would follow each kind of packet separately */
	__u64 zero = kerb_unknown_zero(pkt->ctx);

	f->ports = zero;
	f->offset = zero;
	f->id = zero;
	f->len = zero;
	if (!tun_read_addresses(pkt, f))
		return 0;
	if (ports)
		f->ports = *(__be32 *)ports;
	if (pkt->flags & KERB_F_FRAG)
		tun_read_fragment(pkt, f);
	return 1;
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define tun_le64(x) (x)
#define tun_le32(x) (x)
#else
#define tun_le64(x) __builtin_bswap64(x)
#define tun_le32(x) __builtin_bswap32(x)
#endif

#define TUN_MAC_INPUT  52
#define TUN_MAC1_INPUT 44 /* version 1: without fragment, length, and ports of fragments */

/* The MAC as it is written to the packet. */
static __always_inline __u64 tun_mac(const struct tun_flow *f, const struct tun_key *key, int bound)
{
	const __u64 *words = (const __u64 *)f;
	__u64 first = tun_le64(words[0]);
	kerb_siphash_begin(key->k);

	if (!bound && f->len)
		first &= 0xffffffff;
#pragma unroll
	for (int i = 0; i < 5; i++)
		kerb_siphash_update(i ? tun_le64(words[i]) : first);
	if (bound) {
		kerb_siphash_update(tun_le64(words[5]));
		kerb_siphash_update((__u64)TUN_MAC_INPUT << 56 | tun_le32(f->len));
	} else {
		kerb_siphash_update((__u64)TUN_MAC1_INPUT << 56 | f->proto);
	}
	return tun_le64(kerb_siphash_end());
}

/* The key for checking a received packet, or NULL. Its MAC version must be that of the packet. */
static __always_inline const struct tun_key *
tun_receive_key(const struct kerb_pkt *pkt, const struct tun_keys *k, const struct tun_header *h)
{
	__u64 place = TUN_KEYS;

	if (!h->key)
		return 0;
#pragma unroll
	for (int i = TUN_KEYS - 1; i >= 0; i--) {
		if (k->id[i] == h->key)
			place = i;
	}
	if (place >= TUN_KEYS)
		return 0;
	/* One index that the verifier does not know, instead of each: it would follow the MAC for
	 * each. */
	place ^= kerb_unknown_zero(pkt->ctx);
	kerb_bound(place, TUN_KEYS - 1);
	return (k->bound >> place & 1) == !!(h->version_flags & TUN_F_BOUND) ? &k->receive[place]
									     : 0;
}

#endif
