/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The parser of all chains: Ethernet, up to two VLAN tags (0x8100, 0x88a8, 0x9100, 0x9200), IPv4
 * with options (RFC 791), IPv6 with extension headers (RFC 8200), fragments, and the bounds of TCP,
 * UDP, ICMP and ICMPv6 headers. It runs once per packet at the head of a chain.
 *
 * It has a fast path and a slow path. kerb_parse_plain (kerb/plain.h) is straight-line code for
 * nearly every packet: TCP or UDP directly after a plain Ethernet and IP header. It leaves
 * everything else to kerb_parse_stages, which alone defines the contents of the packet context. The
 * stages pass scalars only, so that the verifier checks each of them once, as a global function,
 * not once for each path to it.
 *
 * The packet context is safe to use after every outcome:
 *
 *	OK			all fields are set; l4 is a transport header only with KERB_F_L4
 *	SHORT_L4, BAD_L4	the same without KERB_F_L4: addresses and protocol are known, ports
 *				are not
 *	failure in an IPv6	family is 6; l4, l4_len and proto are of the extension header at
 *	extension header	which the parser stopped; flags are of the headers before it
 *	other IP failures	family, proto, flags and l4_len are 0; l3 and l4 are where the IP
 *				header should be
 *	NOT_IP			the same; eth_type is the type
 *	SHORT_L2, VLAN_DEPTH	the same; l3 and l4 are where the parser stopped, eth_type is the
 *				last type that was read
 *
 * So addresses can be read if family is not 0, and ports with KERB_F_L4.
 *
 * Fragments. A later fragment has no L4, and proto is the next header of its IP or Fragment header,
 * which may be an extension header. A first fragment whose payload ends within the transport header
 * (RFC 1858, RFC 7112) is SHORT_L4 or SHORT_L3, never OK with KERB_F_L4. A packet with an IPv6
 * Fragment header with offset 0 and no more fragments (RFC 6946, atomic fragment) is not a
 * fragment. After the Fragment header of a first fragment, parsing continues as in any packet, with
 * extension headers. */
#ifndef KERB_PARSE_H
#define KERB_PARSE_H

#include <linux/errno.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <kerb/bounds.h>
#include <kerb/plain.h>

#ifndef IPPROTO_MH
#define IPPROTO_MH 135
#endif
/* the last header may start at KERB_MAX_HDRS, and be TCP with options */
#define KERB_PULL_LEN	   (KERB_MAX_HDRS + 60)
/* plain headers, if there is no room for KERB_PULL_LEN */
#define KERB_PULL_LESS	   128
#define KERB_VLAN_DEPTH	   2
#define KERB_ICMP_LEN	   8
#define KERB_IP_FRAG_LATER 0x1fff

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

/* A module that calls kerb_reparse may define KERB_PARSE_STAGE as __noinline, as chain.bpf.c does:
 * then the stages are global functions. Otherwise they are inlined. */
#ifndef KERB_PARSE_STAGE
#define KERB_PARSE_STAGE static __always_inline
#endif

/* Result of the first stage: a global function returns a single number. */
union kerb_l2 {
	struct {
		__u16 off;	/* of what follows the Ethernet header and the tags */
		__u16 eth_type; /* host byte order */
		/* TCI of the outermost tag in the frame, 0 if the kernel has removed one */
		__u16 vlan;
		__u16 outcome;
	};
	__u64 all;
};

/* Result of the subsequent stages, a number with these fields: bytes of the datagram from off on
 * (32 bits), protocol of the header at off, flags, off (9 bits: up to KERB_MAX_HDRS), family,
 * outcome. Not a struct: the compiler would write its fields separately, in code that the verifier
 * walks once for each outcome. */
#define KERB_L3_PROTO	32
#define KERB_L3_FLAGS	40
#define KERB_L3_OFF	48
#define KERB_L3_FAMILY	57
#define KERB_L3_OUTCOME 60

/* The state of a stage that walks along the headers. It is kept in registers. */
struct kerb_walk {
	void *data, *end; /* the linear part */
	__u64 off;	  /* of the next header */
	__u32 left;	  /* bytes of the datagram from off on */
	__u8 proto;	  /* of the next header */
	__u8 flags;
};

static __always_inline __u64 kerb_l3_of(const struct kerb_walk *w, __u64 family)
{
	return w->left | (__u64)w->proto << KERB_L3_PROTO | (__u64)w->flags << KERB_L3_FLAGS |
	       w->off << KERB_L3_OFF | family << KERB_L3_FAMILY;
}

static __always_inline __u64 kerb_l3_off(__u64 l3)
{
	return l3 >> KERB_L3_OFF & KERB_MAX_HDRS;
}

static __always_inline struct kerb_walk kerb_walk_from(kerb_ctx *ctx, __u64 off)
{
	void *data = (void *)kerb_ctx_field(ctx, data),
	     *end = (void *)kerb_ctx_field(ctx, data_end);

	return (struct kerb_walk){.data = data, .end = end, .off = off};
}

/* Continues after a stage. */
static __always_inline struct kerb_walk kerb_walk_on(kerb_ctx *ctx, __u64 l3)
{
	struct kerb_walk w = kerb_walk_from(ctx, kerb_l3_off(l3));

	w.left = l3;
	w.proto = l3 >> KERB_L3_PROTO;
	w.flags = l3 >> KERB_L3_FLAGS;
	return w;
}

static __always_inline int kerb_walk_lacks(const struct kerb_walk *w, __u64 len)
{
	return w->data + w->off + len > w->end;
}

/* Returns a == b without a branch: each branch doubles the paths that the verifier walks in the
 * loops below. */
static __always_inline __u64 kerb_same(__u64 a, __u64 b)
{
	__u64 differs = a ^ b;

	kerb_opaque(differs);
	return (differs - 1) >> 63;
}

/* IEEE 802.1Q and 802.1ad, and the types that switches used for the outer tag before 802.1ad. The
 * kernel removes only tags of the first two, but switches evaluate the others as well. */
static __always_inline int kerb_is_vlan(__be16 type)
{
	__be16 either = type & ~bpf_htons(ETH_P_QINQ1 ^ ETH_P_8021Q); /* they differ in one bit */

	return kerb_same(either, bpf_htons(ETH_P_8021Q)) |
	       kerb_same(type, bpf_htons(ETH_P_8021AD)) | kerb_same(type, bpf_htons(ETH_P_QINQ2));
}

/* Skips the VLAN tags. tags: number of tags that the kernel has removed already. */
static __always_inline int kerb_parse_vlan(struct kerb_walk *w, __be16 *type, __u16 *tci,
					   __u32 tags)
{
#pragma unroll
	for (__u32 i = 0; i < KERB_VLAN_DEPTH; i++) {
		struct kerb_vlan_hdr *vlan = w->data + w->off;

		if (!kerb_is_vlan(*type))
			return KERB_PARSE_OK;
		if (i + tags == KERB_VLAN_DEPTH)
			return KERB_PARSE_VLAN_DEPTH;
		if (kerb_walk_lacks(w, sizeof(*vlan)))
			return KERB_PARSE_SHORT_L2;
		if (!i && !tags)
			*tci = bpf_ntohs(vlan->tci);
		*type = vlan->eth_type;
		w->off += sizeof(*vlan);
	}
	return kerb_is_vlan(*type) ? KERB_PARSE_VLAN_DEPTH : KERB_PARSE_OK;
}

/* Parses Ethernet and VLAN tags. tags is 1 if the kernel has removed the outermost tag, otherwise
 * 0. */
KERB_PARSE_STAGE __u64 kerb_stage_l2(kerb_ctx *ctx, __u32 tags)
{
	struct kerb_walk w = kerb_walk_from(ctx, 0);
	struct ethhdr *eth = w.data;
	union kerb_l2 out = {};
	__be16 type;
	__u16 tci = 0;

	if (kerb_walk_lacks(&w, sizeof(*eth))) {
		out.outcome = KERB_PARSE_SHORT_L2;
		return out.all;
	}
	w.off = sizeof(*eth);
	type = *(__be16 *)(w.data + __builtin_offsetof(struct ethhdr, h_proto));
	out.outcome = kerb_parse_vlan(&w, &type, &tci, tags & 1);
	out.off = w.off;
	out.eth_type = bpf_ntohs(type);
	out.vlan = tci;
	return out.all;
}

static __always_inline int kerb_parse_tcp(struct kerb_walk *w)
{
	struct tcphdr *tcp = w->data + w->off;
	__u32 len;

	if (w->left < sizeof(*tcp) || kerb_walk_lacks(w, sizeof(*tcp)))
		return KERB_PARSE_SHORT_L4;
	len = tcp->doff * 4;
	if (len < sizeof(*tcp))
		return KERB_PARSE_BAD_L4;
	return len > w->left || kerb_walk_lacks(w, len) ? KERB_PARSE_SHORT_L4 : KERB_PARSE_OK;
}

/* A length of 0 stands for everything that the IP header leaves: for IPv6 as in the kernel's stack,
 * which does not look for a jumbo payload option (RFC 2675); for IPv4 if the field cannot hold the
 * length (segmentation offload in BIG TCP's sizes). The length of a first fragment is the whole
 * datagram's. */
static __always_inline int kerb_parse_udp(struct kerb_walk *w, __u32 ip6)
{
	struct udphdr *udp = w->data + w->off;
	__u32 len;

	if (w->left < sizeof(*udp) || kerb_walk_lacks(w, sizeof(*udp)))
		return KERB_PARSE_SHORT_L4;
	len = bpf_ntohs(udp->len);
	if (len < sizeof(*udp))
		return !len && (ip6 || w->left > 0xffff) ? KERB_PARSE_OK : KERB_PARSE_BAD_L4;
	return len > w->left && !(w->flags & KERB_F_FRAG_FIRST) ? KERB_PARSE_BAD_L4 : KERB_PARSE_OK;
}

/* Validates the bounds of the transport header. */
KERB_PARSE_STAGE __u64 kerb_stage_l4(kerb_ctx *ctx, __u64 l3)
{
	struct kerb_walk w = kerb_walk_on(ctx, l3);
	__u32 ip6 = (l3 >> KERB_L3_FAMILY & 7) == 6;
	__u64 outcome = KERB_PARSE_OK;

	if (w.flags & KERB_F_FRAG_LATER)
		return l3;
	if (w.proto == IPPROTO_TCP)
		outcome = kerb_parse_tcp(&w);
	else if (w.proto == IPPROTO_UDP)
		outcome = kerb_parse_udp(&w, ip6);
	else if (w.proto != (ip6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP))
		return l3;
	else if (w.left < KERB_ICMP_LEN || kerb_walk_lacks(&w, KERB_ICMP_LEN))
		outcome = KERB_PARSE_SHORT_L4;
	return l3 | (outcome ? outcome << KERB_L3_OUTCOME : (__u64)KERB_F_L4 << KERB_L3_FLAGS);
}

static __always_inline int kerb_parse_ip4(struct kerb_walk *w)
{
	struct iphdr *ip = w->data + w->off;
	__u32 hlen = sizeof(*ip), total;
	__u16 frag;

	if (kerb_walk_lacks(w, sizeof(*ip)))
		return KERB_PARSE_SHORT_L3;
	if (*(__u8 *)ip != 0x45) {
		if (ip->version != 4)
			return KERB_PARSE_BAD_VERSION;
		hlen = ip->ihl * 4;
		if (hlen < sizeof(*ip))
			return KERB_PARSE_BAD_IHL;
		if (kerb_walk_lacks(w, hlen))
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
		w->flags |= frag & bpf_htons(KERB_IP_FRAG_LATER) ? KERB_F_FRAG_LATER
								 : KERB_F_FRAG_FIRST;
	w->proto = ip->protocol;
	w->off += hlen;
	w->left = total - hlen;
	return KERB_PARSE_OK;
}

static __always_inline int kerb_is_ext(__u8 next)
{
	return next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_DSTOPTS ||
	       next == IPPROTO_MH || next == IPPROTO_FRAGMENT || next == IPPROTO_AH;
}

/* Length of an extension header in bytes. */
static __always_inline __u32 kerb_ext_len(__u8 type, const struct kerb_ext_hdr *ext)
{
	__u64 ah = kerb_same(type, IPPROTO_AH), fragment = kerb_same(type, IPPROTO_FRAGMENT);

	return ((ext->len & (fragment - 1)) + 1 + ah) << (3 - ah);
}

/* Skips one extension header. */
static __always_inline int kerb_parse_ext(struct kerb_walk *w)
{
	struct kerb_ext_hdr *ext = w->data + w->off;
	__u32 len;
	__u64 later, first, fragment;
	__u16 frag;

	if (w->left < sizeof(*ext) || kerb_walk_lacks(w, sizeof(*ext)))
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
	w->flags |= first * KERB_F_FRAG_FIRST | later * KERB_F_FRAG_LATER |
		    (fragment ^ 1) * KERB_F_EXT;
	w->proto = ext->next;
	w->off += len;
	w->left -= len;
	return KERB_PARSE_OK;
}

/* Flag between stages: an extension header follows. */
#define KERB_F_MORE_EXT (1 << 7)
#define KERB_L3_MORE	((__u64)KERB_F_MORE_EXT << KERB_L3_FLAGS)

/* Skips the extension header at off. If this code were in the loop itself, the verifier would
 * follow it once for each of KERB_MAX_EXT headers. */
KERB_PARSE_STAGE __u64 kerb_stage_ext(kerb_ctx *ctx, __u64 l3)
{
	struct kerb_walk w = kerb_walk_on(ctx, l3 &= ~KERB_L3_MORE);
	__u64 outcome = kerb_parse_ext(&w);

	if (outcome)
		return l3 | outcome << KERB_L3_OUTCOME;
	if (!(w.flags & KERB_F_FRAG_LATER) && kerb_is_ext(w.proto))
		w.flags |= KERB_F_MORE_EXT;
	return kerb_l3_of(&w, 6);
}

/* Skips the extension headers. */
static __always_inline __u64 kerb_parse_exts(kerb_ctx *ctx, __u64 l3)
{
	int left = KERB_MAX_EXT;

#pragma clang loop unroll(disable)
	do
		l3 = kerb_stage_ext(ctx, l3);
	while (l3 & KERB_L3_MORE && --left);
	/* otherwise the compiler keeps the reason why the loop ended, which the verifier follows
	 * each time */
	kerb_opaque(l3);
	if (l3 & KERB_L3_MORE)
		l3 = (l3 ^ KERB_L3_MORE) | (__u64)KERB_PARSE_EXT_DEPTH << KERB_L3_OUTCOME;
	return l3;
}

static __always_inline int kerb_parse_ip6(struct kerb_walk *w)
{
	struct ipv6hdr *ip = w->data + w->off;
	__u32 payload;

	if (kerb_walk_lacks(w, sizeof(*ip)))
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

/* Parses IPv4, or IPv6 with its extension headers, in a frame of len bytes. */
KERB_PARSE_STAGE __u64 kerb_stage_l3(kerb_ctx *ctx, __u64 l2, __u32 len)
{
	union kerb_l2 in = {.all = l2};
	struct kerb_walk w = kerb_walk_from(ctx, in.off & KERB_MAX_HDRS);
	__u64 l3 = w.off << KERB_L3_OFF, outcome = in.outcome, family = 4;

	if (outcome)
		return l3 | outcome << KERB_L3_OUTCOME;
	w.left = len - (__u32)w.off;
	if (in.eth_type == ETH_P_IP) {
		outcome = kerb_parse_ip4(&w);
	} else if (in.eth_type == ETH_P_IPV6) {
		outcome = kerb_parse_ip6(&w);
		family = 6;
	} else {
		outcome = KERB_PARSE_NOT_IP;
	}
	if (outcome)
		return l3 | outcome << KERB_L3_OUTCOME;
	l3 = kerb_l3_of(&w, family);
	if (family == 6 && kerb_is_ext(w.proto)) {
		l3 = kerb_parse_exts(ctx, l3);
		if (l3 >> KERB_L3_OUTCOME)
			return l3;
	}
	return kerb_stage_l4(ctx, l3);
}

/* Parses any packet. The caller sets data, data_end and len, and vlan to the tag that the kernel
 * has removed (with tags 1), otherwise to 0. */
static __always_inline int kerb_parse_stages(struct kerb_pkt *pkt, __u32 tags)
{
	union kerb_l2 l2 = {.all = kerb_stage_l2(pkt->ctx, tags)};
	__u64 l3 = kerb_stage_l3(pkt->ctx, l2.all, pkt->len), outcome = l3 >> KERB_L3_OUTCOME;

	pkt->l3 = l2.off & KERB_MAX_HDRS;
	pkt->l4 = kerb_l3_off(l3);
	pkt->eth_type = l2.eth_type;
	pkt->vlan |= l2.vlan;
	kerb_set_kind(pkt, l3 >> KERB_L3_FAMILY & 7, l3 >> KERB_L3_PROTO, l3 >> KERB_L3_FLAGS,
		      outcome);
	pkt->l4_len = l3;
	return outcome;
}

/* With a single branch: after comparisons the verifier knows the outcome, and walks the subsequent
 * code once for each of them. */
static __always_inline int kerb_is_short(int outcome)
{
	return (1 << KERB_PARSE_SHORT_L2 | 1 << KERB_PARSE_SHORT_L3 | 1 << KERB_PARSE_SHORT_L4) >>
		       outcome &
	       1;
}

#if !defined(KERB_HOOK_XDP)
#define KERB_PULL(ctx, len) bpf_skb_pull_data(ctx, len)
#elif defined(KERB_XDP_FRAGS)
/* Linux 6.18. The agent replaces calls of this number, which no helper has, by calls of
 * bpf_xdp_pull_data, or on older kernels by an error (internal/dataplane/kfunc.go). */
static long (*const kerb_xdp_pull_data)(struct xdp_md *ctx, __u32 len) = (void *)0x6b6573;
#define KERB_PULL(ctx, len) kerb_xdp_pull_data(ctx, len)
#else
#define KERB_PULL(ctx, len) (-EOPNOTSUPP) /* the frame is in one buffer */
#endif

/* Pulls the maximum length of headers into the linear part: all of them may be beyond it (XDP on
 * mlx5 with a large MTU, for example). Returns 0, or an error. */
static __always_inline int kerb_pull(struct kerb_pkt *pkt)
{
	int rc = KERB_PULL(pkt->ctx, pkt->len < KERB_PULL_LEN ? pkt->len : KERB_PULL_LEN);

#ifdef KERB_HOOK_XDP
	if (rc)
		rc = KERB_PULL(pkt->ctx, pkt->len < KERB_PULL_LESS ? pkt->len : KERB_PULL_LESS);
#endif
	return rc;
}

/* Pulls headers that the parser missed into the linear part. Returns whether there is more to parse
 * now. */
static __always_inline int kerb_pull_missed(struct kerb_pkt *pkt, int outcome)
{
	int rc;

	if (!kerb_is_short(outcome) || pkt->data + pkt->len <= pkt->data_end)
		return 0;
	rc = kerb_pull(pkt);
	kerb_reload(pkt);
	return !rc;
}

/* Parses the packets that kerb_parse_plain does not handle. */
static __always_inline int kerb_parse_general(struct kerb_pkt *pkt, __u32 tags)
{
	int outcome = kerb_parse_stages(pkt, tags);

	return kerb_pull_missed(pkt, outcome) ? kerb_parse_stages(pkt, tags) : outcome;
}

/* Fills l3, l4, l4_len, eth_type, family, proto, flags and outcome, and vlan unless the kernel has
 * removed a tag. */
static __always_inline int kerb_parse(struct kerb_pkt *pkt, __u32 tags)
{
	return kerb_parse_plain(pkt) ? KERB_PARSE_OK : kerb_parse_general(pkt, tags);
}

#endif
