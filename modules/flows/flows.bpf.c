// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

//go:build ignore

/* Records flows: packets and bytes of each flow in both directions, and for TCP the handshake's
 * round trip and retransmits. Every packet passes. */
#include "tcp.h"

KERB_LICENSE("Dual BSD/GPL");

static __always_inline void flows_map4(struct flows_addr *to, __be32 addr)
{
	to->word[2] = bpf_htonl(0xffff);
	to->word[3] = addr;
}

/* Reads addresses and ports of a packet as a key. Returns whether they could be read. */
static __always_inline bool flows_read(const struct kerb_pkt *pkt, struct flows_key *key,
				       __u32 side)
{
	struct flows_addr *src = side == FLOWS_EGRESS ? &key->local : &key->remote;
	struct flows_addr *dst = side == FLOWS_EGRESS ? &key->remote : &key->local;
	struct iphdr *ip4 = kerb_ip4(pkt);
	struct ipv6hdr *ip6;
	__be16 *ports;

	key->ifindex = pkt->ifindex;
	key->proto = pkt->proto;
	key->family = pkt->family;
	if (ip4) {
		flows_map4(src, ip4->saddr);
		flows_map4(dst, ip4->daddr);
	} else {
		ip6 = kerb_ip6(pkt);
		if (!ip6)
			return false;
		*src = *(struct flows_addr *)&ip6->saddr;
		*dst = *(struct flows_addr *)&ip6->daddr;
	}
	if (!(pkt->flags & KERB_F_L4) || (pkt->proto != IPPROTO_TCP && pkt->proto != IPPROTO_UDP))
		return true;
	ports = kerb_at(pkt, pkt->l4, 2 * sizeof(*ports));
	if (!ports)
		return false;
	key->local_port = ports[side];
	key->remote_port = ports[!side];
	return true;
}

static __always_inline void flows_unreadable(const struct kerb_pkt *pkt)
{
	__u32 ifindex = pkt->ifindex;
	struct flows_service *s = flows_service_of(&ifindex);

	if (!s)
		return;
	flows_add(&s->unreadable, 1);
	flows_add(&s->unreadable_bytes, pkt->len);
}

static __always_inline void flows_count_tcp(const struct kerb_pkt *pkt, struct flows_value *v,
					    __u32 side)
{
	struct tcphdr *tcp = kerb_tcp(pkt);
	struct flows_segment s;
	__u32 header;

	if (!tcp)
		return;
	header = tcp->doff * 4;
	s.seq = bpf_ntohl(tcp->seq);
	s.ack = bpf_ntohl(tcp->ack_seq);
	s.flags = ((__u8 *)tcp)[13];
	s.syn = tcp->syn;
	s.space = (pkt->l4_len > header ? pkt->l4_len - header : 0) + tcp->syn + tcp->fin;
	flows_tcp(v, &v->side[side], &v->side[!side], side, &s);
}

/* Returns whether the packet can belong to a flow; IP packets that cannot are counted. */
static __always_inline bool flows_key_of(struct kerb_pkt *pkt, struct flows_key *key, __u32 side,
					 bool count)
{
	if (pkt->outcome == KERB_PARSE_NOT_IP)
		return false;
	kerb_forget(pkt);
	if (pkt->outcome == KERB_PARSE_OK && flows_read(pkt, key, side))
		return true;
	if (count)
		flows_unreadable(pkt);
	return false;
}

/* Adds a packet to its flow. Returns NULL if it has none. */
static __always_inline struct flows_value *flows_record(struct kerb_pkt *pkt, __u32 side)
{
	struct flows_key key = {};
	struct flows_value *v;

	if (!flows_key_of(pkt, &key, side, true))
		return 0;
	v = flows_lookup(&key, side, pkt->len);
	if (!v)
		return 0;
	flows_add(&v->side[side].packets, 1);
	flows_add(&v->side[side].bytes, pkt->len);
	v->side[side].last = kerb_now();
	if (key.proto == IPPROTO_TCP)
		flows_count_tcp(pkt, v, side);
	return v;
}

/* The flow of a packet that was added before; NULL if a module has changed the addresses. */
static __always_inline struct flows_value *flows_lookup_added(struct kerb_pkt *pkt, __u32 side)
{
	struct flows_key key = {};

	return flows_key_of(pkt, &key, side, false) ? bpf_map_lookup_elem(&flows, &key) : 0;
}

/* The verdict of another module. Packets that have not reached this module are added now. */
static __always_inline void flows_exit(struct kerb_pkt *pkt, __u32 verdict, __u32 module, bool seen,
				       __u32 side)
{
	struct flows_value *v = seen ? flows_lookup_added(pkt, side) : flows_record(pkt, side);

	if (!v || verdict == KERB_REDIRECT)
		return;
	if (verdict == KERB_REPLY) {
		flows_add(&v->side[side].replied, 1);
		return;
	}
	flows_add(&v->side[side].dropped, 1);
	v->side[side].drop_module = module;
	v->side[side].drop_reason = kerb_exit_reason(pkt, verdict);
}

KERB_EXIT(pkt, verdict, module, seen, side)
{
	if (!module)
		return 0;
	if (side)
		flows_exit(pkt, verdict, module, seen, FLOWS_INGRESS);
	else
		flows_exit(pkt, verdict, module, seen, FLOWS_EGRESS);
	return 0;
}

KERB_EGRESS(pkt)
{
	flows_record(pkt, FLOWS_EGRESS);
	return KERB_NEXT;
}

KERB_INGRESS(pkt)
{
	flows_record(pkt, FLOWS_INGRESS);
	return KERB_NEXT;
}
