/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The connection tables. Three per family: a new connection is in `opening` until the initiator
 * answers the reply; then it moves to `established`. A closed connection moves back to opening for
 * its last packets. Entries of these two are never evicted: each interface has a quota in both, and
 * connections beyond it in opening go to `pending`, an LRU table that a flood may churn. So a flood
 * to a service, answered or not, takes no entries of other services, and prevents only new ones of
 * its own. Entries are keyed by the service's interface and side: both directions find the same
 * one. */
#ifndef FW_TABLES_H
#define FW_TABLES_H

#include "flow.h"
#include "tcp.h"

#define FW_OPENING     16384
#define FW_PENDING    16384
/* max_connections unless configured; entries are allocated when needed */
#define FW_ESTABLISHED 65536
#define FW_INTERFACES       65536
#define FW_TOUCH_NS    (1ULL << 30)
#define FW_EEXIST      17

/* XDP sees one direction only. */
#ifdef KERB_HOOK_XDP
#define FW_BOTH_WAYS 0
#else
#define FW_BOTH_WAYS 1
#endif

/* Whether connections are tracked. */
enum fw_tracking {
	FW_TRACKING_OFF = 0,
	FW_TRACKING = 1,
	FW_TRACKING_SETS = 2, /* and are evaluated again when an element of a set has changed */
};

KERB_CONFIG(__u8, state, FW_TRACKING);
KERB_CONFIG(_Bool, coarse_clock, 0); /* bpf_ktime_get_coarse_ns exists (5.11) */
KERB_CONFIG(_Bool, drop_when_full, 0);
KERB_CONFIG(__u64, max_connections, 65536);
KERB_CONFIG(__u64, tcp_syn_ns, 60000000000ULL);
KERB_CONFIG(__u64, tcp_established_ns, 86400000000000ULL);
KERB_CONFIG(__u64, tcp_half_closed_ns, 3600000000000ULL);
KERB_CONFIG(__u64, tcp_closing_ns, 60000000000ULL);
KERB_CONFIG(__u64, udp_ns, 30000000000ULL);
KERB_CONFIG(__u64, udp_stream_ns, 180000000000ULL);
/* an answered flow is established once it has lasted this long */
KERB_CONFIG(__u64, udp_assured_ns, 2000000000ULL);
KERB_CONFIG(__u64, icmp_ns, 30000000000ULL);
/* how long after its first packet an interface accepts TCP from outside in midstream */
KERB_CONFIG(__u64, pickup_ns, 300000000000ULL);

/* Counters of both families together, and quotas of an interface in entries. An interface may add
 * an entry if it has fewer than its share, or if all interfaces together have fewer than the common
 * quota. The control plane writes the quotas; zero: not written yet. */
struct fw_table {
	__u64 established;
	__u64 full; /* number of times that there was no room */
	__u64 opening;
	__u32 share, common;
	__u32 opening_share, opening_common;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FW_ESTABLISHED);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct fw_key4);
	__type(value, struct fw_conn);
} established4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FW_ESTABLISHED);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct fw_key6);
	__type(value, struct fw_conn);
} established6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FW_OPENING);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct fw_key4);
	__type(value, struct fw_conn);
} opening4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FW_OPENING);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct fw_key6);
	__type(value, struct fw_conn);
} opening6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FW_PENDING);
	__type(key, struct fw_key4);
	__type(value, struct fw_conn);
} pending4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FW_PENDING);
	__type(key, struct fw_key6);
	__type(value, struct fw_conn);
} pending6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FW_INTERFACES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex */
	__type(value, struct fw_usage);
} usage SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE); /* the agent atomically subtracts aged entries */
	__type(key, __u32);
	__type(value, struct fw_table);
} table SEC(".maps");

static __always_inline __u64 fw_now(void)
{
	return coarse_clock ? bpf_ktime_get_coarse_ns() : bpf_ktime_get_ns();
}

static __always_inline __u64 fw_timeout(const struct fw_conn *c, const struct fw_flow *f)
{
	if (f->kind != FW_PLAIN)
		return icmp_ns;
	if (f->proto != IPPROTO_TCP)
		return fw_state(c) == FW_ESTABLISHED_ ? udp_stream_ns : udp_ns;
	if (fw_state(c) >= FW_RESET)
		return tcp_closing_ns;
	if ((c->peer[0].flags | c->peer[1].flags) & FW_PEER_FIN)
		return tcp_half_closed_ns;
	return fw_state(c) == FW_ESTABLISHED_ ? tcp_established_ns : tcp_syn_ns;
}

/* A clock read on another CPU may be slightly ahead of ours: the difference is signed. */
static __always_inline int fw_conn_expired(const struct fw_conn *c, const struct fw_flow *f,
					   __u64 now)
{
	return (__s64)(now - c->seen) > (__s64)fw_timeout(c, f);
}

static __always_inline void fw_conn_touch(struct fw_conn *c, __u64 now)
{
	/* rarely, so that the cache line stays shared between CPUs */
	if ((__s64)(now - c->seen) > (__s64)FW_TOUCH_NS)
		c->seen = now;
}

static __always_inline struct fw_table *fw_get_table(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&table, &zero);
}

static __always_inline struct fw_usage *fw_get_usage(struct fw_flow *f, __u64 now)
{
	struct fw_usage *u = bpf_map_lookup_elem(&usage, &f->key4.ifindex);

	if (u)
		return u;
	__builtin_memset(&f->usage, 0, sizeof(f->usage));
	f->usage.since = now;
	bpf_map_update_elem(&usage, &f->key4.ifindex, &f->usage, BPF_NOEXIST);
	return bpf_map_lookup_elem(&usage, &f->key4.ifindex);
}

/* Counters may be inaccurate, even below zero, until the control plane recounts. */
static __always_inline int fw_table_has_room(__s64 own, __s64 all, __u32 share, __u32 common,
					     __u64 most)
{
	if (!share)
		return all < (__s64)most;
	return all < (__s64)most && (own < (__s64)share || all < (__s64)common);
}

/* Inserts f->next, counts it for the interface, and returns whether there was room. Unanswered and
 * ended connections may take half of the interface's quota. */
static __always_inline int fw_opening_insert(void *opening, struct fw_flow *f, __u64 now)
{
	const struct fw_conn *c = &f->next;
	int half = fw_state(c) == FW_NEW || fw_state(c) >= FW_RESET, err;
	struct fw_usage *u = fw_get_usage(f, now);
	struct fw_table *t = fw_get_table();

	if (!t || !u)
		return 0;
	if (!fw_table_has_room(u->opening << half, t->opening << half, t->opening_share,
			       t->opening_common, FW_OPENING))
		return !bpf_map_update_elem(opening, &f->key4, c, BPF_EXIST);
	err = bpf_map_update_elem(opening, &f->key4, c, BPF_NOEXIST);
	if (err == -FW_EEXIST)
		return !bpf_map_update_elem(opening, &f->key4, c, BPF_EXIST);
	if (err)
		return 0;
	__sync_fetch_and_add(&u->opening, 1);
	__sync_fetch_and_add(&t->opening, 1);
	return 1;
}

/* Writes f->next as a new entry. Returns whether it is in opening. */
static __noinline int fw_conn_insert(void *opening, void *pending, __u64 now)
{
	struct fw_flow *f = fw_flow();

	if (!f)
		return 0;
	if (fw_opening_insert(opening, f, now))
		return 1;
	bpf_map_update_elem(pending, &f->key4, &f->next, BPF_ANY);
	return 0;
}

static __noinline int fw_opening_delete(void *opening, void *pending)
{
	struct fw_flow *f = fw_flow();
	struct fw_table *t = fw_get_table();
	struct fw_usage *u;

	if (!f || !t)
		return 0;
	if (bpf_map_delete_elem(opening, &f->key4)) {
		bpf_map_delete_elem(pending, &f->key4);
		return 0;
	}
	__sync_fetch_and_add(&t->opening, -1);
	u = bpf_map_lookup_elem(&usage, &f->key4.ifindex);
	if (u)
		__sync_fetch_and_add(&u->opening, -1);
	return 0;
}

static __noinline int fw_conn_delete(void *established)
{
	struct fw_flow *f = fw_flow();
	struct fw_table *t = fw_get_table();
	struct fw_usage *u;

	if (!f || !t || bpf_map_delete_elem(established, &f->key4))
		return 0;
	__sync_fetch_and_add(&t->established, -1);
	u = bpf_map_lookup_elem(&usage, &f->key4.ifindex);
	if (u)
		__sync_fetch_and_add(&u->established, -1);
	return 0;
}

/* Returns whether a connection, updated to f->next, finds room in the established table. */
static __noinline int fw_conn_promote(void *established, __u64 now)
{
	struct fw_flow *f = fw_flow();
	struct fw_table *t = fw_get_table();
	struct fw_usage *u;
	int err; /* before Linux 6.4 only the lower half of what the helper returns is right */

	if (!f || !t)
		return 0;
	u = fw_get_usage(f, now);
	if (!u || !fw_table_has_room(u->established, t->established, t->share, t->common,
				     max_connections)) {
		__sync_fetch_and_add(&t->full, 1);
		return 0;
	}
	err = bpf_map_update_elem(established, &f->key4, &f->next, BPF_NOEXIST);
	if (err && err != -FW_EEXIST) {
		__sync_fetch_and_add(&t->full, 1);
		return 0;
	}
	if (!err) { /* else another CPU was faster */
		__sync_fetch_and_add(&t->established, 1);
		__sync_fetch_and_add(&u->established, 1);
	}
	return 1;
}

#endif
