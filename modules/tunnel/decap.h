/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* From the underlay to a service of this node. */
#ifndef TUN_DECAP_H
#define TUN_DECAP_H

#include "icmp.h"
#include "name.h"
#include "segment.h"

KERB_CONFIG(_Bool, decap_l3, 1); /* BPF_F_ADJ_ROOM_DECAP_L3_* (Linux 6.3) */

#define TUN_DECAP_L3_IPV4 (1ULL << 7) /* younger than the headers of Debian 12 */
#define TUN_DECAP_L3_IPV6 (1ULL << 8)

#define TUN_ECN	   3
#define TUN_ECT1   1
#define TUN_ECT0   2
#define TUN_ECN_CE 3

/* The state of the outer packet after its removal. */
struct tun_arrival {
	struct in6_addr from;
	struct tun_header header;
	__u32 room; /* bytes that the outer packet has for the inner one */
	union {
		__u64 mac;
		struct { /* mode oakestra: of the outer packet */
			struct in6_addr to;
			__be16 port;
		};
	};
	__u8 tos;
	__u8 version; /* of the inner packet */
	__u8 via[6];  /* MAC address of this node */
	__u8 half;    /* of the config that applies to this packet */
	__sum16 sum;  /* UDP checksum in mode oakestra; Kerb sends none */
};

/* Reads the tunnel header. Returns 0, or a drop reason. */
static __always_inline int tun_read_header(struct kerb_pkt *pkt, struct tun_arrival *a)
{
	__u32 off = pkt->l4 + sizeof(struct udphdr);

	if (kerb_load_bytes(pkt, off + TUN_HEADER_LEN, &a->version, 1))
		return TUN_DROP_BAD_HEADER;
	a->version >>= 4;
	if (mode == TUN_MODE_OAKESTRA)
		return 0;
	if (kerb_load_bytes(pkt, off, &a->header, sizeof(a->header)))
		return TUN_DROP_BAD_HEADER;
	if (a->header.version_flags >> 4 != TUN_VERSION ||
	    a->header.version_flags & 0xf & ~TUN_F_KNOWN)
		return TUN_DROP_BAD_HEADER;
	if (a->header.network != bpf_htons(tun_network(a->half)))
		return TUN_DROP_OTHER_NETWORK;
	if (!keyed)
		return a->header.version_flags & TUN_F_KNOWN || a->header.key ? TUN_DROP_UNKNOWN_KEY
									      : 0;
	if (!(a->header.version_flags & TUN_F_MAC))
		return TUN_DROP_NO_MAC;
	return kerb_load_bytes(pkt, off + sizeof(a->header), &a->mac, sizeof(a->mac))
		       ? TUN_DROP_BAD_HEADER
		       : 0;
}

/* The outer packet's checksum may have been left to a card that a virtual link does not have
 * (CHECKSUM_PARTIAL). The kernel would apply that state to the inner packet. It ends when bytes
 * after the start of the sum are removed by a second call; they are inserted again. */
#define TUN_TAKEN 10
static __noinline int tun_partial_clear(struct kerb_pkt *pkt)
{
	__u8 head[2 * TUN_TAKEN];
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	__u32 least = ETH_HLEN + sizeof(struct ipv6hdr) + sizeof(head);
	int rc;

	if (!kerb_is_partial(pkt))
		return 0;
	if (pkt->len < least)
		bpf_skb_change_tail(pkt->ctx, least, 0);
	rc = bpf_skb_load_bytes(pkt->ctx, ETH_HLEN, head, sizeof(head));
	rc = rc ?: kerb_adjust_room(pkt, -TUN_TAKEN, flags);
	rc = rc ?: kerb_adjust_room(pkt, -TUN_TAKEN, flags);
	rc = rc ?: kerb_adjust_room(pkt, sizeof(head), flags);
	return rc ?: kerb_store_bytes(pkt, ETH_HLEN, head, sizeof(head));
}

/* Removes the outer headers, which leaves a frame with an inner packet of this type (ETH_P_IP or
 * ETH_P_IPV6). */
static __always_inline int tun_pop(struct kerb_pkt *pkt, __u32 type, __sum16 sum)
{
	__s32 len = pkt->l4 - pkt->l3 + sizeof(struct udphdr) + TUN_HEADER_LEN;
	__u64 l3 = type == ETH_P_IP ? TUN_DECAP_L3_IPV4 : TUN_DECAP_L3_IPV6;
	__be16 wire = bpf_htons(type);
	int rc;

	/* Such a kernel requires room for an IPv6 header, even if the rest is IPv4. IP cuts off the
	 * padding. */
	if (!decap_l3 && type == ETH_P_IP && pkt->len - len < ETH_HLEN + sizeof(struct ipv6hdr))
		bpf_skb_change_tail(pkt->ctx,
				    pkt->len + sizeof(struct ipv6hdr) - sizeof(struct iphdr), 0);
	rc = kerb_adjust_room(pkt, -len, BPF_F_ADJ_ROOM_FIXED_GSO | (decap_l3 ? l3 : 0));
	if (mode == TUN_MODE_OAKESTRA && !rc && sum)
		rc = tun_partial_clear(pkt);
	if (rc ||
	    kerb_store_bytes(pkt, __builtin_offsetof(struct ethhdr, h_proto), &wire, sizeof(wire)))
		return -EINVAL;
	if (pkt->data + TUN_PULL > pkt->data_end) {
		bpf_skb_pull_data(pkt->ctx, pkt->len < TUN_PULL ? pkt->len : TUN_PULL);
		kerb_reload(pkt);
	}
	return kerb_reparse(pkt);
}

static __always_inline int tun_same(const struct in6_addr *a, const struct in6_addr *b)
{
	const __u32 *x = a->in6_u.u6_addr32, *y = b->in6_u.u6_addr32;

	return !((x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]) | (x[3] ^ y[3]));
}

/* at: index of the node that the packet comes from. */
static __always_inline int tun_mac_is_right(const struct kerb_pkt *pkt, struct tun_flow *f,
					    const struct tun_arrival *a, __u32 at)
{
	struct tun_keys *k = tun_keys_lookup(at, f->half);
	const struct tun_key *key = k ? tun_receive_key(pkt, k, &a->header) : 0;

	if (!key)
		return -ENOENT;
	f->header = a->header;
	return tun_mac(f, key, a->header.version_flags & TUN_F_BOUND) == a->mac;
}

/* Writes the ECN field of the inner packet. */
static __always_inline int tun_set_ecn(struct kerb_pkt *pkt, __u8 ecn)
{
	struct iphdr *ip4 = kerb_ip4(pkt);
	struct ipv6hdr *ip6;
	__be16 word;

	if (ip4) {
		word = bpf_htons(0x4500 | ip4->tos);
		ip4->tos = (ip4->tos & ~TUN_ECN) | ecn;
		ip4->check = kerb_csum(ip4->check, kerb_diff16(word, bpf_htons(0x4500 | ip4->tos)));
		return 0;
	}
	ip6 = kerb_ip6(pkt);
	if (!ip6)
		return -EINVAL;
	word = *(__be16 *)ip6;
	word = (word & bpf_htons(0xffcf)) | bpf_htons(ecn << 4);
	return kerb_store_bytes(pkt, pkt->l3, &word, sizeof(word));
}

/* RFC 6040, 4.2: congestion on the path is passed to the inner packet, which must support it. */
static __always_inline int tun_ecn_decap(struct kerb_pkt *pkt, __u8 outer, __u8 inner)
{
	outer &= TUN_ECN;
	inner &= TUN_ECN;
	if (outer == TUN_ECN_CE && inner != TUN_ECN_CE)
		return inner ? tun_set_ecn(pkt, TUN_ECN_CE) : -EINVAL;
	if (outer == TUN_ECT1 && inner == TUN_ECT0)
		return tun_set_ecn(pkt, TUN_ECT1);
	return 0;
}

/* Delivers the packet to the service. */
static __always_inline int tun_deliver(struct kerb_pkt *pkt, const struct tun_end *to,
				       const __u8 *via, int straight)
{
	struct ethhdr *eth = kerb_at(pkt, 0, sizeof(*eth));

	if (!eth)
		return kerb_drop(pkt, KERB_DROP_MALFORMED);
	__builtin_memcpy(eth->h_dest, to->mac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, via, ETH_ALEN);
	return kerb_redirect(pkt, to->ifindex, straight && to->flags & TUN_PEER ? KERB_TO_PEER : 0);
}

/* Decides on an inner packet, by its sender, which the outer packet identifies, and its
 * destination. straight: the kernel knows that the packet's protocol may have changed with the
 * headers. */
static __always_inline int tun_receive(struct kerb_pkt *pkt, const struct tun_arrival *a,
				       int straight)
{
	struct tun_flow f = {.half = a->half};
	struct tun_name *name;
	struct tun_end *to;
	struct tun_node *n;
	struct tun_stats *s;
	__u32 at;
	int right;

	if (!tun_read(pkt, &f))
		return kerb_drop(pkt, TUN_DROP_BAD_INNER);
	name = tun_sender_lookup(&f.src);
	at = name ? name->node : tun_node_of(&f.src, f.half);
	if (!at)
		return tun_ask(pkt, &f, &a->from, a->tos, &a->to, a->port);
	n = bpf_map_lookup_elem(&nodes, &at);
	s = bpf_map_lookup_elem(&stats, &at);
	if (!n || !s || n->self || !tun_same(&n->addr, &a->from))
		return kerb_drop(pkt, TUN_DROP_UNKNOWN_SOURCE);
	s->errors++; /* until all is well */
	if (n->refuse & TUN_REFUSE_IN)
		return kerb_drop(pkt, TUN_DROP_IPSEC);
	if (keyed && mode == TUN_MODE_KERB) {
		right = tun_mac_is_right(pkt, &f, a, at);
		if (right <= 0)
			return kerb_drop(pkt, right ? TUN_DROP_UNKNOWN_KEY : TUN_DROP_BAD_MAC);
	}
	to = bpf_map_lookup_elem(&hosts, &f.dst);
	if (!to || to->node || !to->ifindex)
		return kerb_drop(pkt, TUN_DROP_NOT_LOCAL);
	if (tun_ecn_decap(pkt, a->tos, f.tos))
		return kerb_drop(pkt, TUN_DROP_BAD_ECN);
	if (n->mtu && tun_mss_clamp(pkt, tun_mtu(n)))
		return kerb_drop(pkt, KERB_DROP_NO_MEMORY);
	if (name && !name->used)
		name->used = 1;
	s->errors--;
	s->received_packets++;
	s->received_bytes += tun_length(pkt);
	return tun_deliver(pkt, to, a->via, straight);
}

/* UDP to our port at one of our addresses belongs to the tunnel, everything else does not. */
static __noinline int tun_from_underlay(struct kerb_pkt *pkt)
{
	struct tun_arrival a = {.half = kerb_tunables_half()};
	struct tun_flow f = {};
	struct udphdr *udp;
	struct ethhdr *eth;
	int outer, why, same;
	__u32 type;

	if (tun_is_raw(pkt)) {
		if (!tun_is_for_us(pkt, a.half) || !tun_add_link_header(pkt) || kerb_reparse(pkt))
			return KERB_NEXT;
		kerb_forget(pkt);
	}
	outer = pkt->family;
	udp = kerb_udp(pkt);
	if (!udp && (pkt->proto == IPPROTO_ICMP || pkt->proto == IPPROTO_ICMPV6) &&
	    pkt->flags & KERB_F_L4)
		tun_report_icmp(pkt, pkt->l4 - pkt->l3);
	if (!udp || udp->dest != bpf_htons(tun_port(a.half)) || pkt->vlan || pkt->l3 != ETH_HLEN)
		return KERB_NEXT;
	a.room = bpf_ntohs(udp->len);
	if (!tun_read_addresses(pkt, &f) || !bpf_map_lookup_elem(&own, &f.dst))
		return KERB_NEXT;
	if (pkt->flags & KERB_F_FRAG)
		return kerb_drop(pkt, KERB_DROP_FRAGMENT);
	if (a.room < sizeof(*udp) + TUN_HEADER_LEN + sizeof(struct iphdr))
		return kerb_drop(pkt, TUN_DROP_BAD_HEADER);
	a.room -= sizeof(*udp) + TUN_HEADER_LEN;
	if (mode == TUN_MODE_OAKESTRA) {
		a.sum = udp->check;
		a.to = f.dst;
		a.port = udp->source;
	}
	a.from = f.src;
	a.tos = f.tos;
	why = tun_read_header(pkt, &a);
	if (why)
		return kerb_drop(pkt, why);
	eth = kerb_at(pkt, 0, sizeof(*eth));
	if (!eth || (a.version != 4 && a.version != 6))
		return kerb_drop(pkt, TUN_DROP_BAD_INNER);
	__builtin_memcpy(a.via, eth->h_dest, ETH_ALEN);
	type = a.version == 4 ? ETH_P_IP : ETH_P_IPV6;
	/* Parse once, and not once for each pair of IP versions. */
	same = (a.version ^ outer ^ kerb_unknown_zero(pkt->ctx)) == 0;
	if (tun_pop(pkt, type ^ kerb_unknown_zero(pkt->ctx), a.sum))
		return kerb_drop(pkt, TUN_DROP_BAD_INNER);
	kerb_forget(pkt);
	if (tun_length(pkt) > a.room && !kerb_ctx_field(pkt->ctx, gso_size))
		return kerb_drop(pkt, TUN_DROP_BAD_INNER);
	return tun_receive(pkt, &a, decap_l3 || same);
}

/* The tunnel device has removed the headers and returns their fields. */
static __noinline int tun_from_device(struct kerb_pkt *pkt)
{
	struct tun_arrival a = {};
	struct bpf_tunnel_key key = {};
	struct ethhdr *eth = kerb_at(pkt, 0, sizeof(*eth));

	if (!eth || !pkt->family)
		return KERB_NEXT;
	__builtin_memcpy(a.via, eth->h_dest, ETH_ALEN);
	a.half = kerb_tunables_half();
	if (!bpf_skb_get_tunnel_key(pkt->ctx, &key, sizeof(key), 0))
		a.from = tun_mapped(bpf_htonl(key.remote_ipv4));
	else if (!bpf_skb_get_tunnel_key(pkt->ctx, &key, sizeof(key), BPF_F_TUNINFO_IPV6))
		__builtin_memcpy(&a.from, key.remote_ipv6, sizeof(a.from));
	else
		return KERB_NEXT;
	if (key.tunnel_id != tun_network(a.half))
		return kerb_drop(pkt, TUN_DROP_OTHER_NETWORK);
	if (pkt->outcome)
		return kerb_drop(pkt, TUN_DROP_BAD_INNER);
	return tun_receive(pkt, &a, 1);
}

#endif
