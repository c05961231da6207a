/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Classes with action forward: packets are routed to another host or interface, to the next hop of
 * the kernel's FIB, with TTL or hop limit decremented. The only targets are those of the
 * configuration. Packets that cannot be forwarded pass unchanged, except that those with TTL 1 are
 * dropped. */
#ifndef ICPT_FORWARD_H
#define ICPT_FORWARD_H

#include "deliver.h"

KERB_CONFIG(_Bool, use_forwards, 1); /* some class forwards */

#define ICPT_DROP_EXPIRED (KERB_DROP_MODULE_FIRST + 2)

/* Why a packet was not forwarded: indexes of icpt_counts.unforwarded. */
enum icpt_unforwarded {
	/* fragments, VLAN tags, IP options, addresses that routers do not forward, partial
	 * checksums (CHECKSUM_PARTIAL) on XDP */
	ICPT_UNSUPPORTED = 0,
	ICPT_NO_ROUTE = 1,
	ICPT_NO_NEIGHBOUR = 2, /* XDP only; on TC the kernel resolves it */
	ICPT_TOO_BIG = 3,
	ICPT_EXPIRED = 4,   /* dropped, as by a router */
	ICPT_ARRIVED = 5,   /* its destination is the target already */
	ICPT_NO_MEMORY = 6, /* dropped, as it may be partly changed */
	ICPT_FORWARDED = 0xff,
};

/* families of struct bpf_fib_lookup */
#define ICPT_AF_INET  2
#define ICPT_AF_INET6 10

/* Verdict, enum icpt_unforwarded, and the ifindex of KERB_REDIRECT in one number. */
#define ICPT_OUTCOME(verdict, why, ifindex) \
	((__u64)(verdict) | (__u64)(why) << 8 | (__u64)(ifindex) << 32)

/* Not in 0.0.0.0/8, loopback, multicast or reserved (RFC 1812, 5.3.7). */
static __always_inline int icpt_is_routable4(__be32 addr)
{
	__u32 first = bpf_ntohl(addr) >> 24;

	return first && first != 127 && first < 224;
}

/* Not multicast, link-local, or in ::/64 (unspecified, loopback, IPv4-mapped). */
static __always_inline int icpt_is_routable6(const struct in6_addr *addr)
{
	const __be32 *w = addr->in6_u.u6_addr32;

	return (w[0] | w[1]) && (w[0] & bpf_htonl(0xff000000)) != bpf_htonl(0xff000000) &&
	       (w[0] & bpf_htonl(0xffc00000)) != bpf_htonl(0xfe800000);
}

/* Returns whether the transport checksum may be partial: the sum of the pseudo-header only, which
 * the sender left to checksum offload. XDP would send it like that; on TC the kernel completes
 * it. */
static __always_inline int icpt_is_partial(const struct kerb_pkt *pkt)
{
#ifdef KERB_HOOK_XDP
	int off = pkt->flags & KERB_F_L4 ? kerb_check_offset(pkt->proto) : -1;
	__u64 sum = (__u64)bpf_htonl(pkt->l4_len) + bpf_htons(pkt->proto);
	__u16 *check = off < 0 ? 0 : kerb_at(pkt, pkt->l4 + off, sizeof(*check));
	struct ipv6hdr *ip6 = kerb_ip6(pkt);
	struct iphdr *ip4 = kerb_ip4(pkt);

	if (ip4)
		sum += (__u64)ip4->saddr + ip4->daddr;
	for (int i = 0; ip6 && i < 4; i++)
		sum += (__u64)ip6->saddr.in6_u.u6_addr32[i] + ip6->daddr.in6_u.u6_addr32[i];
	return check && *check == kerb_fold(sum);
#else
	return 0;
#endif
}

static __always_inline int icpt_can_forward(const struct kerb_pkt *pkt,
					    const struct icpt_target *to)
{
	struct ethhdr *eth = kerb_at(pkt, 0, sizeof(*eth));
	struct ipv6hdr *ip6 = kerb_ip6(pkt);
	struct iphdr *ip4 = kerb_ip4(pkt);

	if (!eth || eth->h_dest[0] & 1 || pkt->l3 != ETH_HLEN ||
	    pkt->flags & (KERB_F_FRAG | KERB_F_OPTIONS | KERB_F_EXT))
		return 0;
#ifdef KERB_HOOK_TC
	if (kerb_ctx_field(pkt->ctx, vlan_present))
		return 0;
#endif
	if (to->family && (to->family != pkt->family || !kerb_udp(pkt)))
		return 0;
	if (icpt_is_partial(pkt))
		return 0;
	if (ip4)
		return icpt_is_routable4(ip4->saddr) && icpt_is_routable4(ip4->daddr);
	return ip6 && icpt_is_routable6(&ip6->saddr) && icpt_is_routable6(&ip6->daddr);
}

/* Returns whether the destination is the target already: the packet was forwarded before, or the
 * target is the service itself. Forwarding it would loop. */
static __always_inline int icpt_is_at_target(const struct kerb_pkt *pkt,
					     const struct icpt_target *to)
{
	struct ipv6hdr *ip6 = kerb_ip6(pkt);
	struct iphdr *ip4 = kerb_ip4(pkt);
	__be16 *ports = kerb_ports(pkt);
	__u32 differs = 0;

	if (!to->family || (to->port && (!ports || ports[1] != to->port)))
		return 0;
	if (ip4)
		return ip4->daddr == to->addr[0];
	for (int i = 0; ip6 && i < 4; i++)
		differs |= ip6->daddr.in6_u.u6_addr32[i] ^ to->addr[i];
	return ip6 && !differs;
}

/* Returns the length that has to fit into the MTU of the route: of a GSO packet, that of one
 * segment; at most 65535. */
static __always_inline __u32 icpt_route_len(const struct kerb_pkt *pkt, __u32 len)
{
#ifdef KERB_HOOK_TC
	__u32 payload = kerb_ctx_field(pkt->ctx, gso_size);
	struct tcphdr *tcp = kerb_tcp(pkt);

	if (payload)
		len = pkt->l4 - pkt->l3 + payload + (tcp ? tcp->doff * 4 : sizeof(struct udphdr));
#endif
	return len < 0xffff ? len : 0xffff;
}

/* Fills the key of the FIB lookup. Returns 0 if a header is missing. */
static __always_inline int icpt_route_fill(const struct kerb_pkt *pkt, const struct icpt_target *to,
					   struct bpf_fib_lookup *fib)
{
	struct ipv6hdr *ip6 = kerb_ip6(pkt);
	struct iphdr *ip4 = kerb_ip4(pkt);
	__be16 *ports = kerb_ports(pkt);
	__u32 len;

	fib->l4_protocol = pkt->proto;
	fib->ifindex = to->named ? to->ifindex : pkt->ifindex;
	if (ports) {
		fib->sport = ports[0];
		fib->dport = to->port ?: ports[1];
	}
	if (ip4) {
		fib->family = ICPT_AF_INET;
		fib->tos = ip4->tos;
		fib->ipv4_src = ip4->saddr;
		fib->ipv4_dst = to->family ? to->addr[0] : ip4->daddr;
		len = bpf_ntohs(ip4->tot_len);
	} else if (ip6) {
		fib->family = ICPT_AF_INET6;
		fib->flowinfo = *(__be32 *)ip6 & bpf_htonl(0x0fffffff);
		__builtin_memcpy(fib->ipv6_src, &ip6->saddr, sizeof(fib->ipv6_src));
		__builtin_memcpy(fib->ipv6_dst, to->family ? (void *)to->addr : &ip6->daddr,
				 sizeof(fib->ipv6_dst));
		len = bpf_ntohs(ip6->payload_len) + sizeof(*ip6);
	} else {
		return 0;
	}
	fib->tot_len = icpt_route_len(pkt, len);
	return 1;
}

/* Returned with an enum icpt_unforwarded; otherwise 0 or BPF_FIB_LKUP_RET_NO_NEIGH. */
#define ICPT_UNREACHABLE 0x100

static __always_inline int icpt_route_lookup(const struct kerb_pkt *pkt,
					     const struct icpt_target *to,
					     struct bpf_fib_lookup *fib)
{
	int rc;

	if ((to->named && !to->ifindex) || !icpt_route_fill(pkt, to, fib))
		return ICPT_UNREACHABLE | ICPT_NO_ROUTE;
	rc = bpf_fib_lookup(pkt->ctx, fib, sizeof(*fib), to->named ? BPF_FIB_LOOKUP_OUTPUT : 0);
	if (rc == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return ICPT_UNREACHABLE | ICPT_TOO_BIG;
	if (rc && rc != BPF_FIB_LKUP_RET_NO_NEIGH)
		return ICPT_UNREACHABLE | ICPT_NO_ROUTE;
	/* for IPv6 the lookup may return another interface */
	return to->named && fib->ifindex != to->ifindex ? ICPT_UNREACHABLE | ICPT_NO_ROUTE : rc;
}

static __always_inline int icpt_set_destination(struct kerb_pkt *pkt, const struct icpt_target *to)
{
	struct in6_addr addr;
	int rc;

	if (!to->family)
		return 0;
	if (pkt->family == 4) {
		rc = kerb_set_ip4_daddr(pkt, to->addr[0]);
	} else {
		__builtin_memcpy(&addr, to->addr, sizeof(addr));
		rc = kerb_set_ip6_daddr(pkt, &addr);
	}
	return rc ?: to->port ? kerb_set_dport(pkt, to->port) : 0;
}

#define ICPT_PARTLY_CHANGED ICPT_OUTCOME(KERB_DROP, ICPT_NO_MEMORY, 0)

#ifdef KERB_HOOK_XDP

/* Not all drivers can transmit what XDP redirects, and XDP cannot resolve neighbours: a packet is
 * redirected only to an interface that the class names. Otherwise it continues to the network
 * stack, which forwards it by its new destination. */
static __always_inline __u64 icpt_packet_send(struct kerb_pkt *pkt, const struct icpt_target *to,
					      const struct bpf_fib_lookup *fib, int no_neighbour,
					      __u8 ttl)
{
	int direct = to->named && !no_neighbour && pkt->data + pkt->len <= pkt->data_end;
	struct ethhdr *eth;

	if (!direct && !to->family)
		return ICPT_OUTCOME(KERB_NEXT, no_neighbour ? ICPT_NO_NEIGHBOUR : ICPT_UNSUPPORTED,
				    0);
	if (icpt_set_destination(pkt, to))
		return ICPT_PARTLY_CHANGED;
	if (!direct)
		return ICPT_OUTCOME(KERB_NEXT, ICPT_FORWARDED, 0);
	if (kerb_set_ttl(pkt, ttl - 1))
		return ICPT_PARTLY_CHANGED;
	eth = kerb_at(pkt, 0, sizeof(*eth));
	if (!eth)
		return ICPT_PARTLY_CHANGED;
	__builtin_memcpy(eth->h_dest, fib->dmac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, fib->smac, ETH_ALEN);
	return ICPT_OUTCOME(KERB_REDIRECT, ICPT_FORWARDED, fib->ifindex);
}

#else

/* The kernel resolves the neighbour and writes the Ethernet header. */
static __always_inline __u64 icpt_packet_send(struct kerb_pkt *pkt, const struct icpt_target *to,
					      const struct bpf_fib_lookup *fib, int no_neighbour,
					      __u8 ttl)
{
	if (icpt_set_destination(pkt, to) || kerb_set_ttl(pkt, ttl - 1))
		return ICPT_PARTLY_CHANGED;
	return ICPT_OUTCOME(KERB_REDIRECT, ICPT_FORWARDED, fib->ifindex);
}

#endif

/* Forwards a packet and returns ICPT_OUTCOME. Global like icpt_classify. offsets and kind as for
 * icpt_reply_create. */
__attribute__((noinline)) __u64 icpt_route(kerb_ctx *ctx, __u32 offsets, __u32 kind, __u32 l4_len,
					   __u32 len)
{
	struct kerb_pkt pkt = ICPT_UNPACK_PKT(ctx, offsets, kind, l4_len, len);
	struct icpt_table *t = icpt_table(!!(kind & ICPT_HALF));
	__u32 class = kind & (ICPT_CLASSES - 1);
	struct bpf_fib_lookup fib = {};
	const struct icpt_target *to;
	int rc, ttl;

	if (!t)
		return KERB_NEXT;
	/* otherwise the compiler omits arguments that only XDP uses, and the verifier rejects the
	 * call */
	asm volatile("" ::"r"(l4_len), "r"(len));
	kerb_opaque(class);
	to = &t->classes[0][class & (ICPT_CLASSES - 1)].target; /* the same in both copies */
	kerb_reload(&pkt);
	if (!icpt_can_forward(&pkt, to))
		return ICPT_OUTCOME(KERB_NEXT, ICPT_UNSUPPORTED, 0);
	if (icpt_is_at_target(&pkt, to))
		return ICPT_OUTCOME(KERB_NEXT, ICPT_ARRIVED, 0);
	rc = icpt_route_lookup(&pkt, to, &fib);
	if (rc & ICPT_UNREACHABLE)
		return ICPT_OUTCOME(KERB_NEXT, rc & 0xff, 0);
	ttl = kerb_ttl(&pkt);
	if (ttl <= 1)
		return ICPT_OUTCOME(KERB_DROP, ICPT_EXPIRED, 0);
	return icpt_packet_send(&pkt, to, &fib, rc, ttl);
}

static __always_inline int icpt_forward(struct kerb_pkt *pkt, const struct icpt_found *k,
					struct icpt_counts *n)
{
	__u32 class = k->class | k->half * ICPT_HALF;
	__u64 outcome = icpt_route(pkt->ctx, ICPT_OFFSETS(pkt), ICPT_KIND(pkt, class), pkt->l4_len,
				   pkt->len);
	__u64 why = outcome >> 8 & 0xff;

	kerb_reload(pkt);
	if (why == ICPT_FORWARDED) {
		n->forwarded++;
	} else {
		kerb_bound(why, ICPT_REASONS - 1);
		n->unforwarded[why]++;
	}
	switch (outcome & 0xff) {
	case KERB_DROP:
		return kerb_drop(pkt,
				 why == ICPT_EXPIRED ? ICPT_DROP_EXPIRED : KERB_DROP_NO_MEMORY);
	case KERB_REDIRECT:
		return kerb_redirect(pkt, outcome >> 32, KERB_TO_NEIGH);
	}
	return KERB_NEXT;
}

#endif
