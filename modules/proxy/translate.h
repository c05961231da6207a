/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Changing a packet as its session says. Bytes are written in place. The transport checksum is left to the kernel's
 * helper, which knows whether it is complete or still to be computed (CHECKSUM_PARTIAL), and which keeps the sum of the
 * whole packet (CHECKSUM_COMPLETE) if that has not changed but for the checksum itself. So it is in IPv4, whose header has
 * a checksum that balances the addresses; in IPv6 the addresses have to be added to the sum. */
#ifndef PX_TRANSLATE_H
#define PX_TRANSLATE_H

#include "flow.h"

static __always_inline __u64 px_change4(struct iphdr *ip, const struct px_session *s)
{
	__be32 src = ip->saddr, dst = ip->daddr, addr = s->addr.word[3];
	__u64 diff;

	if (s->flags & PX_HAIRPIN) {
		diff = kerb_diff32(src, addr); /* dst becomes src: the sum changes by what is new and what is gone */
		ip->saddr = dst;
		ip->daddr = addr;
	} else if (s->flags & PX_REVERSE) {
		diff = kerb_diff32(src, addr);
		ip->saddr = addr;
	} else {
		diff = kerb_diff32(dst, addr);
		ip->daddr = addr;
	}
	ip->check = kerb_csum(ip->check, diff);
	return diff;
}

static __always_inline __u64 px_put6(struct in6_addr *to, const struct px_addr *from)
{
	__u64 diff = 0;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		diff += kerb_diff32(to->in6_u.u6_addr32[i], from->word[i]);
		to->in6_u.u6_addr32[i] = from->word[i];
	}
	return diff;
}

static __always_inline __u64 px_change6(struct ipv6hdr *ip, const struct px_session *s)
{
	if (s->flags & PX_HAIRPIN) {
		struct in6_addr dst = ip->daddr;
		__u64 diff = px_put6(&ip->saddr, &s->addr);

		ip->daddr = ip->saddr;
		ip->saddr = dst;
		return diff;
	}
	return px_put6(s->flags & PX_REVERSE ? &ip->saddr : &ip->daddr, &s->addr);
}

/* Returns the difference to checksums over the addresses. */
static __always_inline __u64 px_change_addresses(struct kerb_pkt *pkt, const struct px_session *s)
{
	if (pkt->family == 4) {
		struct iphdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));

		return ip ? px_change4(ip, s) : 0;
	} else {
		struct ipv6hdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));
		__u64 diff = ip ? px_change6(ip, s) : 0;

		bpf_csum_update(pkt->ctx, kerb_fold(diff));
		return diff;
	}
}

/* The transport checksum of TCP and UDP, after addresses and ports have changed. Pointers into the packet end here. */
static __always_inline void px_fix_check(struct kerb_pkt *pkt, __u64 addresses, __u32 from, __u32 to)
{
	__u32 off = pkt->l4 + (pkt->proto == IPPROTO_TCP ? 16 : 6);
	__u64 udp = pkt->proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0; /* none (0) stays none */

	bpf_l4_csum_replace(pkt->ctx, off, 0, kerb_fold(addresses), BPF_F_PSEUDO_HDR | udp);
	if (from != to)
		bpf_l4_csum_replace(pkt->ctx, off, 0, kerb_fold(kerb_diff32(from, to)), udp);
}

/* TCP and UDP, whole or a first fragment. */
static __always_inline void px_translate_common(struct kerb_pkt *pkt, const struct px_session *s)
{
	__u32 *port = kerb_at(pkt, pkt->l4, sizeof(*port));
	__u32 from, to = *px_ports((void *)&s->sport);
	__u64 diff;

	if (!port)
		return;
	from = *port;
	*port = to;
	diff = px_change_addresses(pkt, s);
	px_fix_check(pkt, diff, from, to);
}

/* ICMP echo: only ICMPv6 sums up the addresses. */
static __always_inline void px_translate_echo(struct kerb_pkt *pkt, const struct px_session *s, int reply)
{
	struct px_icmp *icmp = kerb_at(pkt, pkt->l4, sizeof(*icmp));
	__u32 off = pkt->l4 + __builtin_offsetof(struct px_icmp, check);
	__be16 id = reply ? s->dport : s->sport;
	__u64 addresses, diff;

	if (!icmp)
		return;
	diff = kerb_diff16(icmp->id, id);
	icmp->id = id;
	addresses = px_change_addresses(pkt, s);
	if (pkt->family == 6)
		bpf_l4_csum_replace(pkt->ctx, off, 0, kerb_fold(addresses), BPF_F_PSEUDO_HDR);
	bpf_l4_csum_replace(pkt->ctx, off, 0, kerb_fold(diff), 0);
}

#endif
