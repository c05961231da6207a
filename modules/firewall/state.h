/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Evaluates a packet by the connection tables, and updates them.
 *
 * Packets of both directions are processed on two CPUs at once, and the kernel may reuse an entry's
 * memory for another key while a program holds a pointer to it. Therefore:
 *
 * - Fields that both directions keep changing (time, windows, generation) are written in place,
 *   field by field: writing the whole value would undo what the other CPU has just written.
 * - The state, which determines how far a connection is trusted, is written as a whole value by
 *   key.
 * - A generation is bound to its key (fw_bind_generation), so that a write to another key's entry
 *   can only make that entry stale: the rules then evaluate the connection again. */
#ifndef FW_STATE_H
#define FW_STATE_H

#include "audit.h"
#include "tables.h"

/* The result of looking up a packet in the tables. */
enum fw_track {
	FW_UNKNOWN = 0, /* no connection: the rules decide */
	/* part of a connection that the rules allowed, or have denied in audit mode */
	FW_TRACKED = 1,
	FW_FULL = 2,	/* of one for which there was no room */
	/* of one that other rules allowed, sent by the initiator: the current rules decide */
	FW_STALE = 3,
	/* the same from the other side: the current rules decide on the opposite packet */
	FW_STALE_ANSWER = 4,
	FW_INVALID = 5, /* TCP that does not fit its connection */
};

/* Why the established table alone is not sufficient. */
enum fw_why {
	FW_WHY_ABSENT = 0,
	FW_WHY_EXPIRED = 1,
	FW_WHY_MISFIT = 2,
	FW_WHY_ENDS = 3, /* its connection is over */
	FW_WHY_NOT = 4,	 /* it is sufficient */
};

/* Returns whether the packet is TCP with tracked windows. */
static __always_inline int fw_is_tcp(const struct fw_flow *f)
{
	return FW_BOTH_WAYS && f->proto == IPPROTO_TCP && f->kind == FW_PLAIN;
}

static __always_inline __u32 fw_key_hash(const struct fw_flow *f)
{
	const __u32 *word = &f->key4.ifindex;
	__u32 factor = 1, sum = 0;

#pragma unroll
	for (__u32 i = 0; i < sizeof(struct fw_key6) / 4; i++) {
		if (f->family == 4 && i >= sizeof(struct fw_key4) / 4)
			break;
		factor *= 0x9e3779b1; /* odd: no word's change is lost */
		sum += word[i] * factor;
	}
	return sum;
}

/* Binds the generation to the packet's connection. */
static __always_inline void fw_bind_generation(struct fw_flow *f)
{
	f->generation ^= fw_key_hash(f);
}

/* Returns whether the current rules have decided on a connection. */
static __always_inline int fw_conn_is_evaluated(const struct fw_conn *c, const struct fw_flow *f)
{
	return c->generation == f->generation || (audit && c->generation == ~f->generation);
}

static __always_inline int fw_conn_staleness(const struct fw_conn *c, const struct fw_flow *f)
{
	if (fw_conn_is_evaluated(c, f))
		return FW_TRACKED;
	return f->dir == c->from ? FW_STALE : FW_STALE_ANSWER;
}

/* Moves an established connection that has ended: by RST, or closed by both sides. */
static __always_inline int fw_conn_ends(void *established, void *opening, void *pending,
					struct fw_flow *f, __u64 now)
{
	struct fw_conn *c = bpf_map_lookup_elem(established, &f->key4), *n = &f->next;

	if (!c)
		return FW_TRACKED;
	*n = *c;
	n->seen = now;
	n->state = f->tcp & KERB_TCP_RST ? FW_RESET : FW_CLOSED;
	fw_conn_insert(opening, pending, now);
	fw_conn_delete(established);
	return fw_conn_staleness(n, f);
}

/* The next state of a connection that is not TCP, or seen in one direction only. */
static __always_inline void fw_conn_advance(struct fw_conn *n, const struct fw_flow *f, __u64 now)
{
	if (f->dir != n->from) {
		if (fw_state(n) == FW_NEW)
			n->state = FW_REPLIED;
	} else if (fw_state(n) == FW_REPLIED && f->kind == FW_PLAIN &&
		   (__s64)(now - n->begun) >= (__s64)udp_assured_ns) {
		n->state = FW_ESTABLISHED_;
	}
}

/* Writes f->next over the entry that it was copied from. Answered connections leave the LRU table
 * if there is room. */
static __always_inline void fw_conn_write_back(void *opening, void *pending, struct fw_flow *f,
					       int answered, __u64 now)
{
	if (!bpf_map_update_elem(opening, &f->key4, &f->next, BPF_EXIST))
		return;
	if (!answered)
		bpf_map_update_elem(pending, &f->key4, &f->next, BPF_EXIST);
	else if (fw_conn_insert(opening, pending, now))
		bpf_map_delete_elem(pending, &f->key4);
}

/* Returns whether the entry is replaced by the whole of f->next: for a new state, and for the
 * numbers of an answered SYN, which another SYN+ACK may replace. In these states the sides send
 * alternately, except for SYNs. */
static __always_inline int fw_conn_replaces_entry(const struct fw_conn *c, const struct fw_flow *f)
{
	return fw_state(&f->next) != fw_state(c) ||
	       (fw_is_tcp(f) && f->tcp & KERB_TCP_SYN && fw_state(c) != FW_NEW);
}

/* Writes in place what a segment changes in the records of both sides: its own side's, and what the
 * other side may send. Before there is a reply, the SYN sets the latter in its own side's
 * record. */
static __always_inline void fw_conn_store(struct fw_conn *c, const struct fw_flow *f)
{
	const struct fw_peer *sn = &f->next.peer[f->dir & 1], *rn = &f->next.peer[~f->dir & 1];
	struct fw_peer *s = &c->peer[f->dir & 1], *r = &c->peer[~f->dir & 1];

	s->end = sn->end;
	s->maxwin = sn->maxwin;
	s->acked = sn->acked;
	s->scale = sn->scale;
	s->flags = sn->flags;
	if (fw_state(c) == FW_NEW) {
		s->maxend = sn->maxend;
		return;
	}
	r->maxend = rn->maxend;
	r->maxwin = rn->maxwin;
}

static __always_inline int fw_track_opening(void *established, void *opening, void *pending,
					    struct fw_conn *c, struct fw_flow *f, __u64 now)
{
	int opens = (f->tcp & (KERB_TCP_SYN | KERB_TCP_ACK)) == KERB_TCP_SYN &&
		    (!FW_BOTH_WAYS || f->dir == c->from);
	struct fw_conn *n = &f->next;
	__u32 fit = FW_FIT_YES;
	int full = 0;

	*n = *c;
	if (fw_conn_expired(n, f, now) || (opens && fw_state(n) >= FW_RESET)) {
		fw_opening_delete(opening, pending);
		return FW_UNKNOWN;
	}
	if (fw_is_tcp(f))
		fit = kerb_through(f->hidden, fw_tcp_opening(n, f));
	else
		fw_conn_advance(n, f, now);
	if (fit == FW_FIT_NOT)
		return FW_INVALID;
	if (fit == FW_FIT_YES)
		n->seen = now;
	if (fw_state(n) == FW_ESTABLISHED_) {
		if (fw_conn_promote(established, now)) {
			fw_opening_delete(opening, pending);
			return fw_conn_staleness(n, f);
		}
		n->state = FW_REPLIED; /* as long as there is no room */
		full = drop_when_full;
	}
	if (fit == FW_FIT_PASS)
		return fw_conn_staleness(n, f);
	if (fw_conn_replaces_entry(c, f)) {
		fw_conn_write_back(opening, pending, f,
				   fw_state(n) == FW_REPLIED && fw_state(c) == FW_NEW, now);
	} else {
		if (fw_is_tcp(f))
			fw_conn_store(c, f);
		fw_conn_touch(c, now);
	}
	return full ? FW_FULL : fw_conn_staleness(n, f);
}

static __always_inline struct fw_conn *fw_find_opening(void *opening, void *pending,
						       struct fw_flow *f)
{
	struct fw_conn *c = bpf_map_lookup_elem(opening, &f->key4);

	return c ? c : bpf_map_lookup_elem(pending, &f->key4);
}

/* Evaluates the established entry of a packet. Returns what the slow path has to do, or FW_WHY_NOT
 * with the result in *track. */
static __always_inline int fw_track_established(struct fw_conn *c, struct fw_flow *f, __u64 now,
						int *track)
{
	if (fw_conn_expired(c, f, now))
		return FW_WHY_EXPIRED;
	if (fw_is_tcp(f)) {
		__u32 fit;

		if ((f->tcp & (KERB_TCP_SYN | KERB_TCP_ACK | KERB_TCP_RST)) == KERB_TCP_SYN &&
		    f->dir == c->from) {
			/* the peer has lost the connection and begins another one, or this is
			 * forged */
			*track = FW_UNKNOWN;
			return FW_WHY_NOT;
		}
		fit = kerb_through(f->hidden, fw_tcp_fit(c, f));
		if (fit == FW_FIT_NOT)
			return FW_WHY_MISFIT;
		if (fit == FW_FIT_YES &&
		    (f->tcp & KERB_TCP_RST || fw_tcp_closed(&c->peer[0], &c->peer[1])))
			return FW_WHY_ENDS;
		if (fit == FW_FIT_YES)
			fw_conn_touch(c, now);
	} else {
		fw_conn_touch(c, now);
	}
	*track = fw_conn_staleness(c, f);
	return FW_WHY_NOT;
}

/* Handles everything for which the established table alone is not sufficient; c is the entry of
 * another table, if one was found. */
static __noinline int fw_track_slow_path(void *established, void *opening, void *pending,
					 struct fw_conn *c, int why)
{
	struct fw_flow *f = fw_flow();
	__u64 now;
	int track;

	if (!f)
		return FW_UNKNOWN;
	now = f->now;
	if (why == FW_WHY_ENDS)
		return fw_conn_ends(established, opening, pending, f, now);
	if (why == FW_WHY_EXPIRED)
		fw_conn_delete(established);
	if (!c && why != FW_WHY_ABSENT)
		c = fw_find_opening(opening, pending, f);
	if (!c)
		return why == FW_WHY_MISFIT ? FW_INVALID : FW_UNKNOWN;
	track = kerb_through(f->hidden, fw_track_opening(established, opening, pending, c, f, now));
	if (why != FW_WHY_MISFIT)
		return track;
	/* One side has begun another connection in addition to the established one. Once the other
	 * side knows only that one: */
	if (track != FW_UNKNOWN && track != FW_INVALID && f->tcp & (KERB_TCP_SYN | KERB_TCP_RST))
		fw_conn_delete(established);
	return track == FW_UNKNOWN ? FW_INVALID : track;
}

/* Looks up the packet and updates the tables. Another CPU may move an entry from one table to the
 * next in the meantime, so they are searched in that order. A SYN begins a connection, so that
 * nothing can have been moved. */
static __always_inline int fw_track(void *established, void *opening, void *pending,
				    struct fw_flow *f, __u64 now)
{
	struct fw_conn *c = bpf_map_lookup_elem(established, &f->key4), *o = NULL;
	int why = FW_WHY_ABSENT, track = FW_UNKNOWN;

	if (!c) {
		o = fw_find_opening(opening, pending, f);
		if (!o && FW_BOTH_WAYS && (f->proto != IPPROTO_TCP || f->begins != FW_BEGINS)) {
			o = bpf_map_lookup_elem(opening, &f->key4);
			c = o ? NULL : bpf_map_lookup_elem(established, &f->key4);
		}
	}
	if (c)
		why = fw_track_established(c, f, now, &track);
	if (why == FW_WHY_NOT)
		return track;
	return fw_track_slow_path(established, opening, pending, o, kerb_through(f->hidden, why));
}

/* Returns whether a connection with this key exists, for packets that refer to it without being
 * part of it. */
static __always_inline int fw_conn_is_alive(void *established, void *opening, void *pending,
					    const struct fw_flow *f, __u64 now)
{
	struct fw_conn *c = bpf_map_lookup_elem(established, &f->key4);

	if (!c)
		c = bpf_map_lookup_elem(opening, &f->key4);
	if (!c)
		c = bpf_map_lookup_elem(pending, &f->key4);
	if (!c || !fw_conn_is_evaluated(c, f) || fw_conn_expired(c, f, now))
		return 0;
	return !fw_is_tcp(f) || fw_tcp_quotes(c, f);
}

/* Returns whether TCP in midstream may be picked up. Packets from the service belong to a
 * connection that it has. Packets from outside may be forged, so they are accepted only while the
 * firewall is new to the interface. */
static __always_inline int fw_may_pick_up(struct fw_flow *f, __u64 now)
{
	struct fw_usage *u;

	if (f->dir == FW_EGRESS)
		return 1;
	if (f->begins != FW_BEGINS_MIDSTREAM)
		return 0;
	u = fw_get_usage(f, now);
	return u && (__s64)(now - u->since) < (__s64)pickup_ns;
}

/* Returns whether a packet without a connection is a TCP segment that begins none, and is not
 * picked up. */
static __always_inline int fw_is_midstream(struct fw_flow *f, __u64 now)
{
	return fw_is_tcp(f) && !f->quoting && f->begins != FW_BEGINS && !fw_may_pick_up(f, now);
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
		fw_tcp_update_learnt(&n->peer[f->dir & 1], &n->peer[~f->dir & 1], f);
	}
	return fw_conn_insert(opening, pending, now);
}

/* Updates or deletes a stale entry after the rules have evaluated its connection again. */
static __noinline int fw_conn_renew(void *established, void *opening, void *pending, int stays)
{
	struct fw_flow *f = fw_flow();
	struct fw_conn *c;

	if (!f)
		return 0;
	if (!stays) {
		fw_conn_delete(established);
		return fw_opening_delete(opening, pending);
	}
	c = bpf_map_lookup_elem(established, &f->key4);
	if (!c)
		c = bpf_map_lookup_elem(opening, &f->key4);
	if (!c)
		c = bpf_map_lookup_elem(pending, &f->key4);
	if (c)
		c->generation = f->generation;
	return 0;
}

#endif
