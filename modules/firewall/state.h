/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Connections. Three tables per family: a new connection lives in `opening` until the side that
 * began it answers the answer; then it moves to `established`. A closed connection goes back to
 * opening for its last packets. Nothing is ever evicted from these two: each interface has a quota
 * in both, and what exceeds it in opening goes to `pending`, an LRU table that a flood may churn.
 * So a service under a flood, answered or not, costs no other service an entry, and itself only new
 * ones. Entries are keyed by the service's interface and side: both directions find the same one.
 *
 * The kernel may give an entry's memory to another key while a program holds a pointer to it.
 * Therefore a change that trusts a connection more (state, generation) writes a whole value by key;
 * only time and windows are updated in place. */
#ifndef FW_STATE_H
#define FW_STATE_H

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

KERB_CONFIG(_Bool, state, 1);
KERB_CONFIG(_Bool, coarse_clock, 0); /* bpf_ktime_get_coarse_ns is there (5.11) */
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
/* how long after the first packet TCP from outside may begin unseen */
KERB_CONFIG(__u64, pickup_ns, 300000000000ULL);

/* Counters of both families together, and quotas of an interface in entries. An interface may add
 * an entry if it has less than its share, or all together less than what is common. The control
 * plane writes the quotas; zero: not yet. */
struct fw_table {
	__u64 established;
	__u64 full; /* times that there was no room */
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
	__uint(map_flags, BPF_F_MMAPABLE); /* the agent counts down what it ages out, atomically */
	__type(key, __u32);
	__type(value, struct fw_table);
} table SEC(".maps");

/* What the tables say of a packet. */
enum fw_track {
	FW_UNKNOWN = 0, /* no connection: the rules decide */
	FW_TRACKED = 1, /* part of a connection that the rules allowed */
	FW_FULL = 2,	/* of one that found no room */
	/* of one that other rules allowed, sent by who began it: today's rules decide */
	FW_STALE = 3,
	/* the same from the other side: today's rules decide on the opposite packet */
	FW_STALE_ANSWER = 4,
	FW_INVALID = 5, /* TCP that does not fit its connection */
};

/* Why the established table alone does not decide. */
enum fw_why {
	FW_WHY_ABSENT = 0,
	FW_WHY_EXPIRED = 1,
	FW_WHY_MISFIT = 2,
	FW_WHY_ENDS = 3, /* FIN or RST */
	FW_WHY_NOT = 4,	 /* it does */
};

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
	if (c->fins)
		return tcp_half_closed_ns;
	return fw_state(c) == FW_ESTABLISHED_ ? tcp_established_ns : tcp_syn_ns;
}

/* A clock read on another CPU may lie a little ahead of ours: the difference is signed. */
static __always_inline int fw_expired(const struct fw_conn *c, const struct fw_flow *f, __u64 now)
{
	return (__s64)(now - c->seen) > (__s64)fw_timeout(c, f);
}

static __always_inline void fw_touch(struct fw_conn *c, __u64 now)
{
	/* seldom: the line stays shared between CPUs */
	if ((__s64)(now - c->seen) > (__s64)FW_TOUCH_NS)
		c->seen = now;
}

/* TCP whose windows are tracked. */
static __always_inline int fw_is_tcp(const struct fw_flow *f)
{
	return FW_BOTH_WAYS && f->proto == IPPROTO_TCP && f->kind == FW_PLAIN;
}

static __always_inline int fw_stale(const struct fw_conn *c, const struct fw_flow *f)
{
	if (c->generation == f->generation)
		return FW_TRACKED;
	return f->dir == c->from ? FW_STALE : FW_STALE_ANSWER;
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

/* Counters may be off, even below zero, until the control plane counts. */
static __always_inline int fw_table_has_room(__s64 own, __s64 all, __u32 share, __u32 common,
					     __u64 most)
{
	if (!share)
		return all < (__s64)most;
	return all < (__s64)most && (own < (__s64)share || all < (__s64)common);
}

/* Whether f->next found its place; counts against the interface. What has not been answered, or is
 * over, may have half of it. */
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

/* Writes f->next as a new entry. */
static __noinline int fw_conn_insert(void *opening, void *pending, __u64 now)
{
	struct fw_flow *f = fw_flow();

	if (f && !fw_opening_insert(opening, f, now))
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

/* Whether a connection, which has become f->next, finds room among the established ones. */
static __noinline int fw_promote(void *established, __u64 now)
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

/* FIN or RST on an established connection that they fit. */
static __always_inline int fw_conn_ends(void *established, void *opening, void *pending,
					struct fw_flow *f, __u64 now)
{
	struct fw_conn *c = bpf_map_lookup_elem(established, &f->key4), *n = &f->next;

	if (!c)
		return FW_TRACKED;
	*n = *c;
	n->seen = now;
	if (f->tcp & TCP_RST)
		n->state = FW_RESET;
	else if ((n->fins |= 1 << (f->dir & 1)) == 3)
		n->state = FW_CLOSED;
	if (fw_state(n) == FW_ESTABLISHED_) {
		bpf_map_update_elem(established, &f->key4, n, BPF_EXIST);
	} else {
		fw_conn_insert(opening, pending, now);
		fw_conn_delete(established);
	}
	return fw_stale(n, f);
}

/* The next state of a connection that is not TCP, or seen in one direction only. */
static __always_inline void fw_advance(struct fw_conn *n, const struct fw_flow *f, __u64 now)
{
	if (f->dir != n->from) {
		if (fw_state(n) == FW_NEW)
			n->state = FW_REPLIED;
	} else if (fw_state(n) == FW_REPLIED && f->kind == FW_PLAIN &&
		   (__s64)(now - n->begun) >= (__s64)udp_assured_ns) {
		n->state = FW_ESTABLISHED_;
	}
}

/* Writes f->next over the entry that it was copied from. What has been answered leaves the LRU
 * table if there is room. */
static __always_inline void fw_write_back(void *opening, void *pending, struct fw_flow *f,
					  int answered, __u64 now)
{
	if (!bpf_map_update_elem(opening, &f->key4, &f->next, BPF_EXIST))
		return;
	if (answered) {
		bpf_map_delete_elem(pending, &f->key4);
		fw_conn_insert(opening, pending, now);
	} else {
		bpf_map_update_elem(pending, &f->key4, &f->next, BPF_EXIST);
	}
}

static __always_inline int fw_track_opening(void *established, void *opening, void *pending,
					    struct fw_conn *c, struct fw_flow *f, __u64 now)
{
	int opens =
		(f->tcp & (TCP_SYN | TCP_ACK)) == TCP_SYN && (!FW_BOTH_WAYS || f->dir == c->from);
	struct fw_conn *n = &f->next;
	__u32 fit = FW_FIT_YES;

	*n = *c;
	if (fw_expired(n, f, now) || (opens && fw_state(n) >= FW_RESET)) {
		fw_opening_delete(opening, pending);
		return FW_UNKNOWN;
	}
	if (fw_is_tcp(f))
		fit = kerb_through(f->hidden, fw_tcp_opening(n, f));
	else
		fw_advance(n, f, now);
	if (fit == FW_FIT_NOT)
		return FW_INVALID;
	if (fit == FW_FIT_YES)
		n->seen = now;
	if (fw_state(n) == FW_ESTABLISHED_) {
		if (fw_promote(established, now)) {
			fw_opening_delete(opening, pending);
			return fw_stale(n, f);
		}
		n->state = FW_REPLIED; /* as long as there is no room */
		fw_write_back(opening, pending, f, 0, now);
		return drop_when_full ? FW_FULL : fw_stale(n, f);
	}
	if (fit == FW_FIT_PASS)
		return fw_stale(n, f);
	if (fw_is_tcp(f) || fw_state(n) != c->state)
		fw_write_back(opening, pending, f,
			      fw_state(n) == FW_REPLIED && fw_state(c) == FW_NEW, now);
	else
		fw_touch(c, now);
	return fw_stale(n, f);
}

/* All that the established table alone does not decide. */
static __noinline int fw_track_slowly(void *established, void *opening, void *pending, __u64 now,
				      int why)
{
	struct fw_flow *f = fw_flow();
	struct fw_conn *c;
	int track;

	if (!f)
		return FW_UNKNOWN;
	if (why == FW_WHY_ENDS)
		return fw_conn_ends(established, opening, pending, f, now);
	if (why == FW_WHY_EXPIRED)
		fw_conn_delete(established);
	c = bpf_map_lookup_elem(opening, &f->key4);
	if (!c)
		c = bpf_map_lookup_elem(pending, &f->key4);
	if (!c)
		return why == FW_WHY_MISFIT ? FW_INVALID : FW_UNKNOWN;
	track = kerb_through(f->hidden, fw_track_opening(established, opening, pending, c, f, now));
	if (why != FW_WHY_MISFIT)
		return track;
	/* In addition to the established connection one side has begun another one. Once the other
	 * side knows that one only: */
	if (track != FW_UNKNOWN && track != FW_INVALID && f->tcp & (TCP_SYN | TCP_RST))
		fw_conn_delete(established);
	return track == FW_UNKNOWN ? FW_INVALID : track;
}

/* Examines the established entry of a packet. What the slow path must do, or FW_WHY_NOT with the
 * answer in *track. */
static __always_inline int fw_track_established(struct fw_conn *c, struct fw_flow *f, __u64 now,
						int *track)
{
	if (fw_expired(c, f, now))
		return FW_WHY_EXPIRED;
	if (fw_is_tcp(f)) {
		__u32 fit;

		if ((f->tcp & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN && f->dir == c->from) {
			/* one that has lost the connection begins another one, which may be a
			 * lie */
			*track = FW_UNKNOWN;
			return FW_WHY_NOT;
		}
		fit = kerb_through(f->hidden, fw_tcp_fit(c, f));
		if (fit == FW_FIT_NOT)
			return FW_WHY_MISFIT;
		if (fit == FW_FIT_YES && f->tcp & (TCP_FIN | TCP_RST))
			return FW_WHY_ENDS;
		if (fit == FW_FIT_YES)
			fw_touch(c, now);
	} else {
		fw_touch(c, now);
	}
	*track = fw_stale(c, f);
	return FW_WHY_NOT;
}

/* What the tables say of the packet, and its effect on them. */
static __always_inline int fw_track(void *established, void *opening, void *pending,
				    struct fw_flow *f, __u64 now)
{
	struct fw_conn *c = bpf_map_lookup_elem(established, &f->key4);
	int why = FW_WHY_ABSENT, track = FW_UNKNOWN;

	if (c)
		why = fw_track_established(c, f, now, &track);
	if (why == FW_WHY_NOT)
		return track;
	return fw_track_slowly(established, opening, pending, now, kerb_through(f->hidden, why));
}

/* Whether a connection with this key is alive. For packets that report it without being part of
 * it. */
static __always_inline int fw_conn_is_alive(void *established, void *opening, void *pending,
					    const struct fw_flow *f, __u64 now)
{
	struct fw_conn *c = bpf_map_lookup_elem(established, &f->key4);

	if (!c)
		c = bpf_map_lookup_elem(opening, &f->key4);
	if (!c)
		c = bpf_map_lookup_elem(pending, &f->key4);
	if (!c || c->generation != f->generation || fw_expired(c, f, now))
		return 0;
	return !fw_is_tcp(f) || fw_tcp_quotes(c, f);
}

/* Whether TCP that began unseen may be taken up. What the service sends is part of a connection
 * that it has. From outside it may be forged, so that it is believed only while the firewall is new
 * to the interface. */
static __always_inline int fw_may_adopt(struct fw_flow *f, __u64 now)
{
	struct fw_usage *u;

	if (f->dir == FW_EGRESS)
		return 1;
	if (f->begins != FW_BEGINS_MIDSTREAM)
		return 0;
	u = fw_get_usage(f, now);
	return u && (__s64)(now - u->since) < (__s64)pickup_ns;
}

static __noinline int fw_conn_create(void *opening, void *pending, __u64 now)
{
	struct fw_flow *f = fw_flow();
	struct fw_conn *n;

	if (!f)
		return 0;
	n = &f->next;
	__builtin_memset(n, 0, sizeof(*n));
	n->seen = now;
	n->generation = f->generation;
	n->from = f->dir;
	if (!fw_is_tcp(f)) {
		n->begun = now;
	} else if (f->begins == FW_BEGINS && f->scale != FW_SCALE_UNREADABLE) {
		fw_peer_init(&n->peer[f->dir & 1], f);
	} else {
		n->flags = FW_CONN_LEARNT;
		fw_tcp_learn(&n->peer[f->dir & 1], &n->peer[~f->dir & 1], f);
		n->fins = f->tcp & TCP_FIN ? 1 << (f->dir & 1) : 0;
	}
	return fw_conn_insert(opening, pending, now);
}

/* After the rules have looked again at the connection of a stale entry. */
static __noinline int fw_conn_renew(void *established, void *opening, void *pending, int allowed)
{
	struct fw_flow *f = fw_flow();
	void *map = established;
	struct fw_conn *c;

	if (!f)
		return 0;
	if (!allowed) {
		fw_conn_delete(established);
		return fw_opening_delete(opening, pending);
	}
	c = bpf_map_lookup_elem(map, &f->key4);
	if (!c)
		c = bpf_map_lookup_elem(map = opening, &f->key4);
	if (!c)
		c = bpf_map_lookup_elem(map = pending, &f->key4);
	if (!c)
		return 0;
	f->next = *c;
	f->next.generation = f->generation;
	bpf_map_update_elem(map, &f->key4, &f->next, BPF_EXIST);
	return 0;
}

#endif
