/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Maps that the control plane writes for the data plane (maps.go mirrors them). An address is 16
 * bytes, IPv4 as ::ffff:a.b.c.d. */
#ifndef TUN_MAPS_H
#define TUN_MAPS_H

#include <linux/in6.h>
#include <kerb/module.h>
#include <kerb/event.h>

#define TUN_HOSTS    65536
#define TUN_PREFIXES 16384 /* in each half */
#define TUN_NODES    1024 /* index 0 is this node */
#define TUN_KEYS     4 /* of one node */
#define TUN_RAW	     8
#define TUN_OWN	     256
#define TUN_NAMES    16384
#define TUN_SENDERS  4096

#define TUN_PEER (1 << 0) /* no module decides on packets to it: they go straight in */

/* The location of an address. */
struct tun_end {
	__u32 node;    /* index in nodes; 0: a service of this node */
	__u32 ifindex; /* a service's interface on the node's side */
	__u8 mac[6];   /* of its other end */
	__u16 flags;   /* TUN_* */
};

/* In mode oakestra packets carry the virtual address of the sending instance as their source, and
 * nothing else identifies it. By that address: */
struct tun_name {
	__u32 node; /* of the instance */
	__u32 used; /* packets have come from it since the control plane's last check */
};

struct tun_node {
	struct in6_addr addr;  /* on the underlay; 0: unused */
	struct in6_addr local; /* this node's address towards it */
	/* underlay interface, in mode device the tunnel device; 0: no route */
	__u32 ifindex;
	__u32 mtu;	       /* of that interface */
	__u32 self;	       /* this node: packets to its addresses are left alone */
	__u32 refuse;	       /* TUN_REFUSE_* */
	__u32 port;	       /* where it receives; 0: as this node */
};

/* An IPsec policy covers the packets, which the kernel does not apply to packets that this module
 * sends or receives. */
#define TUN_REFUSE_OUT (1 << 0)
#define TUN_REFUSE_IN  (1 << 1)


struct tun_stats {
	__u64 sent_packets, sent_bytes; /* bytes of inner packets */
	__u64 received_packets, received_bytes;
	__u64 too_big; /* sent packets that were answered or dropped because of their size */
	__u64 fragmented; /* sent packets that were cut into fragments, which count as sent */
	__u64 errors;  /* received packets from this node that were dropped */
};

struct tun_key {
	__u64 k[2];
};

/* The keys shared with one node. Except for older ones (mac: 1), the two directions have different
 * keys. */
struct tun_keys {
	__u8 id[TUN_KEYS]; /* 0: none. The first one is used for sending */
	__u32 bound;	   /* bit n: the MAC of key n is of version 2 */
	struct tun_key send[TUN_KEYS];
	struct tun_key receive[TUN_KEYS];
};

/* Underlay interfaces without a link header (WireGuard, XFRM interfaces); 0 ends the list. */
struct tun_raw {
	__u32 ifindex[TUN_RAW];
};

struct tun_prefix {
	__u32 bits; /* those of half included */
	__u32 half;
	struct in6_addr addr;
};

/* Values that a change of the config changes without a new program, in addition to the halves of
 * prefixes and keys. */
struct tun_values {
	__u16 port;
	__u16 network; /* virtual network: packets of others are left alone */
};

KERB_TUNABLES(struct tun_values);

static __always_inline __u16 tun_port(__u32 half)
{
	const struct tun_values *v = kerb_tunables(half);

	return v ? v->port : 0;
}

static __always_inline __u16 tun_network(__u32 half)
{
	const struct tun_values *v = kerb_tunables(half);

	return v ? v->network : 0;
}

/* Single addresses: the services of this node, and instances of virtual services on others. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TUN_HOSTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct in6_addr);
	__type(value, struct tun_end);
} hosts SEC(".maps");

/* Subnets of other nodes. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 2 * TUN_PREFIXES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct tun_prefix);
	__type(value, struct tun_end);
} prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TUN_NODES);
	__type(key, __u32);
	__type(value, struct tun_node);
} nodes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TUN_NODES);
	__type(key, __u32);
	__type(value, struct tun_stats);
} stats SEC(".maps");

/* By index of the node; the second half follows the first. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * TUN_NODES);
	__type(key, __u32);
	__type(value, struct tun_keys);
} keys SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tun_raw);
} raw_links SEC(".maps");

/* This node's addresses on the underlay. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TUN_OWN);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct in6_addr);
	__type(value, __u32);
} own SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TUN_NAMES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct in6_addr);
	__type(value, struct tun_name);
} names SEC(".maps");

/* Key of senders: the inner packet's source, 0 for all of them, and the outer one's. */
struct tun_sender_key {
	struct in6_addr source, from;
};

/* Packets of unknown sources that reached the control plane within 2^TUN_WINDOW_BITS ns: at most
 * TUN_HELD_SOURCE of one source, and TUN_HELD_NODE from one node. If two CPUs start a window at
 * once, a few are not counted; if several reach the limit at once, all of them may exceed it. */
struct tun_held {
	__u32 window;
	__u32 packets;
};

#define TUN_WINDOW_BITS 30
#define TUN_HELD_SOURCE 8
#define TUN_HELD_NODE	64
#define TUN_HELD_MAX	2048 /* bytes of a frame */

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TUN_SENDERS);
	__type(key, struct tun_sender_key);
	__type(value, struct tun_held);
} senders SEC(".maps");

/* A packet whose source the control plane looks up before the packet arrives again. */
struct tun_stranger {
	struct tun_sender_key key;
	__u32 ifindex;	    /* where it came from */
	__u32 len;	    /* of frame; 0 without one: too long */
	__u32 tos;	    /* of the outer header */
	__u32 partial;	    /* the inner transport checksum is only that of the pseudo-header */
	struct in6_addr to; /* outer destination */
	__be16 port;	    /* outer source port */
	__u16 reserved;
	__u8 frame[]; /* Ethernet header and inner packet */
};

KERB_EVENTS(strangers, 1 << 18);

/* The keys of the node at an index. */
static __always_inline struct tun_keys *tun_keys_lookup(__u32 at, __u32 half)
{
	at += half * TUN_NODES;
	return bpf_map_lookup_elem(&keys, &at);
}

/* The exact address, otherwise the longest prefix; NULL if it belongs to no known node. */
static __always_inline struct tun_end *tun_address_lookup(const struct in6_addr *addr, __u32 half)
{
	struct tun_end *end = bpf_map_lookup_elem(&hosts, addr);
	struct tun_prefix key = {.bits = 32 + 128, .half = half, .addr = *addr};

	return end ?: bpf_map_lookup_elem(&prefixes, &key);
}

#endif
