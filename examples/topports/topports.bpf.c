// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Counts packets by protocol and destination port, and sends an event for each packet to a watched
 * port. control.py reads both, and depends on the layouts below. */
#include <kerb/module.h>

KERB_LICENSE("Dual BSD/GPL");

struct port {
	__u16 number; /* host byte order */
	__u8 proto, unused;
};

struct count {
	__u64 packets, bytes;
};

struct event {
	__u64 time; /* ns since boot */
	__u32 ifindex, len;
	__u16 port;
	__u8 proto, family;
	__u8 source[16]; /* IPv4: the first 4 */
	__u32 unused;
};

/* When it is full, the least recently seen ports are evicted. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct port);
	__type(value, struct count);
} counts SEC(".maps");

/* Ports with events. A config map: the control plane sets its size and fills it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u16);
	__type(value, __u8);
} watched SEC(".maps");

KERB_EVENTS(events, 1 << 18);

static __always_inline void port_count(struct kerb_pkt *pkt, const struct port *port)
{
	struct count *c = bpf_map_lookup_elem(&counts, port), none = {};

	if (!c) {
		bpf_map_update_elem(&counts, port, &none, BPF_NOEXIST);
		c = bpf_map_lookup_elem(&counts, port);
	}
	if (c) {
		__sync_fetch_and_add(&c->packets, 1);
		__sync_fetch_and_add(&c->bytes, pkt->len);
	}
}

static __always_inline void event_send(struct kerb_pkt *pkt, const struct port *port)
{
	struct event e = {.time = kerb_now(), .ifindex = pkt->ifindex, .len = pkt->len};
	struct ipv6hdr *ip6 = kerb_ip6(pkt);
	struct iphdr *ip4 = kerb_ip4(pkt);

	e.port = port->number;
	e.proto = port->proto;
	e.family = pkt->family;
	if (ip4)
		__builtin_memcpy(e.source, &ip4->saddr, sizeof(ip4->saddr));
	else if (ip6)
		__builtin_memcpy(e.source, &ip6->saddr, sizeof(ip6->saddr));
	kerb_event(&events, &e, sizeof(e));
}

static __always_inline int packet_count(struct kerb_pkt *pkt)
{
	struct tcphdr *tcp = kerb_tcp(pkt);
	struct udphdr *udp = kerb_udp(pkt);
	struct port port = {.proto = pkt->proto};

	if (tcp)
		port.number = bpf_ntohs(tcp->dest);
	else if (udp)
		port.number = bpf_ntohs(udp->dest);
	else
		return KERB_NEXT;
	port_count(pkt, &port);
	if (bpf_map_lookup_elem(&watched, &port.number))
		event_send(pkt, &port);
	return KERB_NEXT;
}

KERB_EGRESS(pkt)
{
	return packet_count(pkt);
}

KERB_INGRESS(pkt)
{
	return packet_count(pkt);
}
