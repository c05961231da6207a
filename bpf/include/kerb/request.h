/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Checks whether the kernel may answer a UDP packet. Include <kerb/respond.h>, which explains the
 * use. Packets that fail a check are not changed. */
#ifndef KERB_REQUEST_H
#define KERB_REQUEST_H

#include <kerb/module.h>

/* maximum payload in bytes of a request, and of a reply: what fits an Ethernet frame */
#define KERB_REQUEST_MAX 1472
#define KERB_REPLY_MAX	 1472

/* Why a packet is not a request that can be answered. The numbers are the responder's outcomes. */
enum kerb_request_fault {
	KERB_REQUEST_OK = 0,
	/* The checksum is the sum of the pseudo-header, as from a sender that leaves it to its
	 * network card. On TC the kernel knows whether it is. On XDP the packet may as well be
	 * damaged. Everything else is valid: accept it on a veth and similar interfaces. */
	KERB_REQUEST_PARTIAL = 1,
	KERB_REQUEST_MALFORMED = 2,
	KERB_REQUEST_FRAGMENT = 5, /* first fragment */
	/* in several buffers, or several requests in one packet (GRO) */
	KERB_REQUEST_NOT_LINEAR = 6,
	KERB_REQUEST_LINK_ADDRESS = 7,	 /* a MAC address is a group address */
	KERB_REQUEST_SOURCE_ADDRESS = 8, /* not unicast, loopback, or the destination's */
	/* IP options or extension headers that an answer must not omit */
	KERB_REQUEST_OPTIONS = 10,
	KERB_REQUEST_SIZE = 11,		   /* the payload is longer than KERB_REQUEST_MAX */
	KERB_REQUEST_HEADER_CHECKSUM = 12, /* IPv4 header */
	KERB_REQUEST_CHECKSUM = 13,	   /* UDP */
};

/* A request, and the reply that its packet becomes: 56 bytes of stack. */
struct kerb_request {
	struct kerb_pkt *pkt;
	__u64 payload;	 /* offset of the payload in the frame */
	__u64 source;	 /* IPv4 address, or the /64 of an IPv6 address: the key of a rate limit */
	__u64 pseudo;	 /* sum of addresses and protocol: the pseudo-header without the length */
	__u64 sum;	 /* ones' complement sum of the payload, in memory byte order */
	__u64 reply_sum; /* the same of the reply's payload */
	__u32 len;	 /* of the payload */
	__u32 reply_len;
};

/* Returns n, a number below 2048, without its origin being known to the verifier. Otherwise the
 * verifier would derive knowledge about the request from each round of a loop that ends with it,
 * and follow the rest of the program once for each. */
static __always_inline __u64 kerb_frame_offset(__u64 n)
{
	kerb_bound(n, 0x7ff);
	return n;
}

/* Returns a pointer to len bytes (a constant) at an offset of the frame below 2048, or NULL if the
 * frame ends before them. */
static __always_inline void *kerb_frame_at(kerb_ctx *ctx, __u64 off, __u64 len)
{
	void *p = (void *)kerb_ctx_field(ctx, data), *end = (void *)kerb_ctx_field(ctx, data_end);

	p += kerb_frame_offset(off);
	return p + len > end ? 0 : p;
}

/* Returns whether there are only options that an answer may omit: End, No-Operation, Record Route,
 * Timestamp, Router Alert. Not source routes, nor unknown options. */
KERB_GLOBAL int kerb_ip4_options_harmless(kerb_ctx *ctx, __u32 l3, __u32 end)
{
	__u64 off = l3 + sizeof(struct iphdr);

	for (int i = 0; i < 40; i++) {
		__u8 *option;

		off = kerb_frame_offset(off);
		option = kerb_frame_at(ctx, off, 2); /* a UDP header follows */
		if (off >= end)
			return 1;
		if (!option)
			return 0;
		if (option[0] == 0)
			return 1;
		if (option[0] == 1) {
			off++;
			continue;
		}
		if (option[0] != 7 && option[0] != 68 && option[0] != 148)
			return 0;
		if (option[1] < 2 || off + option[1] > end)
			return 0;
		off += option[1];
	}
	return off >= end;
}

#define KERB_EXT_STEPS 48 /* headers and options that are examined */

/* Returns whether there are only extension headers that an answer may omit: hop-by-hop and
 * destination options that are to be skipped by hosts that do not know them (RFC 8200, 4.2),
 * routing headers with no segments left, fragment headers of whole packets (RFC 6946). */
KERB_GLOBAL int kerb_ip6_extensions_harmless(kerb_ctx *ctx, __u32 l3, __u32 l4)
{
	__u64 off = l3 + sizeof(struct ipv6hdr), end = off; /* end of the header that off is in */
	struct ipv6hdr *ip = kerb_frame_at(ctx, l3, sizeof(*ip));
	__u8 next;

	if (!ip)
		return 0;
	next = ip->nexthdr;
	for (int i = 0; i < KERB_EXT_STEPS; i++) {
		__u8 *p;

		off = kerb_frame_offset(off);
		end = kerb_frame_offset(end);
		p = kerb_frame_at(ctx, off, 8);
		if (off > end || !p)
			return 0;
		if (off < end) {
			if (p[0] & 0xc0)
				return 0;
			off += p[0] ? 2 + p[1] : 1;
			continue;
		}
		if (off >= l4)
			return off == l4;
		if (next == IPPROTO_FRAGMENT)
			end = off + 8;
		else
			end = off + (p[1] + 1) * 8;
		if (next == IPPROTO_HOPOPTS || next == IPPROTO_DSTOPTS)
			off += 2;
		else if (next == IPPROTO_FRAGMENT || (next == IPPROTO_ROUTING && !p[3]))
			off = end;
		else
			return 0;
		next = p[0];
	}
	return 0;
}

/* The ones' complement sum of len bytes, at most KERB_REPLY_MAX, at an offset of the frame, in 16
 * bits, in memory byte order; -1 if the frame ends before. */
KERB_GLOBAL int kerb_sum_frame(kerb_ctx *ctx, __u32 at, __u32 len)
{
	__u64 sum = 0, tail = kerb_frame_offset(len & ~31);
	__u32 *p;

	for (__u64 off = 0; off < KERB_REPLY_MAX; off += 32) {
		if (off >= tail)
			break;
		p = kerb_frame_at(ctx, at + off, 32);
		if (!p)
			return -1;
		sum += (__u64)p[0] + p[1] + p[2] + p[3] + p[4] + p[5] + p[6] + p[7];
	}
	tail += at;
#define KERB_SUM_REST(size, add)                       \
	if (len & size) {                              \
		p = kerb_frame_at(ctx, tail, size);    \
		if (!p)                                \
			return -1;                     \
		sum += add;                            \
		tail = kerb_frame_offset(tail + size); \
	}
	KERB_SUM_REST(16, (__u64)p[0] + p[1] + p[2] + p[3])
	KERB_SUM_REST(8, (__u64)p[0] + p[1])
	KERB_SUM_REST(4, *p)
	KERB_SUM_REST(2, *(__u16 *)p)
	KERB_SUM_REST(1, bpf_htons(*(__u8 *)p << 8))
#undef KERB_SUM_REST
	return kerb_fold(sum);
}

/* Returns a pointer to len bytes (a constant) at an offset of the payload, or NULL if the frame
 * ends before them. Check r->len: the bytes after it do not belong to the request. */
static __always_inline void *kerb_request_at(const struct kerb_request *r, __u64 off, __u64 len)
{
	__u64 at = r->payload + off;
	void *p;

	kerb_opaque(at);
	p = r->pkt->data + (at & 0x7ff);
	return p + len > r->pkt->data_end ? 0 : p;
}

/* Sets source and pseudo; returns whether the source is a single host and differs from the
 * destination. */
static __always_inline int kerb_request_ends4(struct kerb_request *r, const struct iphdr *ip)
{
	__u32 first = bpf_ntohl(ip->saddr) >> 24;

	r->pseudo = (__u64)ip->saddr + ip->daddr + bpf_htons(IPPROTO_UDP);
	r->source = ip->saddr;
	return first && first != 127 && first < 224 && ip->saddr != ip->daddr;
}

/* The same for IPv6. Not hosts: multicast, and all of ::/64, which has the unspecified, loopback
 * and IPv4-mapped addresses. */
static __always_inline int kerb_request_ends6(struct kerb_request *r, const struct ipv6hdr *ip)
{
	const __be32 *s = (const void *)&ip->saddr, *d = (const void *)&ip->daddr;

	r->pseudo = (__u64)s[0] + s[1] + s[2] + s[3] + d[0] + d[1] + d[2] + d[3] +
		    bpf_htons(IPPROTO_UDP);
	r->source = (__u64)s[0] << 32 | s[1];
	return r->source && (bpf_ntohl(s[0]) >> 24) != 0xff &&
	       !(s[0] == d[0] && s[1] == d[1] && s[2] == d[2] && s[3] == d[3]);
}

/* Starts with a packet that has a UDP header, kerb_udp(pkt): sets all fields of r except the sums,
 * and makes the cheap checks. Returns 0, or enum kerb_request_fault. */
static __always_inline int kerb_request_read(struct kerb_request *r, struct kerb_pkt *pkt,
					     const struct udphdr *udp)
{
	struct ethhdr *eth = kerb_at(pkt, 0, sizeof(*eth));
	struct iphdr *ip4 = kerb_ip4(pkt);
	struct ipv6hdr *ip6 = kerb_ip6(pkt);

	r->pkt = pkt;
	r->payload = pkt->l4 + sizeof(*udp);
	r->len = bpf_ntohs(udp->len) - sizeof(*udp); /* a jumbogram's is too long */
	if (!eth)
		return KERB_REQUEST_MALFORMED;
	if (pkt->flags & KERB_F_FRAG_FIRST)
		return KERB_REQUEST_FRAGMENT;
	if ((eth->h_dest[0] | eth->h_source[0]) & 1)
		return KERB_REQUEST_LINK_ADDRESS;
	if (ip4)
		return kerb_request_ends4(r, ip4) ? 0 : KERB_REQUEST_SOURCE_ADDRESS;
	if (ip6)
		return kerb_request_ends6(r, ip6) ? 0 : KERB_REQUEST_SOURCE_ADDRESS;
	return KERB_REQUEST_MALFORMED;
}

/* Detached: the comparisons would bound pkt->l4 differently for each length of the header, and
 * Linux 7.3 would walk all following code once for each. */
static __always_inline int kerb_ip4_checksum_right(const struct kerb_pkt *pkt,
						   const struct iphdr *ip)
{
	const __u32 *w = (const void *)ip;
	__u64 sum = (__u64)w[0] + w[1] + w[2] + w[3] + w[4];
	__u64 off = pkt->l3 + sizeof(*ip), end = pkt->l4;

	kerb_detach(off);
	kerb_detach(end);
	for (int i = 0; i < 10; i++) {
		__u32 *p;

		if (off >= end)
			break;
		p = kerb_at(pkt, off, 4);
		if (!p)
			return 0;
		sum += *p;
		off += 4;
	}
	return kerb_fold(sum) == 0xffff;
}

/* Returns whether a checksum that holds only the sum of the pseudo-header may have been left to the
 * sender's network card. XDP cannot know. On TC the kernel knows: it does not change a partial
 * checksum when the payload changes. */
static __always_inline int kerb_request_is_partial(struct kerb_pkt *pkt, struct udphdr *udp)
{
#ifdef KERB_HOOK_TC
	__u32 at = pkt->l4 + __builtin_offsetof(struct udphdr, check);
	__u16 before = udp->check;
	int rc = bpf_l4_csum_replace(pkt->ctx, at, 0, 1, 0);

	kerb_reload(pkt);
	udp = kerb_at(pkt, pkt->l4, sizeof(*udp));
	if (rc || !udp)
		return 0;
	if (udp->check == before)
		return 1;
	udp->check = before;
	return 0;
#else
	return 1;
#endif
}

/* Only IPv4 allows a UDP packet without a checksum. */
static __always_inline int kerb_request_checksum(const struct kerb_request *r, struct udphdr *udp)
{
	__u64 sum = r->pseudo + udp->len;

	if (!udp->check)
		return r->pkt->family == 4 ? 0 : KERB_REQUEST_CHECKSUM;
	if (kerb_fold(sum + udp->len + udp->source + udp->dest + udp->check + r->sum) == 0xffff)
		return 0;
	return udp->check == kerb_fold(sum) && kerb_request_is_partial(r->pkt, udp)
		       ? KERB_REQUEST_PARTIAL
		       : KERB_REQUEST_CHECKSUM;
}

/* On TC the payload may be in pages, and one packet may stand for several. */
static __always_inline int kerb_request_is_linear(struct kerb_pkt *pkt, __u32 end)
{
#ifdef KERB_HOOK_XDP
	return pkt->data + pkt->len <= pkt->data_end;
#else
	if (kerb_ctx_field(pkt->ctx, gso_size))
		return 0;
	if (pkt->data + (end & 0x7ff) <= pkt->data_end)
		return 1;
	bpf_skb_pull_data(pkt->ctx, end);
	kerb_reload(pkt);
	return pkt->data + (end & 0x7ff) <= pkt->data_end;
#endif
}

/* Returns whether the options can be removed: on TC this requires a link header without a VLAN tag
 * in it. */
static __always_inline int kerb_request_options_ok(const struct kerb_pkt *pkt)
{
#ifndef KERB_HOOK_XDP
	if (kerb_frame_offset(pkt->l3) != ETH_HLEN)
		return 0;
#endif
	return pkt->family == 4 ? kerb_ip4_options_harmless(pkt->ctx, pkt->l3, pkt->l4)
				: kerb_ip6_extensions_harmless(pkt->ctx, pkt->l3, pkt->l4);
}

/* Checks the rest: size, options, checksums, and whether the payload can be read. Returns 0, or
 * enum kerb_request_fault. */
static __always_inline int kerb_request_verify(struct kerb_request *r)
{
	struct kerb_pkt *pkt = r->pkt;
	struct udphdr *udp;
	struct iphdr *ip4;
	int sum;

	if (r->len > KERB_REQUEST_MAX)
		return KERB_REQUEST_SIZE;
	if (pkt->flags & (KERB_F_OPTIONS | KERB_F_EXT) ||
	    (pkt->family == 6 && pkt->l4 != pkt->l3 + sizeof(struct ipv6hdr))) {
		if (!kerb_request_options_ok(pkt))
			return KERB_REQUEST_OPTIONS;
	}
	if (!kerb_request_is_linear(pkt, r->payload + r->len))
		return KERB_REQUEST_NOT_LINEAR;
	ip4 = kerb_ip4(pkt);
	if (ip4 && !kerb_ip4_checksum_right(pkt, ip4))
		return KERB_REQUEST_HEADER_CHECKSUM;
	udp = kerb_at(pkt, pkt->l4, sizeof(*udp));
	sum = kerb_sum_frame(pkt->ctx, r->payload, r->len);
	if (!udp || sum < 0)
		return KERB_REQUEST_NOT_LINEAR;
	r->sum = (__u32)sum;
	return kerb_request_checksum(r, udp);
}

#endif
