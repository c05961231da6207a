/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The table of flows: one entry for both directions, by interface, protocol, addresses and ports.
 * The ends are named as the interface sees them (local is the service), so that a packet of either
 * direction finds its entry with one lookup; the entry has the initiator. */
#ifndef FLOWS_TABLE_H
#define FLOWS_TABLE_H

#include <stdbool.h>
#include <kerb/module.h>

#define FLOWS_EGRESS  0
#define FLOWS_INGRESS 1

/* Maximum number of flows per interface, so that one takes no room of another. */
KERB_CONFIG(__u32, quota, 1024);

struct flows_addr {
	__be32 word[4]; /* IPv4 as ::ffff:a.b.c.d */
};

/* No padding. */
struct flows_key {
	__u32 ifindex;
	__u8 proto;
	__u8 family; /* 4 or 6 */
	__u16 zero;
	/* of TCP and UDP; 0: another protocol, or a later fragment */
	__be16 local_port, remote_port;
	struct flows_addr local, remote;
};

/* Counters of one direction. A separate cache line: the directions of a flow are often on different
 * CPUs. packets to replied are added to atomically, so they are exact. The rest is written without
 * a lock: if two CPUs process packets of the same direction at the same time, a retransmit may be
 * missed or counted twice. */
struct flows_side {
	__u64 packets, bytes; /* bytes of frames */
	__u64 dropped;	      /* packets of these that a module dropped */
	__u64 replied;	      /* packets of these that a module answered */
	__u64 last;	      /* ns, CLOCK_MONOTONIC */
	__u64 opened;	      /* ns, CLOCK_MONOTONIC: when its SYN or SYN/ACK was sent */
	__u32 next;	      /* sequence number after the last new byte, host byte order */
	__u32 retransmits;
	__u8 tcp_flags;	  /* all so far, of this connection */
	__u8 known;	  /* next is */
	__u8 drop_reason; /* of the last drop, enum kerb_drop_reason */
	__u8 zero;
	__u32 drop_module; /* that dropped last: its number by KERB_EXIT */
};

enum flows_handshake {
	FLOWS_UNKNOWN = 0, /* no SYN was seen */
	FLOWS_SYN = 1,
	FLOWS_SYN_ACK = 2,
	FLOWS_DONE = 3,
	FLOWS_AMBIGUOUS = 4, /* retransmitted: unknown which one was answered (Karn) */
};

struct flows_value {
	struct flows_side side[2]; /* by direction */
	__u64 first;		   /* ns, CLOCK_MONOTONIC; 0: entry being created */
	__u64 to_responder;	   /* ns from SYN to SYN/ACK; 0: not measured */
	__u64 to_initiator;	   /* ns from SYN/ACK to its ACK; 0: not measured */
	__u32 connections;	   /* TCP connections that began with these ports */
	__u8 initiator;		   /* direction of the packets from the initiator */
	__u8 handshake;		   /* enum flows_handshake */
	__u16 zero;
};

/* Written for packets, and by the control plane, which removes idle entries. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, struct flows_key);
	__type(value, struct flows_value);
} flows SEC(".maps");

/* A new entry. Never written: 160 bytes of stack are too many in a chain with a firewall. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flows_value);
} flows_blank SEC(".maps");

/* What an interface has created, and what could not be recorded. Updated atomically. */
struct flows_service {
	__u64 created;			       /* entries of flows */
	__u64 unrecorded, unrecorded_bytes;    /* over the quota, or the table is full */
	__u64 unreadable, unreadable_bytes;    /* IP packets whose headers do not parse */
};

#define FLOWS_INTERFACES 4096

/* By interface. Entry 0, which the control plane creates, is for interfaces without room for an
 * entry: they share its counters, and the flows that one interface may have. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FLOWS_INTERFACES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct flows_service);
} flows_services SEC(".maps");

/* Number of flows that the control plane has removed, by key of flows_services. Written only by
 * it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FLOWS_INTERFACES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u64);
} flows_removed SEC(".maps");

static __always_inline void flows_add(__u64 *to, __u64 n)
{
	__sync_fetch_and_add(to, n);
}

/* The counters of an interface. ifindex becomes 0 if it has no entry of its own. */
static __always_inline struct flows_service *flows_service_of(__u32 *ifindex)
{
	struct flows_service none = {}, *s = bpf_map_lookup_elem(&flows_services, ifindex);

	if (s)
		return s;
	bpf_map_update_elem(&flows_services, ifindex, &none, BPF_NOEXIST);
	s = bpf_map_lookup_elem(&flows_services, ifindex);
	if (s)
		return s;
	*ifindex = 0;
	return bpf_map_lookup_elem(&flows_services, ifindex);
}

/* Creates an entry, if s, the counters of ifindex, has room. Another CPU may be creating it,
 * too. */
static __always_inline struct flows_value *flows_create(const struct flows_key *key,
							struct flows_service *s, __u32 ifindex,
							__u32 side)
{
	__u32 zero = 0;
	__u64 *removed = bpf_map_lookup_elem(&flows_removed, &ifindex);
	struct flows_value *v = bpf_map_lookup_elem(&flows_blank, &zero);

	if (!v || s->created - (removed ? *removed : 0) >= quota)
		return 0;
	if (!bpf_map_update_elem(&flows, key, v, BPF_NOEXIST)) {
		flows_add(&s->created, 1);
		v = bpf_map_lookup_elem(&flows, key);
		if (v) {
			v->initiator = side;
			v->first = kerb_now();
		}
		return v;
	}
	return bpf_map_lookup_elem(&flows, key);
}

/* The entry of a packet, or NULL: then the packet was counted as unrecorded. */
static __always_inline struct flows_value *flows_lookup(const struct flows_key *key, __u32 side,
							__u32 len)
{
	struct flows_value *v = bpf_map_lookup_elem(&flows, key);
	struct flows_service *s;
	__u32 ifindex = key->ifindex;

	if (v)
		return v;
	s = flows_service_of(&ifindex);
	if (!s)
		return 0;
	v = flows_create(key, s, ifindex, side);
	if (!v) {
		flows_add(&s->unrecorded, 1);
		flows_add(&s->unrecorded_bytes, len);
	}
	return v;
}

#endif
