/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The life cycle of sessions: creation, updates, removal. This file does not change packets. */
#ifndef PX_SESSION_H
#define PX_SESSION_H

#include "affinity.h"
#include "hot.h"
#include "pair.h"

#define PX_PORT_TRIES 8
#define PX_PORT_FIRST 49152 /* dynamic ports (RFC 6335, 6) */
#define PX_PORT_MASK  16383

#define PX_EXIST -17 /* EEXIST */

#define PX_RETRY_NS (500 * 1000 * 1000) /* a SYN is sent again after 1 s (RFC 6298) */

/* What happens to a packet. */
enum px_step {
	PX_GO = 0,	     /* translate it by the session, and pass it on */
	PX_RESELECT = 1,     /* as if there were no session */
	PX_ENROL = 12,	     /* make a session with w->instance */
	PX_PASS = 2,	     /* leave it alone */
	PX_RESET_IT = 3,     /* notify the sender that the connection is closed */
	PX_STRAY = 4,	     /* belongs to nothing */
	PX_FULL = 5,	     /* no room for a session */
	PX_UNKNOWN_ADDR = 6, /* ask for its address */
	PX_NO_ADDR = 7,	     /* its address does not exist */
	PX_NO_INSTANCE = 8,
	PX_NO_PORT = 9,
	PX_NO_SESSION = 10, /* TCP in midstream */
	PX_NO_FIRST = 11,   /* a later fragment, its first one unseen */
	PX_OVER_QUOTA = 13, /* the interface has begun too many sessions */
};

/* Returns whether an existing entry with the key w->pair belongs to the session that is being
 * created, or to no session any more. */
static __always_inline int px_pair_is_stale(struct px_work *w, const struct px_session *there)
{
	struct px_flow forward;

	if (!(there->flags & PX_REVERSE))
		return 0;
	px_pair_key(&w->pair, there, &forward);
	return !__builtin_memcmp(&forward, &w->flow, sizeof(forward)) ||
	       !px_session_lookup(&forward);
}

/* Returns whether the table sessions has another session with the key w->pair. */
static __always_inline int px_is_taken(struct px_work *w)
{
	struct px_session *there = bpf_map_lookup_elem(&sessions, &w->pair);

	if (!there)
		return 0;
	if (!px_pair_is_stale(w, there))
		return 1;
	bpf_map_delete_elem(&sessions, &w->pair);
	px_epoch_advance(&w->pair);
	return 0;
}

/* Inserts the reverse entry of w->made, with another source port if the client's is taken. */
static __always_inline int px_put_reverse(struct px_work *w, __u32 local)
{
	for (int i = 0; i < PX_PORT_TRIES; i++) {
		struct px_session *there;
		int rc; /* before Linux 6.4 the upper half of the register is not set */

		px_pair_key(&w->flow, &w->made, &w->pair);
		px_pair_entry(&w->flow, &w->made, &w->mirror, local);
		rc = PX_EXIST; /* a service that connects to itself from the port that it serves */
		if (__builtin_memcmp(&w->pair, &w->flow, sizeof(w->flow)) && !px_is_taken(w))
			rc = bpf_map_update_elem(&pending, &w->pair, &w->mirror, BPF_NOEXIST);
		if (!rc)
			return 0;
		if (rc != PX_EXIST)
			return -1;
		there = bpf_map_lookup_elem(&pending, &w->pair);
		if (there && px_pair_is_stale(w, there)) {
			rc = bpf_map_update_elem(&pending, &w->pair, &w->mirror, BPF_ANY);
			px_epoch_advance(&w->pair);
			return rc ? -1 : 0;
		}
		/* its checksum covers the ports, and is too expensive to compute */
		if (w->flow.proto == IPPROTO_SCTP)
			return -1;
		if (!i)
			px_count(PX_COUNT_CLASH);
		w->made.sport = bpf_htons(PX_PORT_FIRST + (bpf_get_prandom_u32() & PX_PORT_MASK));
	}
	return -1;
}

/* Sets the target of the session w->made: the place of w->instance, or the packet's own
 * destination. Returns the interface on which replies are seen, 0: that of the client. */
static __always_inline __u32 px_set_target(struct px_work *w, const struct px_instance *in)
{
	const struct px_place *p = &in->place[in->generation & 1];
	struct px_session *s = &w->made;
	__u32 ifindex;

	if (!w->instance) {
		s->addr = w->flow.dst;
		return w->other.hook == PX_EGRESS ? w->other.ifindex : 0;
	}
	px_place_addr(p, w->v4, &s->addr);
	ifindex = px_interface_of(p->local);
	s->local = ifindex ? p->local : 0;
	return ifindex;
}

/* Returns whether the client's interface may begin another session. */
static __always_inline int px_may_open(struct px_work *w)
{
	struct px_share *share = px_share_of(w->flow.ifindex, w->now);

	if (!share || share->opened >= pending_budget)
		return 0;
	__sync_fetch_and_add(&share->opened, 1);
	return 1;
}

/* UDP packets without a session have to be looked up again: those of a new session, w->flow and
 * w->pair, and the client's to the instance itself, whose replies are the same. */
static __always_inline void px_epoch_advance_udp(struct px_work *w)
{
	if (w->flow.proto != IPPROTO_UDP)
		return;
	px_epoch_advance(&w->flow);
	px_epoch_advance(&w->pair);
	w->other = w->pair;
	px_flow_reverse(&w->other);
	w->other.ifindex = w->flow.ifindex;
	px_epoch_advance(&w->other);
}

/* The client opens a connection: it has forgotten any previous one with the same ports. */
static __always_inline int px_is_new_connection(const struct px_work *w)
{
	return (w->tcp & (KERB_TCP_SYN | KERB_TCP_ACK)) == KERB_TCP_SYN;
}

/* Creates a session for the packet with w->instance and its port w->target, and stores it in
 * w->made. */
static __noinline int px_session_create(struct px_work *w)
{
	struct px_instance *in = bpf_map_lookup_elem(&instances, &w->instance);
	struct px_session *s = &w->made;
	__u32 ifindex;

	if (!in)
		return PX_FULL;
	if (!px_may_open(w))
		return PX_OVER_QUOTA;
	__builtin_memset(s, 0, sizeof(*s));
	ifindex = px_set_target(w, in);
	s->seen = w->now;
	s->opened = px_is_new_connection(w) ? w->now : 0;
	s->state = w->state;
	s->sport = w->flow.sport;
	s->dport = w->target;
	s->instance = w->instance;
	s->generation = in->generation;
	s->other = ifindex ?: w->flow.ifindex;
	s->tick = bpf_jiffies64() / PX_TICK;
	s->flags = w->flags;
	if (!ifindex)
		s->flags |= PX_FAR;
	else if (ifindex == w->flow.ifindex && !(s->flags & PX_NAMED))
		s->flags |= PX_HAIRPIN;
	if (px_put_reverse(w, px_pair_local(&w->flow, s)) ||
	    bpf_map_update_elem(&pending, &w->flow, s, BPF_ANY))
		return PX_FULL;
	px_epoch_advance_udp(w);
	px_count_sessions(w->instance, 1);
	return PX_GO;
}

/* Round-trip time of a connect: a moving average as in TCP (RFC 6298). Two CPUs may overwrite each
 * other's. */
static __always_inline void px_time_answer(struct px_work *w, struct px_session *forward)
{
	struct px_instance_stats *stats = bpf_map_lookup_elem(&instance_stats, &forward->instance);
	__s64 rtt = w->now - forward->opened;

	if (stats && forward->opened && rtt > 0)
		stats->rtt = stats->rtt ? stats->rtt + ((rtt - (__s64)stats->rtt) >> 3) : rtt;
	forward->opened = 0;
}

/* Updates whether the instance accepts connections. A SYN that is repeated at once was only lost or
 * sent twice. */
static __always_inline void px_instance_update(const struct px_work *w, const struct px_session *s)
{
	struct px_instance_stats *stats = bpf_map_lookup_elem(&instance_stats, &s->instance);
	int reverse = s->flags & PX_REVERSE;

	if (!stats || s->state & PX_ANSWERED)
		return;
	if (reverse && w->tcp & KERB_TCP_SYN)
		__sync_fetch_and_add(&stats->answers, 1);
	else if (s->flags & PX_JUDGED &&
		 (reverse ? w->tcp & KERB_TCP_RST
			  : w->tcp & KERB_TCP_SYN && (__s64)(w->now - s->seen) > PX_RETRY_NS))
		__sync_fetch_and_add(&stats->failures, 1);
}

static __always_inline __u8 px_next_state(const struct px_work *w, const struct px_session *s)
{
	__u8 state = s->state;
	int reverse = s->flags & PX_REVERSE;

	if (w->kind == PX_ERROR || w->kind == PX_LATER)
		return state;
	if (reverse && !(w->tcp & KERB_TCP_RST))
		state |= PX_ANSWERED;
	if (w->tcp & KERB_TCP_FIN)
		state |= reverse ? PX_SERVER_FIN : PX_CLIENT_FIN;
	if (w->tcp & KERB_TCP_RST)
		state |= PX_RESET;
	return state;
}

/* Moves an answered session, w->made and w->mirror, from pending to sessions: it is inserted there
 * before it is deleted here, so that packets always find one of them. Another CPU may do so at the
 * same time: then it is completed with a later packet. */
static __noinline int px_session_promote(struct px_work *w)
{
	__u32 client = w->made.flags & PX_REVERSE ? w->made.other : w->flow.ifindex;
	struct px_share *share = px_share_of(client, w->now);

	if (share && share->opened && !(w->was & PX_ANSWERED))
		__sync_fetch_and_add(&share->opened, -1);
	if (!px_share_allows(share, PX_SHARE_OF_FREE)) {
		if (!(w->was & PX_ANSWERED))
			px_count(PX_COUNT_CROWDED);
		return 0;
	}
	if (bpf_map_update_elem(&sessions, &w->pair, &w->mirror, BPF_NOEXIST))
		return 0;
	if (bpf_map_update_elem(&sessions, &w->flow, &w->made, BPF_NOEXIST)) {
		bpf_map_delete_elem(&sessions, &w->pair);
		return 0;
	}
	px_share_count(client, 1);
	bpf_map_delete_elem(&pending, &w->pair);
	bpf_map_delete_elem(&pending, &w->flow);
	return 0;
}

/* Moves an ended session to pending, for its last packets. If its interface closes too many, it is
 * deleted immediately. */
static __noinline int px_session_demote(struct px_work *w)
{
	int reverse = w->made.flags & PX_REVERSE;
	struct px_share *share = px_share_of(reverse ? w->made.other : w->flow.ifindex, w->now);

	if (share && share->closed < pending_budget) {
		__sync_fetch_and_add(&share->closed, 1);
		bpf_map_update_elem(&pending, &w->pair, &w->mirror, BPF_ANY);
		bpf_map_update_elem(&pending, &w->flow, &w->made, BPF_ANY);
	}
	if (!bpf_map_delete_elem(&sessions, &w->pair) && reverse)
		px_share_count(w->pair.ifindex, -1);
	if (!bpf_map_delete_elem(&sessions, &w->flow) && !reverse)
		px_share_count(w->flow.ifindex, -1);
	return 0;
}

/* Inserts the session w->made, whose entries are up to date, into the right table. */
static __always_inline void px_session_insert(struct px_work *w)
{
	__u8 state = w->made.state;

	if (state & PX_CLOSED) {
		if (w->kept)
			px_session_demote(w);
	} else if (state & PX_ANSWERED && !w->kept) {
		px_session_promote(w);
	}
}

/* Writes the state of a session to its entry. Returns whether it exists. */
static __noinline int px_session_write(const struct px_flow *f, const struct px_session *from)
{
	struct px_session *s = px_session_lookup(f);

	if (!s)
		return 0;
	s->seen = from->seen;
	s->opened = from->opened;
	s->state = from->state;
	s->tick = from->tick;
	return 1;
}

/* Returns the state in the other entry, which may be missing because the LRU has evicted it. */
static __always_inline __u8 px_pair_state(struct px_work *w)
{
	struct px_session *pair = px_session_lookup(&w->pair);

	if (!pair)
		return 0;
	if (w->made.flags & PX_REVERSE && w->tcp & KERB_TCP_SYN && pair->opened)
		px_time_answer(w, pair);
	return pair->state;
}

/* Replies from another node have the virtual address of the instance as their source, if it has
 * one: packets are sent to its own one, which the other entry has. If that is missing, and the
 * instance has moved since, the next packet detects it. */
static __noinline int px_unname_mirror(struct px_work *w)
{
	const struct px_session *s = &w->made, *pair = px_session_lookup(&w->pair);
	struct px_instance *in = bpf_map_lookup_elem(&instances, &s->instance);

	if (pair)
		w->mirror.addr = pair->addr;
	else if (in && px_instance_name(s->instance, w->v4))
		px_place_addr(&in->place[s->generation & 1], w->v4, &w->mirror.addr);
	return 0;
}

/* Updates both entries of the session w->made for a packet: they are useful only together, so a
 * missing other one is created again. */
static __always_inline void px_session_update(struct px_work *w)
{
	struct px_session *s = &w->made;
	__u8 state = px_next_state(w, s);

	px_pair_key(&w->flow, s, &w->pair);
	state |= px_pair_state(w);
	w->was = s->state;
	if (w->flow.proto == IPPROTO_TCP)
		px_instance_update(w, s);
	if (state & PX_RESET || (state & PX_CLIENT_FIN && state & PX_SERVER_FIN)) {
		if (!(state & PX_CLOSED))
			px_count_sessions(s->instance, -1);
		state |= PX_CLOSED;
	}
	if (!(s->flags & PX_REVERSE) && w->tcp & KERB_TCP_SYN)
		s->opened = 0; /* sent again: later replies are ambiguous (Karn's algorithm) */
	s->seen = w->now;
	s->state = state;
	s->tick = bpf_jiffies64() / PX_TICK;
	px_session_write(&w->flow, s);
	px_pair_entry(&w->flow, s, &w->mirror, px_pair_local(&w->flow, s));
	if (px_is_named(s) && (s->flags & (PX_FAR | PX_REVERSE)) == (PX_FAR | PX_REVERSE))
		px_unname_mirror(w);
	if (!px_session_write(&w->pair, &w->mirror)) {
		if (w->kept)
			bpf_map_update_elem(&sessions, &w->pair, &w->mirror, BPF_NOEXIST);
		else
			bpf_map_update_elem(&pending, &w->pair, &w->mirror, BPF_NOEXIST);
		px_epoch_advance(&w->pair);
	}
	px_session_insert(w);
	if (s->flags & PX_STICKY && state & ~w->was & PX_ANSWERED)
		px_affinity_answered(w);
}

/* Returns whether packets are seen on the same hooks as when the session was created: the proxy may
 * have been attached to the instance's interface, or detached from it, since. */
static __always_inline int px_hooks_unchanged(const struct px_work *w, const struct px_session *s,
					      struct px_instance *in)
{
	__u32 ifindex = px_interface_of(px_place(in)->local);

	return ifindex ? !(s->flags & PX_FAR) && s->other == ifindex : !!(s->flags & PX_FAR);
}

/* Moves the session to where its instance is now. */
static __always_inline int px_session_move(struct px_work *w, const struct px_session *s)
{
	w->instance = s->instance;
	w->target = s->dport;
	w->state = s->state & PX_ANSWERED;
	w->flags = s->flags & (PX_JUDGED | PX_NAMED | PX_STICKY);
	px_count(PX_COUNT_MOVED);
	return PX_ENROL;
}

/* Handles a packet from the client whose instance has changed. */
static __always_inline int px_reselect(struct px_work *w, const struct px_session *s, int gone)
{
	int connected = w->flow.proto == IPPROTO_TCP && s->state;

	if (connected && !px_is_new_connection(w)) {
		px_count(PX_COUNT_RESET);
		return w->tcp & KERB_TCP_RST ? PX_STRAY : PX_RESET_IT;
	}
	if (!gone && !connected)
		return px_session_move(w, s);
	px_count(PX_COUNT_RESELECTED);
	return PX_RESELECT;
}

/* Returns whether a session can continue unchanged: PX_GO. Errors and later fragments follow it in
 * any case: the next whole packet acts on changes. */
static __always_inline int px_session_check(struct px_work *w, const struct px_session *s)
{
	struct px_instance *in;

	if (px_changes_both(s) && !px_client_name(&w->flow, s))
		return w->kind == PX_ERROR || w->kind == PX_LATER ? PX_STRAY
								  : px_reselect(w, s, 1);
	if (s->flags & PX_REVERSE || w->kind == PX_ERROR || w->kind == PX_LATER)
		return PX_GO;
	if (px_is_new_connection(w) && s->state & PX_CLOSED)
		return PX_RESELECT;
	if (!s->instance)
		return PX_GO;
	in = bpf_map_lookup_elem(&instances, &s->instance);
	if (!in)
		return px_reselect(w, s, 1);
	if (in->flags & PX_GONE || in->generation != s->generation)
		return px_reselect(w, s, in->flags & PX_GONE);
	return px_hooks_unchanged(w, s, in) ? PX_GO : px_session_move(w, s);
}

/* Handles a packet of the known session w->made, which is deleted unless it continues unchanged. */
static __noinline int px_session_packet(struct px_work *w)
{
	w->step = px_session_check(w, &w->made);
	if (kerb_reread(w->step) != PX_GO)
		px_session_delete(w, &w->flow, &w->made);
	else
		px_session_update(w);
	return 0;
}

/* Returns whether a packet to an address that is not virtual may be the first one of a connection,
 * which only TCP indicates. The port of SCTP cannot change. */
static __always_inline int px_may_be_first(const struct px_work *w)
{
	if (w->kind == PX_ECHO)
		return !px_is_echo_reply(w);
	return w->kind == PX_PLAIN && (w->flow.proto == IPPROTO_UDP || px_is_new_connection(w));
}

/* A client connects to an address that is not virtual. If one of its own sessions leads to the same
 * port there, from the same source port, the replies could not be distinguished: a closed session
 * is deleted, and next to an open one the connection becomes a session as well, with another source
 * port. */
static __noinline int px_direct_begin(struct px_work *w)
{
	struct px_session *there;

	px_answer_key(&w->flow, &w->other);
	there = px_session_lookup(&w->other);
	if (!there || !(there->flags & PX_REVERSE))
		return PX_PASS;
	if (there->state & PX_CLOSED) {
		px_session_delete(w, &w->other, there);
		return PX_PASS;
	}
	w->instance = 0;
	w->flags = 0;
	w->target = w->flow.dport;
	return PX_ENROL;
}

#endif
