/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Sessions: how they begin, what they live through, how they end. The packet itself is not touched here. */
#ifndef PX_SESSION_H
#define PX_SESSION_H

#include "choose.h"
#include "hot.h"

#define PX_PORT_TRIES 8
#define PX_PORT_FIRST 49152 /* ports that are nobody's (RFC 6335, 6) */
#define PX_PORT_MASK  16383

#define PX_EXIST -17 /* EEXIST */

/* What becomes of a packet. */
enum px_step {
	PX_GO = 0,	     /* change it as the session says, and on with it */
	PX_ANEW = 1,	     /* as if there were no session */
	PX_ENROL = 12,	     /* make a session with w->instance */
	PX_PASS = 2,	     /* leave it alone */
	PX_RESET_IT = 3,     /* tell the sender that the connection is no more */
	PX_STRAY = 4,	     /* belongs to nothing */
	PX_FULL = 5,	     /* no room for a session */
	PX_UNKNOWN_ADDR = 6, /* ask for its address */
	PX_NO_ADDR = 7,	     /* its address does not exist */
	PX_NO_INSTANCE = 8,
	PX_NO_PORT = 9,
	PX_NO_SESSION = 10, /* TCP amid a connection */
	PX_NO_FIRST = 11,   /* a later fragment, its first one unseen */
};

static __always_inline void px_count(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&counts, &what);

	if (n)
		*n += 1;
}

static __always_inline void px_count_sessions(__u32 instance, __s64 n)
{
	struct px_instance_stats *stats = bpf_map_lookup_elem(&instance_stats, &instance);

	if (!stats)
		return;
	__sync_fetch_and_add(&stats->sessions, n);
	if (n > 0)
		__sync_fetch_and_add(&stats->opened, 1);
}

/* Key of the other entry: the changed packet, turned round. */
static __noinline int px_pair_key(const struct px_flow *f, const struct px_session *s, struct px_flow *pair)
{
	int hairpin = s->flags & PX_HAIRPIN, reverse = s->flags & PX_REVERSE;

	pair->src = hairpin || !reverse ? s->addr : f->dst;
	pair->dst = hairpin ? f->dst : reverse ? s->addr : f->src;
	pair->sport = s->dport;
	pair->dport = s->sport;
	pair->ifindex = s->other;
	pair->proto = f->proto;
	pair->hook = !reverse && s->flags & PX_FAR ? PX_INGRESS : PX_EGRESS;
	pair->zero = 0;
	return 0;
}

/* Whether the other entry is there, which the LRU may have put out. It sees that it is in use, at any rate. */
static __noinline int px_has_pair(const struct px_flow *f, const struct px_session *s)
{
	struct px_flow pair;

	px_pair_key(f, s, &pair);
	return !!bpf_map_lookup_elem(&sessions, &pair);
}

/* The other entry itself. local: see struct px_session. */
static __noinline int px_pair_entry(const struct px_flow *f, const struct px_session *s, struct px_session *pair, __u32 local)
{
	int take_source = s->flags & (PX_HAIRPIN | PX_REVERSE);

	*pair = *s;
	pair->opened = 0;
	pair->addr = take_source ? f->src : f->dst;
	pair->sport = f->dport;
	pair->dport = f->sport;
	pair->other = f->ifindex;
	pair->local = local;
	pair->flags = s->flags ^ PX_REVERSE;
	return 0;
}

static __always_inline __u32 px_local_of(__u32 ifindex)
{
	__u32 *local = bpf_map_lookup_elem(&interfaces, &ifindex);

	return local ? *local : 0;
}

/* Where an instance is met: its interface here, or 0. */
static __always_inline __u32 px_interface_of(__u32 local)
{
	struct px_local *l = bpf_map_lookup_elem(&locals, &local);

	return l ? l->ifindex : 0;
}

/* Whom changed packets of the other entry are for: the client if its answers come by on egress of the instance. */
static __always_inline __u32 px_pair_local(const struct px_flow *f, const struct px_session *s)
{
	if (s->flags & PX_REVERSE)
		return px_local_of(s->flags & PX_FAR ? 0 : f->ifindex);
	return s->flags & PX_FAR ? 0 : px_local_of(f->ifindex);
}

/* Removes both entries of the packet's session; who removes the forward one counts. */
static __always_inline void px_forget(struct px_work *w, const struct px_session *s)
{
	int counted = !(s->state & PX_CLOSED);
	__u32 instance = s->instance;

	px_pair_key(&w->flow, s, &w->pair);
	bpf_map_delete_elem(&sessions, &w->pair);
	if (!bpf_map_delete_elem(&sessions, &w->flow) && counted)
		px_count_sessions(instance, -1);
	px_changed(&w->pair);
	px_changed(&w->flow);
}

/* Whether an entry in the way, under the key w->pair, is of the session that is being made, or of none any more. */
static __always_inline int px_stale(struct px_work *w, const struct px_session *there)
{
	struct px_flow forward;

	if (!(there->flags & PX_REVERSE))
		return 0;
	px_pair_key(&w->pair, there, &forward);
	return !__builtin_memcmp(&forward, &w->flow, sizeof(forward)) || !bpf_map_lookup_elem(&sessions, &forward);
}

/* Puts the reverse entry of w->made, with a source port of its own if the client's is taken. */
static __always_inline int px_put_reverse(struct px_work *w, __u32 local)
{
	for (int i = 0; i < PX_PORT_TRIES; i++) {
		struct px_session *there;
		int rc; /* before Linux 6.4 the upper half of the register is not set */

		px_pair_key(&w->flow, &w->made, &w->pair);
		px_pair_entry(&w->flow, &w->made, &w->mirror, local);
		rc = PX_EXIST; /* a service that calls itself from the port it serves */
		if (__builtin_memcmp(&w->pair, &w->flow, sizeof(w->flow)))
			rc = bpf_map_update_elem(&sessions, &w->pair, &w->mirror, BPF_NOEXIST);
		if (!rc)
			return 0;
		if (rc != PX_EXIST)
			return -1;
		there = bpf_map_lookup_elem(&sessions, &w->pair);
		if (there && px_stale(w, there))
			return bpf_map_update_elem(&sessions, &w->pair, &w->mirror, BPF_ANY) ? -1 : 0;
		if (w->flow.proto == IPPROTO_SCTP) /* its checksum covers the ports, and is too dear to compute */
			return -1;
		if (!i)
			px_count(PX_COUNT_CLASH);
		w->made.sport = bpf_htons(PX_PORT_FIRST + (bpf_get_prandom_u32() & PX_PORT_MASK));
	}
	return -1;
}

/* Makes a session of the packet with w->instance, to port w->target there. It is left in w->made. */
static __noinline int px_enrol(struct px_work *w)
{
	struct px_instance *in = bpf_map_lookup_elem(&instances, &w->instance);
	struct px_session *s = &w->made;
	struct px_place *p;
	__u32 ifindex;

	if (!in)
		return PX_FULL;
	p = px_place(in);
	ifindex = px_interface_of(p->local);
	__builtin_memset(s, 0, sizeof(*s));
	if (w->v4)
		px_set4(&s->addr, p->addr4);
	else
		s->addr = p->addr6;
	s->seen = w->now;
	s->opened = w->tcp & TCP_SYN ? w->now : 0;
	s->state = w->state;
	s->sport = w->flow.sport;
	s->dport = w->target;
	s->instance = w->instance;
	s->generation = in->generation;
	s->local = ifindex ? p->local : 0;
	s->other = ifindex ?: w->flow.ifindex;
	s->tick = bpf_jiffies64() / PX_TICK;
	s->flags = !ifindex ? PX_FAR : ifindex == w->flow.ifindex ? PX_HAIRPIN : 0;
	if (px_put_reverse(w, px_pair_local(&w->flow, s)) || bpf_map_update_elem(&sessions, &w->flow, s, BPF_ANY))
		return PX_FULL;
	px_changed(&w->pair);
	px_changed(&w->flow);
	px_count_sessions(w->instance, 1);
	return PX_GO;
}

/* Round-trip time of a connect: a moving average as TCP's own (RFC 6298). Two CPUs may overwrite each other's. */
static __always_inline void px_time_answer(struct px_work *w, struct px_session *forward)
{
	struct px_instance_stats *stats = bpf_map_lookup_elem(&instance_stats, &forward->instance);
	__s64 rtt = w->now - forward->opened;

	if (stats && forward->opened && rtt > 0)
		stats->rtt = stats->rtt ? stats->rtt + ((rtt - (__s64)stats->rtt) >> 3) : rtt;
	forward->opened = 0;
}

static __always_inline __u8 px_next_state(const struct px_work *w, const struct px_session *s)
{
	__u8 state = s->state;
	int reverse = s->flags & PX_REVERSE;

	if (w->kind == PX_ERROR || w->kind == PX_LATER)
		return state;
	if (reverse && !(w->tcp & TCP_RST))
		state |= PX_ANSWERED;
	if (w->tcp & TCP_FIN)
		state |= reverse ? PX_SERVER_FIN : PX_CLIENT_FIN;
	if (w->tcp & TCP_RST)
		state |= PX_RESET;
	return state;
}

/* Takes note of a packet of a session in both its entries. The other one may be missing, put out by the LRU: both are of
 * use only together, so it is made again. */
static __always_inline void px_note(struct px_work *w, struct px_session *s)
{
	struct px_session *pair;
	__u8 state = px_next_state(w, s);

	px_pair_key(&w->flow, s, &w->pair);
	pair = bpf_map_lookup_elem(&sessions, &w->pair);
	if (pair)
		state |= pair->state;
	if (state & PX_RESET || (state & PX_CLIENT_FIN && state & PX_SERVER_FIN)) {
		if (!(state & PX_CLOSED))
			px_count_sessions(s->instance, -1);
		state |= PX_CLOSED;
	}
	if (pair && s->flags & PX_REVERSE && w->tcp & TCP_SYN && pair->opened)
		px_time_answer(w, pair);
	if (!(s->flags & PX_REVERSE) && w->tcp & TCP_SYN)
		s->opened = 0; /* sent again: what is answered later nobody can tell (Karn's algorithm) */
	s->seen = w->now;
	s->state = state;
	s->tick = bpf_jiffies64() / PX_TICK;
	if (pair) {
		pair->seen = s->seen;
		pair->state = state;
		pair->tick = s->tick;
		return;
	}
	px_pair_entry(&w->flow, s, &w->mirror, px_pair_local(&w->flow, s));
	bpf_map_update_elem(&sessions, &w->pair, &w->mirror, BPF_NOEXIST);
	px_changed(&w->pair);
}

/* Whether packets are met where they were when the session was made: the proxy may have come to or gone from the
 * instance's interface. */
static __always_inline int px_is_met(const struct px_work *w, const struct px_session *s, struct px_instance *in)
{
	__u32 ifindex = px_interface_of(px_place(in)->local);

	return ifindex ? !(s->flags & PX_FAR) && s->other == ifindex : !!(s->flags & PX_FAR);
}

/* The session comes along to where its instance is now. */
static __always_inline int px_move(struct px_work *w, const struct px_session *s)
{
	w->instance = s->instance;
	w->target = s->dport;
	w->state = s->state & PX_ANSWERED;
	px_count(PX_COUNT_MOVED);
	return PX_ENROL;
}

/* The client makes a connection: if there was one with its ports, it knows nothing of it any more. */
static __always_inline int px_begins(const struct px_work *w)
{
	return (w->tcp & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* A packet from the client, whose instance is not as it was. */
static __always_inline int px_lost(struct px_work *w, const struct px_session *s, int gone)
{
	int connected = w->flow.proto == IPPROTO_TCP && s->state;

	if (connected && !px_begins(w)) {
		px_count(PX_COUNT_RESET);
		return w->tcp & TCP_RST ? PX_STRAY : PX_RESET_IT;
	}
	if (!gone && !connected)
		return px_move(w, s);
	px_count(PX_COUNT_CHOSEN_ANEW);
	return PX_ANEW;
}

/* Whether a session can go on as it is: PX_GO. Errors and later fragments go with it in any case: the next whole packet sees
 * to what has changed. */
static __always_inline int px_judge(struct px_work *w, const struct px_session *s)
{
	struct px_instance *in;

	if (s->flags & PX_REVERSE || w->kind == PX_ERROR || w->kind == PX_LATER)
		return PX_GO;
	if (px_begins(w) && s->state & PX_CLOSED)
		return PX_ANEW;
	in = bpf_map_lookup_elem(&instances, &s->instance);
	if (!in)
		return px_lost(w, s, 1);
	if (in->flags & PX_GONE || in->generation != s->generation)
		return px_lost(w, s, in->flags & PX_GONE);
	return px_is_met(w, s, in) ? PX_GO : px_move(w, s);
}

/* A packet of a known session, which is forgotten unless it goes on as it is: then it is in w->made. */
static __noinline int px_attend(struct px_work *w, struct px_session *s)
{
	w->step = px_judge(w, s);
	if (px_unknown_to_verifier(w->step) != PX_GO) {
		px_forget(w, s);
		return 0;
	}
	px_note(w, s);
	w->made = *s;
	return 0;
}

#endif
