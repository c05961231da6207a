/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ICMP errors about a tracked connection. */
#ifndef FW_ICMP_H
#define FW_ICMP_H

#include "flow.h"

/* Reads the ports or echo identifier of the packet quoted in an error, which was sent in the
 * opposite direction. Returns 0 if they identify no connection. */
static __always_inline int fw_read_quoted_ports(const struct kerb_pkt *pkt, struct fw_flow *f,
						__u64 off, __u8 proto)
{
	int in = f->dir == FW_INGRESS, v4 = pkt->family == 4;
	__be16 local = 0, remote = 0;

	f->proto = proto;
	f->kind = FW_PLAIN;
	if (proto == IPPROTO_TCP || proto == IPPROTO_UDP) {
		__be16 *port = kerb_at(pkt, off, 8); /* RFC 792 quotes that much */

		if (!port)
			return 0;
		f->seq = bpf_ntohl(*(__be32 *)(port + 2)); /* of TCP */
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

/* Sets the key to that of the packet quoted in an error. An error goes to the sender of that
 * packet. */
static __always_inline int fw_read_quoted4(const struct kerb_pkt *pkt, struct fw_flow *f)
{
	struct iphdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));
	struct iphdr *quoted = kerb_at(pkt, pkt->l4 + sizeof(struct fw_icmp), sizeof(*quoted));
	int in = f->dir == FW_INGRESS;
	__u32 hlen;

	if (!ip || !quoted || quoted->version != 4 ||
	    quoted->frag_off & bpf_htons(KERB_IP_FRAG_LATER))
		return 0;
	hlen = quoted->ihl * 4;
	if (hlen < sizeof(*quoted) || quoted->saddr != ip->daddr)
		return 0;
	f->key4.local = in ? quoted->saddr : quoted->daddr;
	f->key4.remote = in ? quoted->daddr : quoted->saddr;
	return fw_read_quoted_ports(pkt, f, pkt->l4 + sizeof(struct fw_icmp) + hlen,
				    quoted->protocol);
}

/* The same for IPv6. Extension headers of the quoted packet are not followed: such errors are left
 * to the rules. */
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
	return fw_read_quoted_ports(pkt, f, pkt->l4 + sizeof(struct fw_icmp) + sizeof(*quoted),
				    quoted->nexthdr);
}

static __always_inline void fw_read_quoted(const struct kerb_pkt *pkt, struct fw_flow *f)
{
	f->quoting = pkt->family == 4 ? fw_read_quoted4(pkt, f) : fw_read_quoted6(pkt, f);
	if (!f->quoting)
		f->kind = FW_ERROR;
}

#endif
