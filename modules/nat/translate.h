/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Reading and changing packets. */
#ifndef NAT_TRANSLATE_H
#define NAT_TRANSLATE_H

#include "mapping.h"

KERB_CONFIG(__u32, outside4, 0); /* network byte order */
KERB_CONFIG(__u64, outside6_high, 0);
KERB_CONFIG(__u64, outside6_low, 0);

#define NAT_QUOTE_MAX 80 /* bytes of a quoted packet that are read: its headers */

enum nat_kind {
	NAT_PORTS,
	NAT_ECHO,
	NAT_ERROR,     /* ICMP error about a packet */
	NAT_LATER,     /* later fragment */
	NAT_NEIGHBOUR, /* ICMPv6 of the link: neighbour discovery, multicast listeners */
	NAT_OTHER,
};

struct nat_work {
	struct nat_addr src, dst, own; /* own: the outside address */
	struct nat_inside inside;
	struct nat_outside outside;
	__u32 kind;
	__u32 own_is_destination; /* of a quoted packet */
};

struct nat_icmp {
	__u8 type, code;
	__u16 check;
	__be16 id;
	__u16 rest;
};

struct nat_prefix {
	__u32 len; /* bits; of IPv4 plus 96 */
	struct nat_addr addr;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 64);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct nat_prefix);
	__type(value, __u32);
} nat_except SEC(".maps");

/* Forwarded ports; ifindex is 0. Written with the config. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 512);
	__type(key, struct nat_inside); /* the outside address and port */
	__type(value, struct nat_inside);
} nat_inbound SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 512);
	__type(key, struct nat_inside); /* the service's address and port */
	__type(value, struct nat_inside);
} nat_outbound SEC(".maps");

struct nat_datagram {
	__u32 ifindex;
	__u32 id;
	struct nat_addr src;
	__u32 proto;
};

/* Destination of later fragments to a service. Written for the first fragment; the oldest entries
 * are evicted. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct nat_datagram);
	__type(value, struct nat_addr);
} nat_fragments SEC(".maps");

static __always_inline bool nat_equal(const struct nat_addr *a, const struct nat_addr *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
	       a->word[3] == b->word[3];
}

static __always_inline void nat_set4(struct nat_addr *a, __be32 addr)
{
	a->word[0] = a->word[1] = 0;
	a->word[2] = bpf_htonl(0xffff);
	a->word[3] = addr;
}

/* Addresses of the packet. */
static __always_inline int nat_read(const struct kerb_pkt *pkt, struct nat_work *w)
{
	struct iphdr *ip4 = kerb_ip4(pkt);
	struct ipv6hdr *ip6 = kerb_ip6(pkt);

	w->inside.family = pkt->family;
	if (ip4) {
		nat_set4(&w->src, ip4->saddr);
		nat_set4(&w->dst, ip4->daddr);
		nat_set4(&w->own, outside4);
		return 0;
	}
	if (!ip6)
		return -EINVAL;
	__builtin_memcpy(&w->src, &ip6->saddr, sizeof(w->src));
	__builtin_memcpy(&w->dst, &ip6->daddr, sizeof(w->dst));
	w->own.word[0] = outside6_high;
	w->own.word[1] = outside6_high >> 32;
	w->own.word[2] = outside6_low;
	w->own.word[3] = outside6_low >> 32;
	return 0;
}

/* Link-local destinations (RFC 3927, RFC 4291), and source addresses of hosts without an address
 * yet. */
static __always_inline bool nat_is_local4(__be32 addr)
{
	__u32 a = bpf_ntohl(addr);

	return a >> 28 >= 0xe || !a || a >> 16 == 0xa9fe;
}

static __always_inline bool nat_is_local6(const struct nat_addr *a)
{
	__u32 first = bpf_ntohl(a->word[0]);

	return first >> 24 == 0xff || first >> 22 == 0xfe80 >> 6 ||
	       !(a->word[0] | a->word[1] | a->word[2] | a->word[3]);
}

static __always_inline int nat_kind_icmp(const struct kerb_pkt *pkt)
{
	struct nat_icmp *icmp = kerb_at(pkt, pkt->l4, sizeof(*icmp));
	bool v4 = pkt->family == 4;
	__u8 type;

	if (!icmp || !(pkt->flags & KERB_F_L4))
		return NAT_OTHER;
	type = icmp->type;
	if (v4 ? type == 0 || type == 8 : type == 128 || type == 129)
		return NAT_ECHO;
	if (v4 ? type == 3 || type == 11 || type == 12 : type < 128)
		return NAT_ERROR;
	return !v4 && type >= 130 ? NAT_NEIGHBOUR : NAT_OTHER;
}

static __always_inline int nat_kind(const struct kerb_pkt *pkt)
{
	if (pkt->flags & KERB_F_FRAG_LATER)
		return NAT_LATER;
	if (kerb_ports(pkt))
		return NAT_PORTS;
	return pkt->proto == (pkt->family == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6) ? nat_kind_icmp(pkt)
										: NAT_OTHER;
}

/* Returns whether a packet from the service is not translated. */
static __always_inline bool nat_is_excluded(const struct kerb_pkt *pkt, struct nat_work *w)
{
	struct nat_prefix to = { .len = 128, .addr = w->dst };

	w->kind = nat_kind(pkt);
	if (pkt->family == 4 ? nat_is_local4(w->src.word[3]) || nat_is_local4(w->dst.word[3])
			     : nat_is_local6(&w->src) || nat_is_local6(&w->dst))
		return true;
	return w->kind == NAT_NEIGHBOUR || bpf_map_lookup_elem(&nat_except, &to);
}

/* The port, or echo identifier, of the packet's source or destination. */
static __always_inline int nat_port(const struct kerb_pkt *pkt, const struct nat_work *w,
				    bool destination, __be16 *port)
{
	struct nat_icmp *icmp;
	__be16 *ports;

	if (w->kind == NAT_ECHO) {
		icmp = kerb_at(pkt, pkt->l4, sizeof(*icmp));
		if (!icmp)
			return -EINVAL;
		*port = icmp->id;
		return 0;
	}
	ports = kerb_ports(pkt);
	if (!ports)
		return -EINVAL;
	*port = ports[destination];
	return 0;
}

static __always_inline int nat_set_port(struct kerb_pkt *pkt, const struct nat_work *w,
					bool destination, __be16 port)
{
	struct nat_icmp *icmp;
	__u64 diff;

	if (w->kind != NAT_ECHO)
		return destination ? kerb_set_dport(pkt, port) : kerb_set_sport(pkt, port);
	icmp = kerb_at(pkt, pkt->l4, sizeof(*icmp));
	if (!icmp)
		return -EINVAL;
	diff = kerb_diff16(icmp->id, port);
	icmp->id = port;
	diff = bpf_l4_csum_replace(pkt->ctx, pkt->l4 + 2, 0, kerb_fold(diff), 0);
	kerb_reload(pkt);
	return diff;
}

static __always_inline int nat_set_address(struct kerb_pkt *pkt, bool destination,
					   const struct nat_addr *to)
{
	if (pkt->family == 4)
		return destination ? kerb_set_ip4_daddr(pkt, to->word[3])
				   : kerb_set_ip4_saddr(pkt, to->word[3]);
	return destination ? kerb_set_ip6_daddr(pkt, (const void *)to)
			   : kerb_set_ip6_saddr(pkt, (const void *)to);
}

/* Sets w->outside for the service's end w->inside. */
static __always_inline int nat_outside_of(const struct kerb_pkt *pkt, struct nat_work *w,
					  __u32 opens)
{
	struct nat_inside key = w->inside, *fixed;

	key.ifindex = 0;
	fixed = bpf_map_lookup_elem(&nat_outbound, &key);
	if (fixed) {
		w->outside.port = fixed->port;
		return 0;
	}
	w->inside.ifindex = w->outside.ifindex = pkt->ifindex;
	return nat_find_port(&w->outside, &w->inside, nat_closes(pkt), opens);
}

/* Sets w->inside for the outside port in it. */
static __always_inline int nat_inside_of(const struct kerb_pkt *pkt, struct nat_work *w)
{
	struct nat_inside *fixed;

	w->inside.addr = w->own;
	fixed = bpf_map_lookup_elem(&nat_inbound, &w->inside);
	if (fixed) {
		w->inside = *fixed;
		return 0;
	}
	w->outside.ifindex = pkt->ifindex;
	w->outside.port = w->inside.port;
	return nat_find_inside(&w->outside, &w->inside, NAT_ANSWERED | nat_closes(pkt));
}

static __always_inline int nat_datagram(const struct kerb_pkt *pkt, const struct nat_work *w,
					struct nat_datagram *d)
{
	struct kerb_ext_hdr *ext;
	struct iphdr *ip = kerb_ip4(pkt);

	d->ifindex = pkt->ifindex;
	d->src = w->src;
	d->proto = pkt->proto;
	if (ip) {
		d->id = ip->id;
		return 0;
	}
	ext = kerb_fragment(pkt);
	if (!ext)
		return -EINVAL;
	d->id = ext->id;
	d->proto = 0; /* only the first fragment is certain to have it */
	return 0;
}

#include "error.h"

static __always_inline int nat_from_service(struct kerb_pkt *pkt, struct nat_work *w)
{
	__u32 opens = NAT_MAY_OPEN;
	struct tcphdr *tcp;
	int rc;

	if (w->kind == NAT_ERROR)
		return nat_error(pkt, w, true);
	if (w->kind == NAT_LATER)
		return nat_set_address(pkt, false, &w->own) ? -EINVAL : 0;
	if (w->kind != NAT_PORTS && w->kind != NAT_ECHO)
		return -EPROTO;
	if (nat_port(pkt, w, false, &w->inside.port))
		return -EINVAL;
	w->inside.proto = pkt->proto;
	w->inside.addr = w->src;
	tcp = kerb_tcp(pkt);
	if (tcp && tcp->syn && !tcp->ack)
		opens |= NAT_OPENS;
	rc = nat_outside_of(pkt, w, opens);
	if (rc)
		return rc;
	return nat_set_address(pkt, false, &w->own) || nat_set_port(pkt, w, false, w->outside.port)
		       ? -EINVAL
		       : 0;
}

static __always_inline int nat_to_service(struct kerb_pkt *pkt, struct nat_work *w)
{
	struct nat_datagram d = {};
	struct nat_addr *to;
	int rc;

	w->kind = nat_kind(pkt);
	if (w->kind == NAT_NEIGHBOUR)
		return 0;
	if (w->kind == NAT_ERROR)
		return nat_error(pkt, w, false);
	if (pkt->flags & KERB_F_FRAG && nat_datagram(pkt, w, &d))
		return -EINVAL;
	if (w->kind == NAT_LATER) {
		to = bpf_map_lookup_elem(&nat_fragments, &d);
		return !to ? -ENODATA : nat_set_address(pkt, true, to) ? -EINVAL : 0;
	}
	if (w->kind != NAT_PORTS && w->kind != NAT_ECHO)
		return -EPROTO;
	if (nat_port(pkt, w, true, &w->inside.port))
		return -EINVAL;
	w->inside.proto = pkt->proto;
	rc = nat_inside_of(pkt, w);
	if (rc)
		return rc;
	if (pkt->flags & KERB_F_FRAG)
		bpf_map_update_elem(&nat_fragments, &d, &w->inside.addr, BPF_ANY);
	return nat_set_address(pkt, true, &w->inside.addr) ||
			       nat_set_port(pkt, w, true, w->inside.port)
		       ? -EINVAL
		       : 0;
}

#endif
