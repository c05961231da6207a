/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ICMP errors about packets of sessions (RFC 5508, 4). The error goes to the sender of the quoted
 * packet, which must recognize its own packet in the quote: this is the key of the session's other
 * entry. */
#ifndef PX_ICMP_H
#define PX_ICMP_H

#include "translate.h"

#define PX_QUOTE_MAX 80 /* bytes of the quoted packet that are read: its headers */

/* Fills w->flow with the reversed key of the quoted packet, and w->inner. Returns enum px_kind. */
static __always_inline int px_read_quoted_ports(const struct kerb_pkt *pkt, struct px_work *w,
						__u64 off, __u8 proto)
{
	__be16 port;

	w->inner = off;
	w->flow.proto = proto;
	w->quoted = px_read_ports(pkt, off, w);
	if (w->quoted != PX_PLAIN && w->quoted != PX_ECHO)
		return PX_NOTHING;
	port = w->flow.sport;
	w->flow.sport = w->flow.dport;
	w->flow.dport = port;
	return PX_ERROR;
}

static __always_inline int px_read_quoted4(const struct kerb_pkt *pkt, struct px_work *w, __u64 off)
{
	struct iphdr *quoted = kerb_at(pkt, off, sizeof(*quoted));
	__u32 hlen;

	if (!quoted || quoted->version != 4 || quoted->frag_off & bpf_htons(KERB_IP_FRAG_LATER))
		return PX_NOTHING;
	hlen = quoted->ihl * 4;
	if (hlen < sizeof(*quoted) || quoted->saddr != w->flow.dst.word[3])
		return PX_NOTHING;
	px_set4(&w->flow.src, quoted->daddr);
	return px_read_quoted_ports(pkt, w, off + hlen, quoted->protocol);
}

/* Extension headers of the quoted packet are not followed. */
static __always_inline int px_read_quoted6(const struct kerb_pkt *pkt, struct px_work *w, __u64 off)
{
	struct ipv6hdr *quoted = kerb_at(pkt, off, sizeof(*quoted));

	if (!quoted || quoted->version != 6 ||
	    __builtin_memcmp(&quoted->saddr, &w->flow.dst, sizeof(struct px_addr)))
		return PX_NOTHING;
	px_set6(&w->flow.src, &quoted->daddr);
	return px_read_quoted_ports(pkt, w, off + sizeof(*quoted), quoted->nexthdr);
}

/* The packet's own addresses are in w->flow. */
static __always_inline int px_read_quoted(struct kerb_pkt *pkt, struct px_work *w)
{
	__u64 off = pkt->l4 + sizeof(struct px_icmp);

	if (off > KERB_MAX_HDRS - PX_QUOTE_MAX)
		return PX_NOTHING;
	bpf_skb_pull_data(pkt->ctx, pkt->len < off + PX_QUOTE_MAX ? pkt->len : off + PX_QUOTE_MAX);
	kerb_reload(pkt);
	return w->v4 ? px_read_quoted4(pkt, w, off) : px_read_quoted6(pkt, w, off);
}

static __always_inline __u64 px_quoted_address4(struct iphdr *ip, const struct px_flow *f)
{
	__u64 diff =
		kerb_diff32(ip->saddr, f->src.word[3]) + kerb_diff32(ip->daddr, f->dst.word[3]);

	ip->saddr = f->src.word[3];
	ip->daddr = f->dst.word[3];
	ip->check = kerb_csum(ip->check, diff);
	return diff;
}

static __always_inline __u64 px_quoted_address6(struct ipv6hdr *ip, const struct px_flow *f)
{
	return px_put6(&ip->saddr, &f->src) + px_put6(&ip->daddr, &f->dst);
}

/* Ports or echo identifier of the quoted packet; returns the difference. */
static __always_inline __u64 px_quoted_ports(struct kerb_pkt *pkt, const struct px_work *w)
{
	__u32 *port = kerb_at(pkt, w->inner, sizeof(*port));
	__u64 diff;

	if (w->quoted == PX_ECHO) {
		struct px_icmp *icmp = kerb_at(pkt, w->inner, sizeof(*icmp));
		__be16 id = icmp && icmp->type == (w->v4 ? KERB_ICMP_ECHO : KERB_ICMP6_ECHO)
				    ? w->pair.sport
				    : w->pair.dport;

		if (!icmp)
			return 0;
		diff = kerb_diff16(icmp->id, id);
		icmp->id = id;
		return diff;
	}
	if (!port || w->flow.proto == IPPROTO_SCTP)
		return 0;
	diff = kerb_diff32(*port, *px_ports((void *)&w->pair.sport));
	*port = *px_ports((void *)&w->pair.sport);
	return diff;
}

/* The quoted packet's own checksum, if it is quoted; returns the resulting change of the error's
 * checksum. */
static __always_inline __u64 px_quoted_check(struct kerb_pkt *pkt, const struct px_work *w,
					     __u64 addresses, __u64 ports)
{
	__u64 off = w->inner, diff = ports;
	__u16 *check, before;

	if (w->flow.proto == IPPROTO_SCTP)
		return 0;
	off += w->quoted == PX_ECHO ? 2 : w->flow.proto == IPPROTO_TCP ? 16 : 6;
	if (w->quoted != PX_ECHO || !w->v4)
		diff += addresses;
	check = kerb_at(pkt, off, sizeof(*check));
	if (!check || off + sizeof(*check) > pkt->l4 + pkt->l4_len ||
	    (w->flow.proto == IPPROTO_UDP && !*check))
		return 0;
	before = *check;
	*check = kerb_csum(before, diff);
	return kerb_diff16(before, *check);
}

/* The error's own addresses: the sender may be a router on the path. */
static __always_inline __u64 px_error_addresses(struct kerb_pkt *pkt, const struct px_work *w)
{
	__u64 diff = 0;

	if (w->v4) {
		struct iphdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));

		if (!ip)
			return 0;
		if (ip->saddr == w->flow.src.word[3]) {
			diff = kerb_diff32(ip->saddr, w->pair.dst.word[3]);
			ip->saddr = w->pair.dst.word[3];
		}
		diff += kerb_diff32(ip->daddr, w->pair.src.word[3]);
		ip->daddr = w->pair.src.word[3];
		ip->check = kerb_csum(ip->check, diff);
	} else {
		struct ipv6hdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));

		if (!ip)
			return 0;
		if (!__builtin_memcmp(&ip->saddr, &w->flow.src, sizeof(struct px_addr)))
			diff = px_put6(&ip->saddr, &w->pair.dst);
		diff += px_put6(&ip->daddr, &w->pair.src);
	}
	return diff;
}

/* w->pair is the reversed rewritten packet. Pointers into the packet become invalid. In IPv4 the
 * quoted header's own checksum compensates its addresses. */
static __always_inline void px_translate_error(struct kerb_pkt *pkt, struct px_work *w)
{
	__u64 off = pkt->l4 + sizeof(struct px_icmp), outer, quoted = 0, ports;

	if (w->v4) {
		struct iphdr *ip = kerb_at(pkt, off, sizeof(*ip));

		if (ip)
			quoted = px_quoted_address4(ip, &w->pair);
	} else {
		struct ipv6hdr *ip = kerb_at(pkt, off, sizeof(*ip));

		if (ip)
			quoted = px_quoted_address6(ip, &w->pair);
	}
	ports = px_quoted_ports(pkt, w);
	ports += px_quoted_check(pkt, w, quoted, ports);
	outer = px_error_addresses(pkt, w);
	off = pkt->l4 + __builtin_offsetof(struct px_icmp, check);
	if (!w->v4) {
		ports += quoted;
		bpf_csum_update(pkt->ctx, kerb_fold(outer));
		bpf_l4_csum_replace(pkt->ctx, off, 0, kerb_fold(outer), BPF_F_PSEUDO_HDR);
	}
	bpf_l4_csum_replace(pkt->ctx, off, 0, kerb_fold(ports), 0);
}

#endif
