/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ICMP that other traffic needs: errors about a tracked connection, and what IPv6 needs on its link. */
#ifndef FW_ICMP_H
#define FW_ICMP_H

#include "flow.h"

#define ND_FIRST   133 /* router solicitation; 134 advertisement, 135 and 136 for neighbours, 137 redirect (RFC 4861) */
#define ND_LAST	   137
#define MLD_FIRST  130 /* query, report, done (RFC 2710) */
#define MLD_LAST   132
#define MLD_REPORT 143 /* RFC 3810 */

/* Neighbour discovery with hop limit 255, which no router lets through, and multicast listener discovery from a link-local
 * (or no) address with hop limit 1. */
static __always_inline int fw_is_link(const struct kerb_pkt *pkt)
{
	struct ipv6hdr *ip;
	struct fw_icmp *icmp;

	if (pkt->proto != IPPROTO_ICMPV6 || pkt->family != 6 || !(pkt->flags & KERB_F_L4))
		return 0;
	ip = kerb_at(pkt, pkt->l3, sizeof(*ip));
	icmp = kerb_at(pkt, pkt->l4, sizeof(*icmp));
	if (!ip || !icmp || icmp->code)
		return 0;
	if (icmp->type >= ND_FIRST && icmp->type <= ND_LAST)
		return ip->hop_limit == 255;
	if ((icmp->type < MLD_FIRST || icmp->type > MLD_LAST) && icmp->type != MLD_REPORT)
		return 0;
	if (ip->hop_limit != 1)
		return 0;
	if ((ip->saddr.s6_addr32[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000))
		return 1;
	return !(ip->saddr.s6_addr32[0] | ip->saddr.s6_addr32[1] | ip->saddr.s6_addr32[2] | ip->saddr.s6_addr32[3]);
}

/* The ports or echo identifier of the packet that an error quotes, which went the other way. Returns 0 when they tell
 * nothing of a connection. */
static __always_inline int fw_read_quoted_ports(const struct kerb_pkt *pkt, struct fw_flow *f, __u64 off, __u8 proto)
{
	int in = f->dir == FW_INGRESS, v4 = pkt->family == 4;
	__be16 local = 0, remote = 0;

	f->proto = proto;
	f->kind = FW_PLAIN;
	if (proto == IPPROTO_TCP || proto == IPPROTO_UDP) {
		__be16 *port = kerb_at(pkt, off, 4);

		if (!port)
			return 0;
		local = in ? port[0] : port[1];
		remote = in ? port[1] : port[0];
	} else if (proto == (v4 ? IPPROTO_ICMP : IPPROTO_ICMPV6)) {
		struct fw_icmp *quoted = kerb_at(pkt, off, sizeof(*quoted));

		if (!quoted)
			return 0;
		f->kind = fw_icmp_kind(v4, quoted->type, !f->dir);
		if (f->kind != FW_ECHO_LOCAL && f->kind != FW_ECHO_REMOTE)
			return 0;
		local = quoted->id;
	}
	fw_set_key(f, v4, local, remote);
	return 1;
}

/* Makes the key that of the packet that an error quotes. An error goes to whom that packet came from. */
static __always_inline int fw_read_quoted4(const struct kerb_pkt *pkt, struct fw_flow *f)
{
	struct iphdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));
	struct iphdr *quoted = kerb_at(pkt, pkt->l4 + sizeof(struct fw_icmp), sizeof(*quoted));
	int in = f->dir == FW_INGRESS;
	__u32 hlen;

	if (!ip || !quoted || quoted->version != 4 || quoted->frag_off & bpf_htons(KERB_IP_FRAG_LATER))
		return 0;
	hlen = quoted->ihl * 4;
	if (hlen < sizeof(*quoted) || quoted->saddr != ip->daddr)
		return 0;
	f->key4.local = in ? quoted->saddr : quoted->daddr;
	f->key4.remote = in ? quoted->daddr : quoted->saddr;
	return fw_read_quoted_ports(pkt, f, pkt->l4 + sizeof(struct fw_icmp) + hlen, quoted->protocol);
}

/* The same for IPv6. Extension headers of the quoted packet are not followed: those errors are left to the rules. */
static __always_inline int fw_read_quoted6(const struct kerb_pkt *pkt, struct fw_flow *f)
{
	struct ipv6hdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));
	struct ipv6hdr *quoted = kerb_at(pkt, pkt->l4 + sizeof(struct fw_icmp), sizeof(*quoted));
	int in = f->dir == FW_INGRESS;

	if (!ip || !quoted || quoted->version != 6)
		return 0;
	if (__builtin_memcmp(&quoted->saddr, &ip->daddr, 16))
		return 0;
	__builtin_memcpy(f->key6.local, in ? &quoted->saddr : &quoted->daddr, 16);
	__builtin_memcpy(f->key6.remote, in ? &quoted->daddr : &quoted->saddr, 16);
	return fw_read_quoted_ports(pkt, f, pkt->l4 + sizeof(struct fw_icmp) + sizeof(*quoted), quoted->nexthdr);
}

static __always_inline void fw_read_quoted(const struct kerb_pkt *pkt, struct fw_flow *f)
{
	f->quoting = pkt->family == 4 ? fw_read_quoted4(pkt, f) : fw_read_quoted6(pkt, f);
	if (!f->quoting)
		f->kind = FW_ERROR;
}

#endif
