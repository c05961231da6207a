/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Connections. Two tables per family: a new connection lives in `pending`, an LRU table that a flood may churn as it
 * likes, until the side that began it answers the answer; then it moves to `established`, where nothing is ever evicted.
 * A closed connection goes back to pending for its last packets. So spoofed packets, answered or not, cost no live
 * connection its entry. Entries are keyed by the service's interface and side: both directions find the same one. */
#ifndef FW_STATE_H
#define FW_STATE_H

#include "flow.h"

#define FW_PENDING     16384
#define FW_ESTABLISHED 65536 /* max_connections unless configured; entries are allocated when needed */
#define FW_TOUCH_NS    (1ULL << 30)

KERB_CONFIG(_Bool, state, 1);
KERB_CONFIG(_Bool, coarse_clock, 0); /* bpf_ktime_get_coarse_ns is there (5.11) */
KERB_CONFIG(_Bool, drop_when_full, 0);
KERB_CONFIG(__u32, generation, 0); /* identity of the rule set: entries of another one are checked against the rules again */
KERB_CONFIG(__u64, max_connections, 65536);
KERB_CONFIG(__u64, tcp_syn_ns, 60000000000ULL);
KERB_CONFIG(__u64, tcp_established_ns, 86400000000000ULL);
KERB_CONFIG(__u64, tcp_closing_ns, 60000000000ULL);
KERB_CONFIG(__u64, udp_ns, 30000000000ULL);
KERB_CONFIG(__u64, udp_stream_ns, 180000000000ULL);
KERB_CONFIG(__u64, icmp_ns, 30000000000ULL);

enum fw_state {
	FW_NEW = 0,	    /* packets from the beginner only */
	FW_REPLIED = 1,	    /* and an answer */
	FW_ESTABLISHED_ = 2, /* and an answer to that */
	FW_RESET = 3,	    /* a RST was seen: goes on if packets do, as the RST may have been forged */
	FW_CLOSED = 4,	    /* both sides sent FIN */
};

struct fw_conn {
	__u64 seen; /* monotonic clock, to about a second */
	__u32 generation;
	__u8 state; /* enum fw_state */
	__u8 from;  /* direction of the first packet */
	__u8 fins;  /* bit per direction */
	__u8 zero;
};

struct fw_table {
	__u64 established; /* entries in both established tables */
	__u64 full;	   /* times that there was no room */
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
	FW_STALE = 3,	/* of one that other rules allowed, sent by who began it: today's rules decide */
	FW_STALE_ANSWER = 4, /* the same from the other side: today's rules decide on the opposite packet */
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
		return c->state == FW_ESTABLISHED_ ? udp_stream_ns : udp_ns;
	if (c->state >= FW_RESET || c->fins)
		return tcp_closing_ns;
	return c->state == FW_ESTABLISHED_ ? tcp_established_ns : tcp_syn_ns;
}

/* A clock read on another CPU may lie a little ahead of ours: the difference is signed. */
static __always_inline int fw_expired(const struct fw_conn *c, const struct fw_flow *f, __u64 now)
{
	return (__s64)(now - c->seen) > (__s64)fw_timeout(c, f);
}

static __always_inline void fw_touch(struct fw_conn *c, __u64 now)
{
	if ((__s64)(now - c->seen) > (__s64)FW_TOUCH_NS) /* seldom: the line stays shared between CPUs */
		c->seen = now;
}

static __always_inline struct fw_table *fw_get_table(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&table, &zero);
}

/* Moves c, an entry of pending, to established. */
static __always_inline int fw_promote(void *established, void *pending, const void *key, const struct fw_conn *c)
{
	struct fw_conn copy = {.seen = c->seen, .generation = c->generation, .state = FW_ESTABLISHED_, .from = c->from, .fins = c->fins};
	struct fw_table *t = fw_get_table();
	int err; /* before Linux 6.4 only the lower half of what the helper returns is right */

	if (!t)
		return FW_TRACKED;
	if (t->established >= max_connections) {
		__sync_fetch_and_add(&t->full, 1);
		return drop_when_full ? FW_FULL : FW_TRACKED;
	}
	err = bpf_map_update_elem(established, key, &copy, BPF_NOEXIST);
	if (!err) {
		__sync_fetch_and_add(&t->established, 1);
		bpf_map_delete_elem(pending, key);
	} else if (err != -17) { /* EEXIST: another CPU was faster */
		__sync_fetch_and_add(&t->full, 1);
		return drop_when_full ? FW_FULL : FW_TRACKED;
	}
	return FW_TRACKED;
}

static __always_inline void fw_forget(void *established, const void *key)
{
	struct fw_table *t = fw_get_table();

	if (!bpf_map_delete_elem(established, key) && t)
		__sync_fetch_and_add(&t->established, -1);
}

/* Moves c, an entry of established, to pending. */
static __always_inline void fw_demote(void *established, void *pending, const void *key, const struct fw_conn *c, __u8 state, __u64 now)
{
	struct fw_conn copy = {.seen = now, .generation = c->generation, .state = state, .from = c->from, .fins = c->fins};

	bpf_map_update_elem(pending, key, &copy, BPF_ANY);
	fw_forget(established, key);
}

static __always_inline int fw_on_established(void *established, void *pending, const void *key, struct fw_conn *c,
					     const struct fw_flow *f, __u64 now)
{
	if (fw_expired(c, f, now)) {
		fw_forget(established, key);
		return FW_UNKNOWN;
	}
	if (c->generation != generation)
		return f->dir == c->from ? FW_STALE : FW_STALE_ANSWER;
	if (f->tcp & (TCP_FIN | TCP_RST)) {
		if (f->tcp & TCP_RST) {
			fw_demote(established, pending, key, c, FW_RESET, now);
			return FW_TRACKED;
		}
		c->fins |= 1 << f->dir;
		if (c->fins == 3) {
			fw_demote(established, pending, key, c, FW_CLOSED, now);
			return FW_TRACKED;
		}
	}
	fw_touch(c, now);
	return FW_TRACKED;
}

static __always_inline int fw_on_pending(void *established, void *pending, const void *key, struct fw_conn *c,
					 const struct fw_flow *f, __u64 now)
{
	int opens = (f->tcp & (TCP_SYN | TCP_ACK)) == TCP_SYN;

	if (fw_expired(c, f, now) || (opens && c->state >= FW_RESET)) {
		bpf_map_delete_elem(pending, key);
		return FW_UNKNOWN;
	}
	if (c->generation != generation)
		return f->dir == c->from ? FW_STALE : FW_STALE_ANSWER;
	if (f->tcp & TCP_RST) {
		if (c->state != FW_CLOSED)
			c->state = FW_RESET;
	} else if (f->tcp & TCP_FIN) {
		c->fins |= 1 << f->dir;
		if (c->fins == 3)
			c->state = FW_CLOSED;
	} else if (f->dir != c->from) {
		if (c->state == FW_NEW)
			c->state = FW_REPLIED;
	} else if ((c->state == FW_REPLIED || c->state == FW_RESET) && f->kind == FW_PLAIN && !(f->tcp & TCP_SYN)) {
		c->seen = now;
		return fw_promote(established, pending, key, c);
	}
	fw_touch(c, now);
	return FW_TRACKED;
}

/* What the tables say of the packet, and its effect on them. */
static __always_inline int fw_track(void *established, void *pending, const void *key, const struct fw_flow *f, __u64 now)
{
	struct fw_conn *c = bpf_map_lookup_elem(established, key);

	if (c)
		return fw_on_established(established, pending, key, c, f, now);
	c = bpf_map_lookup_elem(pending, key);
	if (c)
		return fw_on_pending(established, pending, key, c, f, now);
	return FW_UNKNOWN;
}

/* Whether a connection with this key is alive. For packets that tell of it without being part of it. */
static __always_inline int fw_alive(void *established, void *pending, const void *key, const struct fw_flow *f, __u64 now)
{
	struct fw_conn *c = bpf_map_lookup_elem(established, key);

	if (!c)
		c = bpf_map_lookup_elem(pending, key);
	return c && c->generation == generation && !fw_expired(c, f, now);
}

static __always_inline void fw_begin(void *pending, const void *key, const struct fw_flow *f, __u64 now)
{
	struct fw_conn c = {.seen = now, .generation = generation, .state = FW_NEW, .from = f->dir};

	bpf_map_update_elem(pending, key, &c, BPF_ANY);
}

/* After the rules have looked again at the connection of a stale entry. */
static __always_inline void fw_renew(void *established, void *pending, const void *key, int allowed)
{
	struct fw_conn *c = bpf_map_lookup_elem(established, key);

	if (c && !allowed) {
		fw_forget(established, key);
		return;
	}
	if (!c)
		c = bpf_map_lookup_elem(pending, key);
	if (!c)
		return;
	if (allowed)
		c->generation = generation;
	else
		bpf_map_delete_elem(pending, key);
}

#endif
