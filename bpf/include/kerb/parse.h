/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The one parser: Ethernet, up to two VLAN tags (0x8100, 0x88a8, 0x9100, 0x9200), IPv4 with options (RFC 791), IPv6 with
 * extension headers (RFC 8200), fragments marked, TCP, UDP, ICMP and ICMPv6 headers bounded. It runs once per packet at the
 * head of a chain.
 *
 * Whatever the outcome, the context is safe to use:
 *   OK                      everything is set; l4 is a transport header only if KERB_F_L4 says so
 *   SHORT_L4, BAD_L4        the same without KERB_F_L4: addresses and protocol are known, ports are not
 *   failure in an IPv6      family is 6, l4, l4_len and proto are those of the extension header that stopped the parser;
 *   extension header        flags hold what was seen before it
 *   other IP failures       family, proto, flags and l4_len are 0, l3 and l4 are where the IP header should be
 *   NOT_IP                  the same; eth_type has the type
 *   SHORT_L2, VLAN_DEPTH    the same; l3 and l4 are where the parser stopped, eth_type the last type it read
 * So: family says that the addresses can be read, KERB_F_L4 that the ports can.
 *
 * Fragments. A later one has no L4, and proto is what its IP or Fragment header names, which may be an extension header. A
 * first one whose payload ends within the transport header (RFC 1858, RFC 7112) is SHORT_L4 or SHORT_L3, never OK with
 * KERB_F_L4. An IPv6 Fragment header with offset 0 and no more to come (RFC 6946) is no fragment. What follows the
 * Fragment header of a first fragment, extension headers too, is parsed like anything else. */
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
#define KERB_VLAN_DEPTH	   2
#define KERB_ICMP_LEN	   8
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

#ifdef KERB_HOOK_XDP
typedef struct xdp_md kerb_ctx;
#else
typedef struct __sk_buff kerb_ctx;
#endif

/* A 32-bit field of the hook's context. By hand, since the compiler may move the offset into the pointer, and the verifier
 * allows no changed pointer to a context. */
#define kerb_ctx_field(ctx, field)                                                                                             \
	({                                                                                                                     \
		__u64 _value;                                                                                                  \
		asm volatile("%0 = *(u32 *)(%1 + %2)"                                                                          \
			     : "=r"(_value)                                                                                    \
			     : "r"(ctx), "i"(__builtin_offsetof(kerb_ctx, field)));                                            \
		_value;                                                                                                        \
	})

/* Reads the packet's bounds: first, and after any helper that may have moved it. Pointers into the packet end here. */
static __always_inline void kerb_reload(struct kerb_pkt *pkt)
{
	void *ctx = pkt->ctx;

	pkt->data = (void *)kerb_ctx_field(ctx, data);
	pkt->data_end = (void *)kerb_ctx_field(ctx, data_end);
}

/* Pointer to len bytes at offset off of the frame, or NULL when the linear part ends before them or off is beyond
 * KERB_MAX_OFFSET. The xor makes off a value of its own to the verifier: otherwise the comparison would bound what off was
 * computed from, and keep states of the caller apart that could be merged. The mask repeats the comparison for verifiers that lose
 * the bound when the value is spilled; the barrier keeps the compiler from removing it. */
static __always_inline void *kerb_at(const struct kerb_pkt *pkt, __u64 off, __u64 len)
{
	void *p;

	if (!__builtin_constant_p(off))
		asm volatile("%0 ^= 0" : "+r"(off));
	if (off > KERB_MAX_OFFSET)
		return 0;
	if (!__builtin_constant_p(off))
		asm volatile("" : "+r"(off));
	p = pkt->data + (off & KERB_MAX_OFFSET);

	return p + len > pkt->data_end ? 0 : p;
}

/* What changes while the parser walks along the headers. It lives in registers. */
struct kerb_walk {
	void *data, *end; /* the linear part */
	__u64 off;	  /* of the header that comes next */
	__u32 left;	  /* bytes of the datagram from off on */
	__u8 proto;	  /* of the header that comes next */
	__u8 flags;
};

static __always_inline int kerb_beyond(const struct kerb_walk *w, __u64 len)
{
	return w->data + w->off + len > w->end;
}

/* 1 if a equals b, else 0, without a branch: each branch doubles what the verifier has to walk in the loops below. */
static __always_inline __u64 kerb_same(__u64 a, __u64 b)
{
	__u64 differs = a ^ b;

	asm volatile("" : "+r"(differs));
	return (differs - 1) >> 63;
}

/* IEEE 802.1Q and 802.1ad, and the types that switches used for the outer tag before 802.1ad. The kernel takes off the first
 * two only, but switches look through the others as well. */
static __always_inline int kerb_is_vlan(__be16 type)
{
	return kerb_same(type, bpf_htons(ETH_P_8021Q)) | kerb_same(type, bpf_htons(ETH_P_8021AD)) |
	       kerb_same(type, bpf_htons(ETH_P_QINQ1)) | kerb_same(type, bpf_htons(ETH_P_QINQ2));
}

/* Steps over the VLAN tags. tags: how many the kernel has taken off already. */
static __always_inline int kerb_parse_vlan(struct kerb_pkt *pkt, struct kerb_walk *w, __be16 *type, __u32 tags)
{
#pragma unroll
	for (__u32 i = 0; i < KERB_VLAN_DEPTH; i++) {
		struct kerb_vlan_hdr *vlan = w->data + w->off;

		if (!kerb_is_vlan(*type))
			return KERB_PARSE_OK;
		if (i + tags == KERB_VLAN_DEPTH)
			return KERB_PARSE_VLAN_DEPTH;
		if (kerb_beyond(w, sizeof(*vlan)))
			return KERB_PARSE_SHORT_L2;
		if (!i && !tags)
			pkt->vlan = bpf_ntohs(vlan->tci);
		*type = vlan->eth_type;
		w->off += sizeof(*vlan);
	}
	return kerb_is_vlan(*type) ? KERB_PARSE_VLAN_DEPTH : KERB_PARSE_OK;
}

static __always_inline int kerb_parse_tcp(struct kerb_walk *w)
{
	struct tcphdr *tcp = w->data + w->off;
	__u32 len;

	if (w->left < sizeof(*tcp) || kerb_beyond(w, sizeof(*tcp)))
		return KERB_PARSE_SHORT_L4;
	len = tcp->doff * 4;
	if (len < sizeof(*tcp))
		return KERB_PARSE_BAD_L4;
	return len > w->left || kerb_beyond(w, len) ? KERB_PARSE_SHORT_L4 : KERB_PARSE_OK;
}

/* A length of 0 is a jumbogram (RFC 2675), which only IPv6 has; the length of a first fragment is the whole datagram's. */
static __always_inline int kerb_parse_udp(struct kerb_walk *w, __u32 jumbo)
{
	struct udphdr *udp = w->data + w->off;
	__u32 len;

	if (w->left < sizeof(*udp) || kerb_beyond(w, sizeof(*udp)))
		return KERB_PARSE_SHORT_L4;
	len = bpf_ntohs(udp->len);
	if (len < sizeof(*udp))
		return !len && jumbo ? KERB_PARSE_OK : KERB_PARSE_BAD_L4;
	return len > w->left && !(w->flags & KERB_F_FRAG_FIRST) ? KERB_PARSE_BAD_L4 : KERB_PARSE_OK;
}

/* Bounds the transport header and fills in what the walk has found. */
static __always_inline int kerb_parse_l4(struct kerb_pkt *pkt, struct kerb_walk *w, __u32 ip6)
{
	int rc = KERB_PARSE_OK;
	__u8 flags = w->flags;

	if (!(flags & KERB_F_FRAG_LATER)) {
		flags |= KERB_F_L4;
		if (w->proto == IPPROTO_TCP)
			rc = kerb_parse_tcp(w);
		else if (w->proto == IPPROTO_UDP)
			rc = kerb_parse_udp(w, ip6);
		else if (w->proto != (ip6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP))
			flags = w->flags;
		else if (w->left < KERB_ICMP_LEN || kerb_beyond(w, KERB_ICMP_LEN))
			rc = KERB_PARSE_SHORT_L4;
	}
	pkt->family = ip6 ? 6 : 4;
	pkt->proto = w->proto;
	pkt->l4 = w->off;
	pkt->l4_len = w->left;
	pkt->flags = rc ? w->flags : flags;
	return rc;
}

static __always_inline int kerb_parse_ip4(struct kerb_walk *w)
{
	struct iphdr *ip = w->data + w->off;
	__u32 hlen = sizeof(*ip), total;
	__u16 frag;

	if (kerb_beyond(w, sizeof(*ip)))
		return KERB_PARSE_SHORT_L3;
	if (*(__u8 *)ip != 0x45) {
		if (ip->version != 4)
			return KERB_PARSE_BAD_VERSION;
		hlen = ip->ihl * 4;
		if (hlen < sizeof(*ip))
			return KERB_PARSE_BAD_IHL;
		if (kerb_beyond(w, hlen))
			return KERB_PARSE_SHORT_L3;
		w->flags = KERB_F_OPTIONS;
	}
	total = bpf_ntohs(ip->tot_len);
	if (!total && w->left > 0xffff) /* BIG TCP (Linux 6.3): the field cannot hold the length */
		total = w->left;
	if (total < hlen || total > w->left)
		return KERB_PARSE_BAD_LENGTH;
	frag = ip->frag_off;
	if (frag & bpf_htons(KERB_IP_FRAG_ANY))
		w->flags |= frag & bpf_htons(KERB_IP_FRAG_LATER) ? KERB_F_FRAG_LATER : KERB_F_FRAG_FIRST;
	w->proto = ip->protocol;
	w->off += hlen;
	w->left = total - hlen;
	return KERB_PARSE_OK;
}

static __always_inline int kerb_is_ext(__u8 next)
{
	return next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_DSTOPTS || next == IPPROTO_MH ||
	       next == IPPROTO_FRAGMENT || next == IPPROTO_AH;
}

/* Length of an extension header in bytes. */
static __always_inline __u32 kerb_ext_len(__u8 type, const struct kerb_ext_hdr *ext)
{
	__u64 ah = kerb_same(type, IPPROTO_AH), fragment = kerb_same(type, IPPROTO_FRAGMENT);

	return ((ext->len & (fragment - 1)) + 1 + ah) << (3 - ah);
}

/* Follows the extension headers. */
static __always_inline int kerb_parse_ext(struct kerb_walk *w)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < KERB_MAX_EXT; i++) {
		struct kerb_ext_hdr *ext = w->data + w->off;
		__u32 len;
		__u64 later, first, fragment;
		__u16 frag;

		if (w->left < sizeof(*ext) || kerb_beyond(w, sizeof(*ext)))
			return KERB_PARSE_SHORT_L3;
		len = kerb_ext_len(w->proto, ext);
		if (len > w->left)
			return KERB_PARSE_BAD_LENGTH;
		if (w->off + len > KERB_MAX_HDRS)
			return KERB_PARSE_EXT_DEPTH;
		fragment = kerb_same(w->proto, IPPROTO_FRAGMENT);
		frag = bpf_ntohs(ext->frag_off);
		later = fragment & ~kerb_same(frag & 0xfff8, 0);
		first = fragment & ~later & frag;
		w->flags |= first * KERB_F_FRAG_FIRST | later * KERB_F_FRAG_LATER | (fragment ^ 1) * KERB_F_EXT;
		w->proto = ext->next;
		w->off += len;
		w->left -= len;
		if (w->flags & KERB_F_FRAG_LATER || !kerb_is_ext(w->proto))
			return KERB_PARSE_OK;
	}
	return KERB_PARSE_EXT_DEPTH;
}

static __always_inline int kerb_parse_ip6(struct kerb_walk *w)
{
	struct ipv6hdr *ip = w->data + w->off;
	__u32 payload;

	if (kerb_beyond(w, sizeof(*ip)))
		return KERB_PARSE_SHORT_L3;
	if (ip->version != 6)
		return KERB_PARSE_BAD_VERSION;
	w->left -= sizeof(*ip);
	payload = bpf_ntohs(ip->payload_len);
	if (!payload && w->left > 0xffff) /* BIG TCP */
		payload = w->left;
	if (payload > w->left)
		return KERB_PARSE_BAD_LENGTH;
	w->proto = ip->nexthdr;
	w->off += sizeof(*ip);
	w->left = payload;
	return KERB_PARSE_OK;
}

/* An IPv6 extension header that stops the parser: the context says where. */
static __always_inline void kerb_parse_stopped(struct kerb_pkt *pkt, const struct kerb_walk *w)
{
	pkt->family = 6;
	pkt->proto = w->proto;
	pkt->l4 = w->off;
	pkt->l4_len = w->left;
	pkt->flags = w->flags;
}

static __always_inline int kerb_parse_l3(struct kerb_pkt *pkt, struct kerb_walk *w, __be16 type)
{
	int rc;

	if (type == bpf_htons(ETH_P_IP))
		rc = kerb_parse_ip4(w);
	else if (type == bpf_htons(ETH_P_IPV6))
		rc = kerb_parse_ip6(w);
	else
		return KERB_PARSE_NOT_IP;
	if (rc)
		return rc;
	if (type == bpf_htons(ETH_P_IPV6) && kerb_is_ext(w->proto)) {
		rc = kerb_parse_ext(w);
		if (rc) {
			kerb_parse_stopped(pkt, w);
			return rc;
		}
	}
	return kerb_parse_l4(pkt, w, type == bpf_htons(ETH_P_IPV6));
}

/* Fills l3, l4, l4_len, eth_type, family, proto and flags, and vlan unless the kernel took the outermost tag off (tags is
 * 1 then, else 0). data, data_end, len and vlan are set by the caller. */
static __always_inline int kerb_parse(struct kerb_pkt *pkt, __u32 tags)
{
	struct kerb_walk w = {.data = pkt->data, .end = pkt->data_end};
	struct ethhdr *eth = w.data;
	int rc = KERB_PARSE_OK;
	__be16 type = 0;

	pkt->family = 0;
	pkt->proto = 0;
	pkt->flags = 0;
	pkt->l4_len = 0;
	if (kerb_beyond(&w, sizeof(*eth))) {
		rc = KERB_PARSE_SHORT_L2;
	} else {
		w.off = sizeof(*eth);
		type = eth->h_proto;
		if (type != bpf_htons(ETH_P_IP) && type != bpf_htons(ETH_P_IPV6))
			rc = kerb_parse_vlan(pkt, &w, &type, tags);
	}
	pkt->eth_type = bpf_ntohs(type);
	pkt->l3 = w.off;
	pkt->l4 = w.off;
	w.left = pkt->len - (__u32)w.off;
	return rc ?: kerb_parse_l3(pkt, &w, type);
}

#endif
