/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* From a service to another node. Packets that are too big are answered, or fragmented if their
 * sender allows that. */
#ifndef TUN_ENCAP_H
#define TUN_ENCAP_H

#include <kerb/answer.h>
#include "fragment.h"
#include "name.h"

#define TUN_TTL	       64
/* source ports: 16384 of them, one per flow, by which network cards and routers balance load */
#define TUN_PORT_FIRST 49152
#define TUN_PORT_MASK  0x3fff

struct tun_tail {
	struct udphdr udp;
	struct tun_header header;
	__u32 mac[2]; /* in halves, as it is not aligned to eight bytes */
};

struct tun_outer4 {
	struct iphdr ip;
	struct tun_tail tail;
};

struct tun_outer6 {
	struct ipv6hdr ip;
	struct tun_tail tail;
};

/* With the headers, large packets may be longer than a length field can express. It is set again
 * for each segment. */
static __always_inline __be16 tun_len16(__u32 len)
{
	return bpf_htons(len > 0xffff ? 0xffff : len);
}

/* The UDP checksum is zero, also over IPv6 (RFC 6935): the inner packet has its own, and the MAC
 * protects the addresses. */
static __always_inline void tun_fill_tail(struct tun_tail *t, struct kerb_pkt *pkt,
					  const struct tun_node *n, struct tun_flow *f, __u32 inner)
{
	t->udp.source = bpf_htons(TUN_PORT_FIRST + (kerb_hash(pkt, 0) & TUN_PORT_MASK));
	t->udp.dest = bpf_htons(n->port ?: tun_port(f->half));
	t->udp.len = tun_len16(sizeof(struct udphdr) + TUN_HEADER_LEN + inner);
	t->udp.check = 0;
	t->header = f->header;
}

/* Inserts and writes the headers. fixed: segments keep their size, which is known to fit. */
static __always_inline int tun_push(struct kerb_pkt *pkt, const void *outer, __u32 len, __u64 l3,
				    __be16 type)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	int rc = kerb_adjust_room(pkt, len, flags | BPF_F_ADJ_ROOM_ENCAP_L4_UDP | l3);

	/* The kernel considers a packet that came through a tunnel over a veth as encapsulated even
	 * when a module sends it back. Unless it is to be segmented, or has another IP version,
	 * inserting bytes is sufficient. */
	if (rc == -EALREADY && !kerb_ctx_field(pkt->ctx, gso_size) &&
	    kerb_ctx_field(pkt->ctx, protocol) == type)
		rc = kerb_adjust_room(pkt, len, flags);
	rc = rc ?: kerb_store_bytes(pkt, ETH_HLEN, outer, len);
	return rc
		       ?: kerb_store_bytes(pkt, __builtin_offsetof(struct ethhdr, h_proto), &type,
					   sizeof(type));
}

static __always_inline int tun_push4(struct kerb_pkt *pkt, const struct tun_node *n,
				     struct tun_flow *f, __u64 mac)
{
	__u32 inner = tun_length(pkt);
	struct tun_outer4 o = { .ip = { .version = 4,
					.ihl = 5,
					.tos = f->tos,
					.ttl = TUN_TTL,
					.protocol = IPPROTO_UDP,
					/* DF */
					.tot_len = tun_len16(TUN_OVERHEAD(0) + inner),
					.frag_off = bpf_htons(0x4000),
					.saddr = n->local.in6_u.u6_addr32[3],
					.daddr = n->addr.in6_u.u6_addr32[3] },
				.tail.mac = { mac, mac >> 32 } };
	__u32 *words = (__u32 *)&o.ip;

	tun_fill_tail(&o.tail, pkt, n, f, inner);
	o.ip.check = ~kerb_fold((__u64)words[0] + words[1] + words[2] + words[3] + words[4]);
	return tun_push(pkt, &o, TUN_OVERHEAD(0), BPF_F_ADJ_ROOM_ENCAP_L3_IPV4,
			bpf_htons(ETH_P_IP));
}

static __always_inline int tun_push6(struct kerb_pkt *pkt, const struct tun_node *n,
				     struct tun_flow *f, __u64 mac)
{
	__u32 inner = tun_length(pkt);
	struct tun_outer6 o = { .ip = { .version = 6,
					.priority = f->tos >> 4,
					.flow_lbl = { f->tos << 4 },
					.hop_limit = TUN_TTL,
					.nexthdr = IPPROTO_UDP,
					.saddr = n->local,
					.daddr = n->addr,
					.payload_len = tun_len16(TUN_OVERHEAD(1) -
								 sizeof(struct ipv6hdr) + inner) },
				.tail.mac = { mac, mac >> 32 } };

	tun_fill_tail(&o.tail, pkt, n, f, inner);
	__builtin_memcpy(&o.ip.flow_lbl[1], &o.tail.udp.source, 2); /* RFC 6438 */
	return tun_push(pkt, &o, TUN_OVERHEAD(1), BPF_F_ADJ_ROOM_ENCAP_L3_IPV6,
			bpf_htons(ETH_P_IPV6));
}

static __always_inline int tun_is4(const struct in6_addr *addr)
{
	return !addr->in6_u.u6_addr32[0] && !addr->in6_u.u6_addr32[1] &&
	       addr->in6_u.u6_addr32[2] == TUN_MAPPED;
}

/* Uses the kernel's tunnel device, in collect-metadata mode. */
static __always_inline int tun_encap_device(struct kerb_pkt *pkt, const struct tun_node *n,
					    const struct tun_flow *f)
{
	struct bpf_tunnel_key key = { .tunnel_id = tun_network(f->half),
				      .tunnel_tos = f->tos & ~3,
				      .tunnel_ttl = TUN_TTL };
	__u64 flags = BPF_F_DONT_FRAGMENT;

	if (tun_is4(&n->addr)) {
		key.remote_ipv4 = bpf_ntohl(n->addr.in6_u.u6_addr32[3]);
		/* over IPv6 a device sends a zero checksum only on request */
		flags |= BPF_F_ZERO_CSUM_TX;
	} else {
		__builtin_memcpy(key.remote_ipv6, &n->addr, sizeof(n->addr));
		flags |= BPF_F_TUNINFO_IPV6;
	}
	if (bpf_skb_set_tunnel_key(pkt->ctx, &key, sizeof(key), flags))
		return kerb_drop(pkt, KERB_DROP_NO_MEMORY);
	return kerb_redirect_deferred(pkt, n->ifindex, 0);
}

/* Writes the tunnel header. Returns 0 if there is no key to send with. */
static __always_inline int tun_fill_header(struct tun_flow *f, __u32 at, __u64 *mac)
{
	struct tun_keys *k;

	f->header.version_flags = TUN_VERSION << 4;
	f->header.network = bpf_htons(tun_network(f->half));
	if (!keyed)
		return 1;
	k = tun_keys_lookup(at, f->half);
	if (!k || !k->id[0])
		return 0;
	f->header.version_flags |= TUN_F_MAC | (k->bound & 1 ? TUN_F_BOUND : 0);
	f->header.key = k->id[0];
	*mac = tun_mac(f, &k->send[0], k->bound & 1);
	return 1;
}

static __always_inline int tun_encap_udp(struct kerb_pkt *pkt, const struct tun_node *n, __u32 at,
					 struct tun_flow *f)
{
	__u64 mac = 0;
	int rc;

	if (mode == TUN_MODE_KERB && !tun_fill_header(f, at, &mac))
		return kerb_drop(pkt, TUN_DROP_UNKNOWN_KEY);
	rc = tun_is4(&n->addr) ? tun_push4(pkt, n, f, mac) : tun_push6(pkt, n, f, mac);
	if (rc == -EALREADY)
		return kerb_drop(pkt, TUN_DROP_NESTED);
	if (rc)
		return kerb_drop(pkt, KERB_DROP_NO_MEMORY);
	return kerb_redirect_deferred(pkt, n->ifindex, KERB_TO_NEIGH | KERB_TO_REPARSE);
}

static __always_inline int tun_transmit(struct kerb_pkt *pkt, const struct tun_node *n,
					struct tun_stats *s, __u32 at, struct tun_flow *f)
{
	s->sent_packets++;
	s->sent_bytes += tun_length(pkt);
	return mode == TUN_MODE_DEVICE ? tun_encap_device(pkt, n, f) : tun_encap_udp(pkt, n, at, f);
}

static __always_inline __u32 tun_node_of(const struct in6_addr *addr, __u32 half)
{
	struct tun_end *end = tun_address_lookup(addr, half);

	return end ? end->node : 0;
}

static __always_inline int tun_send(struct kerb_pkt *pkt)
{
	struct tun_flow f = {};
	struct tun_end *to;
	struct tun_node *n;
	struct tun_stats *s;
	__u32 at, mtu;

	if (kerb_is_redirected(pkt)) /* to a service of this node, by the proxy */
		return KERB_NEXT;
	kerb_forget(pkt);
	if (pkt->vlan || pkt->l3 != ETH_HLEN || !tun_read(pkt, &f))
		return KERB_NEXT;
	f.half = kerb_tunables_half();
	to = tun_address_lookup(&f.dst, f.half);
	if (!to || !to->node)
		return KERB_NEXT;
	at = to->node;
	n = bpf_map_lookup_elem(&nodes, &at);
	s = bpf_map_lookup_elem(&stats, &at);
	if (n && n->self)
		return KERB_NEXT;
	if (pkt->outcome)
		return kerb_drop(pkt, KERB_DROP_MALFORMED);
	if (!n || !s || !n->ifindex)
		return kerb_drop(pkt, KERB_DROP_NO_ROUTE);
	if (n->refuse & TUN_REFUSE_OUT)
		return kerb_drop(pkt, TUN_DROP_IPSEC);
	mtu = tun_mtu(n);
	if (tun_wire_length(pkt) > mtu) {
		if (tun_may_fragment(pkt)) {
			s->fragmented++;
			return tun_fragment(pkt, n, mtu);
		}
		s->too_big++;
		return kerb_icmp_too_big(pkt, mtu) == KERB_REPLY
			       ? KERB_REPLY
			       : kerb_drop(pkt, KERB_DROP_TOO_BIG);
	}
	if (tun_mss_clamp(pkt, mtu))
		return kerb_drop(pkt, KERB_DROP_NO_MEMORY);
	return tun_transmit(pkt, n, s, at, &f);
}

/* A packet that this module has received with the mark of a fragment: on the underlay interface,
 * from itself. */
static __noinline int tun_send_piece(struct kerb_pkt *pkt, __u32 which)
{
	struct tun_flow f = {.half = kerb_tunables_half()};
	struct in6_addr dst;
	struct tun_node *n;
	struct tun_stats *s;
	struct iphdr *ip;
	__u32 at;

	tun_set_mark(pkt, 0);
	if (!tun_add_link_header(pkt))
		return kerb_drop(pkt, KERB_DROP_NO_MEMORY);
	kerb_reload(pkt);
	ip = kerb_at(pkt, ETH_HLEN, sizeof(*ip));
	if (!ip)
		return kerb_drop(pkt, KERB_DROP_MALFORMED);
	dst = tun_mapped(ip->daddr);
	at = tun_node_of(&dst, f.half);
	n = bpf_map_lookup_elem(&nodes, &at);
	s = bpf_map_lookup_elem(&stats, &at);
	if (!at || !n || !s || !n->ifindex)
		return kerb_drop(pkt, KERB_DROP_NO_ROUTE);
	if (tun_extract_fragment(pkt, which, tun_mtu(n)))
		return kerb_drop(pkt, KERB_DROP_NO_MEMORY);
	kerb_forget(pkt);
	if (!tun_read(pkt, &f))
		return kerb_drop(pkt, KERB_DROP_MALFORMED);
	return tun_transmit(pkt, n, s, at, &f);
}

#endif
