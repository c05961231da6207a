/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Checks of a packet before it is answered. A packet that fails a check passes to the ordinary
 * server, unchanged. */
#ifndef RSP_CHECK_H
#define RSP_CHECK_H

#include "respond.h"

/* Results, counted by listener; slot 0 counts packets without a listener. */
enum rsp_outcome {
	RSP_ANSWERED = 0,
	RSP_CONSUMED = 1,
	RSP_MALFORMED = KERB_REQUEST_MALFORMED, /* cannot be parsed (slot 0) */
	RSP_LATER_FRAGMENT = 3,			/* of UDP, without ports (slot 0) */
	/* an answered port, but an address without a listener (slot 0) */
	RSP_OTHER_ADDRESS = 4,
	RSP_FRAGMENT = KERB_REQUEST_FRAGMENT, /* first fragment */
	/* a multi-buffer frame, or several requests aggregated by GRO */
	RSP_NOT_LINEAR = KERB_REQUEST_NOT_LINEAR,
	RSP_LINK_ADDRESS = KERB_REQUEST_LINK_ADDRESS, /* a MAC address is multicast */
	/* not unicast, loopback, the destination address, a local address, or a broadcast address
	 * of the network */
	RSP_SOURCE_ADDRESS = KERB_REQUEST_SOURCE_ADDRESS,
	/* 0, an answered port, or the port of another service that answers any datagram (loops) */
	RSP_SOURCE_PORT = 9,
	/* IP options or extension headers that a reply cannot ignore */
	RSP_OPTIONS = KERB_REQUEST_OPTIONS,
	RSP_SIZE = KERB_REQUEST_SIZE,			    /* payload too short or long */
	RSP_HEADER_CHECKSUM = KERB_REQUEST_HEADER_CHECKSUM, /* IPv4 header */
	RSP_CHECKSUM = KERB_REQUEST_CHECKSUM,		    /* UDP */
	/* the reply would exceed max_reply or the MTU of the interface */
	RSP_REPLY_SIZE = 14,
	RSP_SOURCE_LIMIT = 15, /* over the rate limit per source */
	RSP_TOTAL_LIMIT = 16,  /* over the total rate limit */
	RSP_NO_ROOM = 17,      /* no memory for the reply */
	RSP_LOST = 18,	       /* dropped: the reply could not be completed */
	/* the reply would amplify, and the source address is not proven */
	RSP_UNPROVEN = 19,
	RSP_CHALLENGED = 20, /* answered with a request for a proof of the source address */
	RSP_APP = 24,	     /* reasons of the application to pass */
	RSP_OUTCOMES = RSP_APP + RSP_APP_REASONS,
};

struct rsp_counts {
	__u64 n[RSP_OUTCOMES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, RSP_SLOTS);
	__type(key, __u32);
	__type(value, struct rsp_counts);
} counts SEC(".maps");

static __always_inline int rsp_count_at(const void *slot, __u32 outcome, int verdict)
{
	struct rsp_counts *c = bpf_map_lookup_elem(&counts, slot);

	if (c && outcome < RSP_OUTCOMES)
		c->n[outcome]++;
	return verdict;
}

static __always_inline int rsp_count(__u32 slot, __u32 outcome, int verdict)
{
	kerb_key32 key = slot;

	return rsp_count_at(&key, outcome, verdict);
}

/* Counts a packet without a listener. */
static __always_inline int rsp_count_unmatched(__u32 outcome, int verdict)
{
	__u32 zero = 0;

	return rsp_count_at(&zero, outcome, verdict);
}

/* The listener of a slot. Used by the control plane only; a map, so that it persists with the
 * counters. */
struct rsp_owner {
	/* hash of the listener's application and name; 0: free. Slot 0: bitmap of the slots in
	 * use */
	__u64 name;
	__u64 fill; /* number of the last configuration with this listener */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RSP_SLOTS);
	__type(key, __u32);
	__type(value, struct rsp_owner);
} owners SEC(".maps");

/* Bitmaps of ports, host byte order. */
struct rsp_ports {
	__u64 zero; /* always: see rsp_reset_verifier */
	/* in the first element, ports of listeners of both halves, so that packets to other ports
	 * need not determine their half */
	__u32 answered[2048];
	__u32 not_sources[2048]; /* source ports that are not answered */
};

/* By half. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct rsp_ports);
} ports SEC(".maps");

/* Listeners by address and port, network byte order. Address 0: all addresses of the interface
 * (maps local4, local6). */
struct rsp_key4 {
	__be32 addr;
	__be16 port;
	__u16 half; /* of the configuration */
};

struct rsp_key6 {
	__be32 addr[4];
	__be16 port;
	__u16 half;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 512);
	__type(key, struct rsp_key4);
	__type(value, struct rsp_listener);
} listeners4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 512);
	__type(key, struct rsp_key6);
	__type(value, struct rsp_listener);
} listeners6 SEC(".maps");

/* The kind of an address on an interface. */
enum rsp_local {
	RSP_OWN = 1,
	RSP_BROADCAST = 2,
	RSP_VIRTUAL = 3, /* address 0: the interface is virtual, its packets were on no wire */
};

/* Handling of partial UDP checksums: the sum of the pseudo-header only (checksum offload). */
enum rsp_partial_policy {
	RSP_PARTIAL_PASS = 0, /* the packet passes */
	RSP_PARTIAL_ACCEPT = 1,
	RSP_PARTIAL_VIRTUAL = 2, /* accepted on virtual interfaces */
};

struct rsp_local4 {
	__u32 ifindex;
	__be32 addr;
};

struct rsp_local6 {
	__u32 ifindex;
	__be32 addr[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct rsp_local4);
	__type(value, __u32);
} local4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct rsp_local6);
	__type(value, __u32);
} local6 SEC(".maps");

KERB_CONFIG(_Bool, by_address, 1);   /* some listener names addresses */
KERB_CONFIG(_Bool, by_interface, 1); /* some listener has all addresses of the interface */

static __always_inline const struct rsp_listener *
rsp_listener_lookup4(const struct kerb_pkt *pkt, const struct iphdr *ip, __be16 port, __u16 half)
{
	struct rsp_key4 key = {.addr = ip->daddr, .port = port, .half = half};
	struct rsp_local4 local = {.ifindex = pkt->ifindex, .addr = ip->daddr};
	const struct rsp_listener *l = 0;
	__u32 *kind;

	if (by_address)
		l = bpf_map_lookup_elem(&listeners4, &key);
	if (l || !by_interface)
		return l;
	kind = bpf_map_lookup_elem(&local4, &local);
	if (!kind || *kind != RSP_OWN)
		return 0;
	key.addr = 0;
	return bpf_map_lookup_elem(&listeners4, &key);
}

static __always_inline const struct rsp_listener *
rsp_listener_lookup6(const struct kerb_pkt *pkt, const struct ipv6hdr *ip, __be16 port, __u16 half)
{
	struct rsp_key6 key = {.port = port, .half = half};
	struct rsp_local6 local = {.ifindex = pkt->ifindex};
	const struct rsp_listener *l = 0;
	__u32 *kind;

	__builtin_memcpy(key.addr, &ip->daddr, sizeof(key.addr));
	if (by_address)
		l = bpf_map_lookup_elem(&listeners6, &key);
	if (l || !by_interface)
		return l;
	__builtin_memcpy(local.addr, &ip->daddr, sizeof(local.addr));
	kind = bpf_map_lookup_elem(&local6, &local);
	if (!kind || *kind != RSP_OWN)
		return 0;
	__builtin_memset(key.addr, 0, sizeof(key.addr));
	return bpf_map_lookup_elem(&listeners6, &key);
}

/* Returns the enum rsp_local of the source address; 0: a remote host. */
static __always_inline __u32 rsp_source_kind(const struct rsp_request *r)
{
	const struct kerb_pkt *pkt = r->req.pkt;
	struct ipv6hdr *ip6 = kerb_ip6(pkt);
	struct rsp_local4 four = { .ifindex = pkt->ifindex, .addr = r->req.source };
	struct rsp_local6 six = { .ifindex = pkt->ifindex };
	__u32 *kind;

	if (ip6) {
		__builtin_memcpy(six.addr, &ip6->saddr, sizeof(six.addr));
		kind = bpf_map_lookup_elem(&local6, &six);
	} else {
		kind = bpf_map_lookup_elem(&local4, &four);
	}
	return kind ? *kind : 0;
}

/* Returns whether a partial checksum is accepted (KERB_REQUEST_PARTIAL). On XDP this depends on the
 * interface. */
static __always_inline int rsp_partial_is_accepted(const struct rsp_request *r)
{
#ifdef KERB_HOOK_TC
	return r->listener->partial != RSP_PARTIAL_PASS;
#else
	__u64 key = r->req.pkt->ifindex; /* struct rsp_local4 with the address 0 */
	__u32 *kind;

	if (r->listener->partial != RSP_PARTIAL_VIRTUAL)
		return r->listener->partial;
	kind = bpf_map_lookup_elem(&local4, &key);
	return kind && *kind == RSP_VIRTUAL;
#endif
}

#endif
