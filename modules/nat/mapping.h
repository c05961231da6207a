/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Mappings between the address and port of a service and a port of the outside address. They do not
 * depend on the remote host (RFC 4787, endpoint-independent), so that a service has at most as many
 * as there are ports, and cannot take the entries of another one. An ICMP echo identifier counts as
 * a port. */
#ifndef NAT_MAPPING_H
#define NAT_MAPPING_H

#include <stdbool.h>
#include <kerb/module.h>

KERB_CONFIG(__u32, first_port, 40000);
KERB_CONFIG(__u32, port_count, 1024);

#define NAT_PROBES 32
#define NAT_SECOND 1000000000ULL

/* Idle time until a port may be reused: RFC 5382 (5), RFC 4787 (5), RFC 5508 (1). */
#define NAT_ESTABLISHED (7440 * NAT_SECOND)
#define NAT_TRANSITORY	(240 * NAT_SECOND)
#define NAT_UDP		(300 * NAT_SECOND)
#define NAT_ICMP	(60 * NAT_SECOND)

#define NAT_ANSWERED (1 << 0)
#define NAT_CLOSING  (1 << 1) /* FIN or RST, in either direction */

struct nat_addr {
	__u32 word[4]; /* IPv4 as ::ffff:a.b.c.d */
};

struct nat_inside {
	__u32 ifindex;
	__be16 port;
	__u8 proto;
	__u8 family; /* 4 or 6 */
	struct nat_addr addr;
};

struct nat_outside {
	__u32 ifindex;
	__be16 port;
	__u16 pad;
};

struct nat_mapping {
	struct bpf_spin_lock lock;
	__u32 state; /* NAT_ANSWERED, NAT_CLOSING */
	struct nat_inside inside;
	__u64 used; /* ns since boot */
};

/* The mappings; nat_ports is their index. Both are written for packets from services, and by the
 * control plane, which deletes entries of removed interfaces. When it is full, packets that need a
 * new mapping are dropped. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, struct nat_outside);
	__type(value, struct nat_mapping);
} nat_mappings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, struct nat_inside);
	__type(value, __u32); /* the port, network byte order */
} nat_ports SEC(".maps");

static __always_inline bool nat_same(const void *a, const void *b)
{
	const __u64 *x = a, *y = b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2];
}

static __always_inline __u64 nat_timeout(__u8 proto, __u32 state)
{
	if (proto == IPPROTO_TCP)
		return state == NAT_ANSWERED ? NAT_ESTABLISHED : NAT_TRANSITORY;
	return proto == IPPROTO_UDP ? NAT_UDP : NAT_ICMP;
}

static __always_inline bool nat_expired(const struct nat_mapping *m, __u64 now)
{
	return now > m->used && now - m->used > nat_timeout(m->inside.proto, m->state);
}

/* The bits that a TCP packet adds to the state of a mapping. */
static __always_inline __u32 nat_closes(const struct kerb_pkt *pkt)
{
	struct tcphdr *tcp = kerb_tcp(pkt);

	return tcp && (tcp->fin || tcp->rst) ? NAT_CLOSING : 0;
}

/* Returns whether the port belongs to the mapping of an inside end. opens: the packet begins a
 * connection. */
static __always_inline bool
nat_mapping_use(struct nat_outside *key, const struct nat_inside *inside, __u32 state, bool opens)
{
	struct nat_mapping *m = bpf_map_lookup_elem(&nat_mappings, key);
	__u64 now = kerb_now();
	bool ours;

	if (!m)
		return false;
	bpf_spin_lock(&m->lock);
	ours = nat_same(&m->inside, inside);
	if (ours) {
		m->used = now;
		m->state = (opens ? 0 : m->state) | state;
	}
	bpf_spin_unlock(&m->lock);
	return ours;
}

/* Reassigns an expired mapping to another inside end. Returns whether it was expired. */
static __always_inline bool nat_port_reassign(struct nat_mapping *m, const struct nat_outside *key,
					      const struct nat_inside *inside)
{
	struct nat_inside old;
	__u64 now = kerb_now();
	__u32 *port;
	bool taken;

	bpf_spin_lock(&m->lock);
	taken = nat_expired(m, now);
	if (taken) {
		old = m->inside;
		m->inside = *inside;
		m->state = 0;
		m->used = now;
	}
	bpf_spin_unlock(&m->lock);
	if (!taken)
		return false;
	port = bpf_map_lookup_elem(&nat_ports, &old);
	if (port && *port == key->port)
		bpf_map_delete_elem(&nat_ports, &old);
	return true;
}

/* Allocates a free port, the first one after a random one (RFC 6056). Returns 0, -EBUSY if none was
 * found, or -ENOSPC. */
static __noinline int nat_port_alloc(struct nat_outside *key, const struct nat_inside *inside)
{
	struct nat_mapping fresh = { .inside = *inside, .used = kerb_now() }, *m;
	__u32 slot = bpf_get_prandom_u32();
	int rc;

#pragma clang loop unroll(disable)
	for (int i = 0; i < NAT_PROBES; i++, slot++) {
		key->port = bpf_htons(first_port + slot % port_count);
		m = bpf_map_lookup_elem(&nat_mappings, key);
		if (m) {
			if (nat_port_reassign(m, key, inside))
				return 0;
			continue;
		}
		rc = bpf_map_update_elem(&nat_mappings, key, &fresh, BPF_NOEXIST);
		if (!rc)
			return 0;
		if (rc != -EEXIST)
			return -ENOSPC;
	}
	return -EBUSY;
}

/* Creates the mapping of an inside end, or finds the one that another CPU has just created. */
static __always_inline int nat_mapping_open(struct nat_outside *key,
					    const struct nat_inside *inside)
{
	int rc = nat_port_alloc(key, inside);
	__u32 port = key->port, *other;

	if (rc)
		return rc;
	rc = bpf_map_update_elem(&nat_ports, inside, &port, BPF_NOEXIST);
	if (!rc)
		return 0;
	bpf_map_delete_elem(&nat_mappings, key);
	other = rc == -EEXIST ? bpf_map_lookup_elem(&nat_ports, inside) : 0;
	if (!other)
		return -ENOSPC;
	key->port = *other;
	return 0;
}

enum nat_opens {
	NAT_OPENS = 1 << 0,    /* the packet begins a connection */
	NAT_MAY_OPEN = 1 << 1, /* a missing mapping is created */
};

/* Looks up the port of the inside end in key. Returns the same as nat_mapping_open(), and -ENOENT
 * if there is no mapping and none may be created. */
static __noinline int nat_find_port(struct nat_outside *key, const struct nat_inside *inside,
				    __u32 state, __u32 opens)
{
	__u32 *port = bpf_map_lookup_elem(&nat_ports, inside);

	if (port) {
		key->port = *port;
		if (nat_mapping_use(key, inside, state, opens & NAT_OPENS))
			return 0;
		if (opens & NAT_MAY_OPEN)
			bpf_map_delete_elem(&nat_ports, inside);
	}
	return opens & NAT_MAY_OPEN ? nat_mapping_open(key, inside) : -ENOENT;
}

/* Looks up the inside end of a port, for the protocol and family in it: 0 or -ENOENT. Packets from
 * outside do not refresh a mapping (RFC 4787, REQ-6): another host could occupy ports
 * permanently. */
static __noinline int nat_find_inside(const struct nat_outside *key, struct nat_inside *inside,
				      __u32 state)
{
	struct nat_mapping *m = bpf_map_lookup_elem(&nat_mappings, key);
	__u64 now = kerb_now();
	bool live;

	if (!m)
		return -ENOENT;
	bpf_spin_lock(&m->lock);
	live = m->inside.proto == inside->proto && m->inside.family == inside->family &&
	       !nat_expired(m, now);
	if (live) {
		*inside = m->inside;
		m->state |= state;
	}
	bpf_spin_unlock(&m->lock);
	return live ? 0 : -ENOENT;
}

#endif
