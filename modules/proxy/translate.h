/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Translates a packet by its session. Bytes are written in place, and so is the transport
 * checksum if the kernel reports whether it is complete or still to be computed (CHECKSUM_PARTIAL).
 * Otherwise, and for the sum of the whole packet (CHECKSUM_COMPLETE), it is left to the kernel's
 * helper, which keeps this sum if nothing but the checksum itself has changed it. This holds in
 * IPv4, whose header checksum compensates the addresses; in IPv6 they have to be added to the
 * sum. */
#ifndef PX_TRANSLATE_H
#define PX_TRANSLATE_H

#include "flow.h"

static __always_inline __u64 px_change4(struct iphdr *ip, const struct px_session *s)
{
	__be32 src = ip->saddr, dst = ip->daddr, addr = s->addr.word[3];
	__u64 diff;

	if (s->flags & PX_HAIRPIN) {
		/* dst becomes src: the sum changes by the difference of new and old addresses */
		diff = kerb_diff32(src, addr);
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

/* Returns the change of checksums over the addresses. */
static __always_inline __u64 px_put_addresses(struct kerb_pkt *pkt, const struct px_session *s)
{
	if (pkt->family == 4) {
		struct iphdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));

		return ip ? px_change4(ip, s) : 0;
	} else {
		struct ipv6hdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));

		return ip ? px_change6(ip, s) : 0;
	}
}

static __always_inline __u64 px_change_addresses(struct kerb_pkt *pkt, const struct px_session *s)
{
	__u64 diff = px_put_addresses(pkt, s);

	if (pkt->family == 6)
		bpf_csum_update(pkt->ctx, kerb_fold(diff));
	return diff;
}

/* By the kernel, which knows the state of the checksum. */
static __always_inline void px_fix_by_helper(kerb_ctx *ctx, __u32 off, __u32 family, __u64 udp,
					     __u16 addresses, __u16 sum)
{
	__u16 ports = kerb_fold((__u64)sum + (__u16)~addresses);

	if (family == 6)
		bpf_csum_update(ctx, addresses);
	bpf_l4_csum_replace(ctx, off, 0, addresses, BPF_F_PSEUDO_HDR | udp);
	if (ports != 0xffff) /* zero */
		bpf_l4_csum_replace(ctx, off, 0, ports, udp);
}

/* The checksum of TCP and UDP at offset off, after addresses and ports have changed: the change by
 * the addresses alone, and by both. Pointers into the packet become invalid. */
static __always_inline void px_fix_check(struct kerb_pkt *pkt, __u32 off, __u32 family, __u32 proto,
					 __u16 addresses, __u16 sum)
{
	__u16 *check = kerb_at(pkt, off, sizeof(*check));
	int summed = kerb_summed(pkt->ctx), udp = proto == IPPROTO_UDP;

	if (summed < 0 || summed == KERB_SUM_COMPLETE) {
		px_fix_by_helper(pkt->ctx, off, family, udp ? BPF_F_MARK_MANGLED_0 : 0, addresses,
				 sum);
		return;
	}
	if (!check || (udp && !*check)) /* none stays none */
		return;
	*check = summed == KERB_SUM_PARTIAL ? kerb_fold((__u64)*check + addresses)
					    : kerb_csum(*check, sum);
	if (udp && !*check)
		*check = 0xffff;
}

/* Replaces the client's address by its virtual one, or the other way round. */
static __noinline int px_translate_client(struct kerb_pkt *pkt, struct px_work *w)
{
	struct px_name *name = px_client_name(&w->flow, &w->made);
	int reverse = w->made.flags & PX_REVERSE;

	if (!name)
		return -1;
	if (pkt->family == 4)
		return reverse ? kerb_set_ip4_daddr(pkt, name->other.word[3])
			       : kerb_set_ip4_saddr(pkt, name->other.word[3]);
	return reverse ? kerb_set_ip6_daddr(pkt, (void *)&name->other)
		       : kerb_set_ip6_saddr(pkt, (void *)&name->other);
}

/* TCP and UDP, complete or a first fragment. */
static __always_inline void px_translate_common(struct kerb_pkt *pkt, const struct px_session *s)
{
	__u32 *port = kerb_at(pkt, pkt->l4, sizeof(*port));
	__u32 from, to = *px_ports((void *)&s->sport);
	__u64 diff;

	if (!port)
		return;
	from = *port;
	*port = to;
	diff = px_put_addresses(pkt, s);
	px_fix_check(pkt, pkt->l4 + (pkt->proto == IPPROTO_TCP ? 16 : 6), pkt->family, pkt->proto,
		     kerb_fold(diff), kerb_fold(diff + kerb_diff32(from, to)));
}

/* ICMP echo: only ICMPv6 sums up the addresses. */
static __always_inline void px_translate_echo(struct kerb_pkt *pkt, const struct px_session *s,
					      int reply)
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
