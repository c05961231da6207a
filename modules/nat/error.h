/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ICMP errors about translated packets (RFC 5508, 4): the receiver must recognize its own packet in
 * the quote. Part of translate.h. */
#ifndef NAT_ERROR_H
#define NAT_ERROR_H

/* Returns the offset of the quoted packet's transport header, or 0. Sets w->inside to its protocol,
 * and to the address of its translated end. */
static __always_inline __u64 nat_read_quote(const struct kerb_pkt *pkt, struct nat_work *w,
					    __u64 off, bool destination)
{
	struct ipv6hdr *ip6;
	struct iphdr *ip4;

	if (pkt->family == 4) {
		ip4 = kerb_at(pkt, off, sizeof(*ip4));
		if (!ip4 || ip4->version != 4 || ip4->ihl < 5 ||
		    ip4->frag_off & bpf_htons(KERB_IP_FRAG_LATER))
			return 0;
		w->inside.proto = ip4->protocol;
		nat_set4(&w->inside.addr, destination ? ip4->daddr : ip4->saddr);
		return off + ip4->ihl * 4;
	}
	ip6 = kerb_at(pkt, off, sizeof(*ip6));
	if (!ip6 || ip6->version != 6)
		return 0;
	w->inside.proto = ip6->nexthdr;
	__builtin_memcpy(&w->inside.addr, destination ? &ip6->daddr : &ip6->saddr,
			 sizeof(w->inside.addr));
	return off + sizeof(*ip6);
}

/* Returns the offset of the port or echo identifier of that end, or 0. Extension headers are not
 * followed. */
static __always_inline __u64 nat_quoted_port(const struct kerb_pkt *pkt, const struct nat_work *w,
					     __u64 off, bool destination)
{
	struct nat_icmp *icmp;
	__u8 request = pkt->family == 4 ? 8 : 128, reply = pkt->family == 4 ? 0 : 129;

	if (w->inside.proto == IPPROTO_TCP || w->inside.proto == IPPROTO_UDP)
		return off + 2 * destination;
	if (w->inside.proto != (pkt->family == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6))
		return 0;
	icmp = kerb_at(pkt, off, sizeof(*icmp));
	return icmp && icmp->type == (destination ? reply : request) ? off + 4 : 0;
}

static __always_inline __u64 nat_replace_quoted_address(struct kerb_pkt *pkt, __u64 off,
							bool destination, const struct nat_addr *to)
{
	struct ipv6hdr *ip6;
	struct iphdr *ip4;
	__u64 diff = 0;
	__u32 *addr;

	if (pkt->family == 4) {
		ip4 = kerb_at(pkt, off, sizeof(*ip4));
		if (!ip4)
			return 0;
		addr = destination ? &ip4->daddr : &ip4->saddr;
		diff = kerb_diff32(*addr, to->word[3]);
		*addr = to->word[3];
		ip4->check = kerb_csum(ip4->check, diff);
		return diff;
	}
	ip6 = kerb_at(pkt, off, sizeof(*ip6));
	if (!ip6)
		return 0;
	addr = (void *)(destination ? &ip6->daddr : &ip6->saddr);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		diff += kerb_diff32(addr[i], to->word[i]);
		addr[i] = to->word[i];
	}
	return diff;
}

/* The quoted packet's own checksum, if it is quoted. Returns the change that it causes. */
static __always_inline __u64 nat_replace_quoted_check(struct kerb_pkt *pkt,
						      const struct nat_work *w, __u64 l4,
						      __u64 addresses, __u64 ports)
{
	__u64 off = l4 + (w->inside.proto == IPPROTO_TCP   ? 16
			  : w->inside.proto == IPPROTO_UDP ? 6
							   : 2);
	__u64 diff = ports;
	__u16 *check = kerb_at(pkt, off, sizeof(*check)), before;

	if (w->inside.proto != IPPROTO_ICMP)
		diff += addresses;
	if (!check || off + sizeof(*check) > pkt->l4 + pkt->l4_len ||
	    (w->inside.proto == IPPROTO_UDP && !*check))
		return 0;
	before = *check;
	*check = kerb_csum(before, diff);
	return kerb_diff16(before, *check);
}

/* from_service: the error is about a packet to it. In IPv4 the checksum of the quoted header
 * compensates its addresses. */
static __noinline int nat_error(struct kerb_pkt *pkt, struct nat_work *w, __u32 from_service)
{
	__u64 quote = pkt->l4 + sizeof(struct nat_icmp), l4, at, addresses, ports;
	bool destination = from_service;
	struct nat_addr *to;
	__be16 *port;
	int rc;

	if (quote > KERB_MAX_HDRS - NAT_QUOTE_MAX)
		return -EINVAL;
	bpf_skb_pull_data(pkt->ctx,
			  pkt->len < quote + NAT_QUOTE_MAX ? pkt->len : quote + NAT_QUOTE_MAX);
	kerb_reload(pkt);
	l4 = nat_read_quote(pkt, w, quote, destination);
	at = l4 ? nat_quoted_port(pkt, w, l4, destination) : 0;
	port = at ? kerb_at(pkt, at, sizeof(*port)) : 0;
	if (!port || at + sizeof(*port) > pkt->l4 + pkt->l4_len)
		return -ENOENT;
	w->inside.port = *port;
	if (from_service) {
		rc = nat_outside_of(pkt, w, 0);
		to = &w->own;
	} else {
		rc = nat_equal(&w->inside.addr, &w->own) ? nat_inside_of(pkt, w) : -ENOENT;
		to = &w->inside.addr;
	}
	if (rc)
		return rc;
	addresses = nat_replace_quoted_address(pkt, quote, destination, to);
	port = kerb_at(pkt, at, sizeof(*port));
	if (!port)
		return -EINVAL;
	ports = kerb_diff16(*port, from_service ? w->outside.port : w->inside.port);
	*port = from_service ? w->outside.port : w->inside.port;
	/* odd offsets do not occur: headers have even lengths */
	ports += nat_replace_quoted_check(pkt, w, l4, addresses, ports);
	if (pkt->family == 6)
		ports += addresses;
	rc = bpf_l4_csum_replace(pkt->ctx, pkt->l4 + 2, 0, kerb_fold(ports), 0);
	kerb_reload(pkt);
	return rc || nat_set_address(pkt, !destination, to) ? -EINVAL : 0;
}

#endif
