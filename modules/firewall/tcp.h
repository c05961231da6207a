/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Checks TCP segments against the windows of their connection (Guido van Rooij, "Real Stateful TCP
 * Packet Filtering in IP Filter", 2000). Each side's record has what it has sent and what the other
 * side has allowed it to send; a segment fits if it is within that window and acknowledges data
 * that was sent. Other segments are dropped and change nothing.
 *
 * Both directions of a connection may be processed on two CPUs at once. All fields except maxwin
 * are written by one direction only, and the segment that an acknowledgement answers was processed
 * before it: no lock is needed. */
#ifndef FW_TCP_H
#define FW_TCP_H

#include "flow.h"

/* an acknowledgement may be this many bytes behind, or the largest window if that is more */
#define FW_LAG 66000

enum fw_fit {
	FW_FIT_NOT = 0,
	FW_FIT_PASS = 1, /* passes and changes nothing */
	FW_FIT_YES = 2,
};

/* 1 if sequence number a is after b, else 0. By its sign, so that a comparison leaves the verifier
 * no ranges of a and b to follow: before Linux 6.3 it would continue once for each. */
static __always_inline __u32 fw_seq_after(__u32 a, __u32 b)
{
	__u32 sign = b - a;

	kerb_opaque(sign);
	return sign >> 31;
}

/* The larger of FW_LAG and win. */
static __always_inline __u32 fw_tcp_lag(__u32 win)
{
	__u32 more = win - FW_LAG;

	return FW_LAG + (more & (fw_seq_after(FW_LAG, win) - 1));
}

/* win, or 1 instead of 0: a closed window is probed with one byte. */
static __always_inline __u32 fw_tcp_probe_window(__u32 win)
{
	return win + fw_seq_after(1, win);
}

/* Read from memory each time, so that the verifier does not follow each state through a
 * function. */
static __always_inline __u8 fw_state(const struct fw_conn *n)
{
	return *(const volatile __u8 *)&n->state;
}

static __always_inline void fw_peer_ack(struct fw_peer *s, __u32 ack)
{
	if (s->flags & FW_PEER_ACKED && !fw_seq_after(ack, s->acked))
		return;
	s->acked = ack;
	s->flags |= FW_PEER_ACKED;
}

/* Records that a side has sent data up to end. A FIN with data after it is discarded. */
static __always_inline void fw_peer_sent(struct fw_peer *s, __u32 end, __u8 fin)
{
	s->end = end;
	s->flags = (s->flags & ~FW_PEER_FIN) | fin;
}

/* Returns whether both sides have sent FIN, and have acknowledged the other one's: a FIN that a
 * third party sends within a window counts only once its receiver has acknowledged it. Each side
 * writes only to its own record. Any segment detects it, unless the two last acknowledgements are
 * processed at once: such a connection is removed by age (conns.go). */
static __always_inline int fw_tcp_closed(const struct fw_peer *a, const struct fw_peer *b)
{
	return a->flags & b->flags & FW_PEER_FIN && !fw_seq_after(a->end, b->acked) &&
	       !fw_seq_after(b->end, a->acked); /* a FIN acknowledges, so that both are known */
}

/* Returns whether the connection is one that an earlier version of the module has tracked, with
 * neither side known. */
static __always_inline int fw_conn_is_learnt(struct fw_conn *c)
{
	if (!(c->peer[0].maxwin | c->peer[1].maxwin))
		c->flags |= FW_CONN_LEARNT;
	return c->flags & FW_CONN_LEARNT;
}

/* Starts a side's record with its SYN. */
static __always_inline void fw_peer_init(struct fw_peer *s, const struct fw_flow *f)
{
	s->end = f->end;
	s->maxend = f->seq + 1;
	s->maxwin = fw_tcp_probe_window(f->win);
	s->scale = f->scale <= FW_SCALE_MAX ? f->scale : 0;
	s->flags = f->scale <= FW_SCALE_MAX ? FW_PEER_SCALE : 0;
	s->acked = 0;
}

/* A segment of a connection in midstream: RST and FIN count if they exactly continue the known
 * data. */
static __always_inline int fw_tcp_update_learnt(struct fw_peer *s, const struct fw_peer *r,
						const struct fw_flow *f)
{
	int next = s->maxwin ? f->seq == s->end : !(f->tcp & KERB_TCP_RST);
	__u8 fin = (f->tcp & KERB_TCP_FIN) << 2;

	if (f->tcp & (KERB_TCP_RST | KERB_TCP_FIN) && !next &&
	    !(r->flags & FW_PEER_ACKED && f->seq == r->acked))
		return FW_FIT_PASS;
	if (f->tcp & KERB_TCP_RST)
		return FW_FIT_YES;
	if (!s->maxwin || fin || fw_seq_after(f->end, s->end))
		fw_peer_sent(s, f->end, fin);
	s->maxwin = 1;
	fw_peer_ack(s, f->ack);
	return FW_FIT_YES;
}

static __always_inline void fw_tcp_advance(struct fw_peer *s, struct fw_peer *r,
					   const struct fw_flow *f, __u32 end, __u32 ack)
{
	__u32 unscaled = f->tcp >> 1 & 1, win, edge; /* SYN */

	win = f->win << (s->scale & 15 & (unscaled - 1));
	if (fw_seq_after(win, s->maxwin))
		s->maxwin = win;
	if (fw_seq_after(end, s->maxend))
		r->maxwin += end - s->maxend;
	/* A FIN determines the end, unless the other side has acknowledged more: the previous value
	 * may be a guess (from a fragment), or forged by a third party. */
	if (fw_seq_after(end, s->end) || (f->tcp & KERB_TCP_FIN && !fw_seq_after(r->acked, end)))
		fw_peer_sent(s, end, (f->tcp & KERB_TCP_FIN) << 2);
	if (f->tcp & KERB_TCP_ACK)
		fw_peer_ack(s, ack);
	edge = ack + fw_tcp_probe_window(win);
	if (fw_seq_after(edge, r->maxend))
		r->maxend = edge;
}

/* Returns whether a segment fits a connection with both sides known, and updates their records. A
 * RST must not be before what the other side has acknowledged; it counts if it is exactly there or
 * at the end of the sent data, otherwise it passes and the receiver challenges it (RFC 5961). */
static __noinline int fw_tcp_fit(struct fw_conn *c, const struct fw_flow *f)
{
	struct fw_peer *s = &c->peer[f->dir & 1], *r = &c->peer[~f->dir & 1];
	__u32 end = f->end, ack = f->tcp & KERB_TCP_ACK ? f->ack : r->end,
	      lag = fw_tcp_lag(s->maxwin);

	if (!(f->tcp & (KERB_TCP_ACK | KERB_TCP_RST)))
		return FW_FIT_NOT;
	if (fw_conn_is_learnt(c))
		return fw_tcp_update_learnt(s, r, f);
	if (fw_seq_after(f->seq, s->maxend) | fw_seq_after(s->end - r->maxwin, end) |
	    fw_seq_after(ack, r->end) | fw_seq_after(r->end - lag, ack))
		return FW_FIT_NOT;
	if (f->tcp & KERB_TCP_RST) {
		if (!(r->flags & FW_PEER_ACKED))
			return f->seq == s->end ? FW_FIT_YES : FW_FIT_PASS;
		if (fw_seq_after(r->acked, f->seq))
			return FW_FIT_NOT;
		return f->seq == s->end || f->seq == r->acked ? FW_FIT_YES : FW_FIT_PASS;
	}
	/* the segment's length is known only from its other fragments */
	if (f->fragment && fw_seq_after(s->maxend, end))
		end = s->maxend;
	fw_tcp_advance(s, r, f, end, ack);
	return FW_FIT_YES;
}

/* A SYN+ACK. Until the other side has acknowledged it, one with another sequence number replaces
 * it. */
static __always_inline int fw_tcp_accept(struct fw_conn *n, struct fw_peer *s, struct fw_peer *r,
					 const struct fw_flow *f)
{
	if (fw_state(n) == FW_NEW
		    ? !r->maxwin | fw_seq_after(r->maxend, f->ack) | fw_seq_after(f->ack, r->end)
		    : !(s->flags & FW_PEER_ACKED) || f->ack != s->acked)
		return FW_FIT_NOT;
	if (!s->maxwin || f->end != s->end)
		fw_peer_init(s, f);
	if (!(s->flags & r->flags & FW_PEER_SCALE))
		s->scale = r->scale = 0;
	fw_peer_ack(s, f->ack);
	r->end = f->ack; /* data in the SYN that was not accepted will be sent again (RFC 7413) */
	r->maxend = f->ack + fw_tcp_probe_window(f->win);
	n->state = FW_REPLIED;
	return FW_FIT_YES;
}

/* A segment of a connection whose SYN has not been answered. */
static __always_inline int fw_tcp_open(struct fw_conn *n, struct fw_peer *s, struct fw_peer *r,
				       const struct fw_flow *f)
{
	__u32 what = f->tcp & (KERB_TCP_SYN | KERB_TCP_ACK | KERB_TCP_RST | KERB_TCP_FIN);
	int first = f->dir == n->from;

	if (what == KERB_TCP_SYN) { /* sent again, or by both sides at once (RFC 9293, 3.5) */
		if (s->maxwin && !fw_seq_after(f->end, s->end))
			return FW_FIT_PASS;
		fw_peer_init(s, f);
		return FW_FIT_YES;
	}
	if (what == (KERB_TCP_SYN | KERB_TCP_ACK))
		return fw_tcp_accept(n, s, r, f);
	/* of an old connection: the initiator will reset it (RFC 9293, 3.5.1) */
	if (what == KERB_TCP_ACK && !first && f->seq == f->end) {
		s->acked = f->ack;
		s->flags |= FW_PEER_ACKED;
		return FW_FIT_YES;
	}
	if (what == KERB_TCP_RST && first && r->flags & FW_PEER_ACKED && f->seq == r->acked)
		return FW_FIT_PASS;
	if (!(what & KERB_TCP_RST))
		return FW_FIT_NOT;
	if (first ? f->seq != s->end
		  : !(what & KERB_TCP_ACK) || fw_seq_after(r->maxend, f->ack) ||
			    fw_seq_after(f->ack, r->end))
		return FW_FIT_NOT;
	n->state = FW_RESET;
	return FW_FIT_YES;
}

/* Returns whether the initiator's segment leaves the SYN+ACK unacknowledged. Until it has
 * acknowledged that, the other side's maxend is the least that it must acknowledge. */
static __always_inline int fw_tcp_skips_handshake(const struct fw_conn *n, const struct fw_peer *s,
						  const struct fw_peer *r, const struct fw_flow *f)
{
	if (fw_state(n) != FW_REPLIED || f->dir != n->from || s->flags & FW_PEER_ACKED ||
	    f->tcp & KERB_TCP_RST)
		return 0;
	return !(f->tcp & KERB_TCP_ACK) || fw_seq_after(r->maxend, f->ack);
}

/* A segment of a connection that is not or no longer established: n is a copy of its entry. Stores
 * its next state in n; FW_ESTABLISHED_ means that the handshake is complete. */
static __noinline int fw_tcp_opening(struct fw_conn *n, const struct fw_flow *f)
{
	struct fw_peer *s = &n->peer[f->dir & 1], *r = &n->peer[~f->dir & 1];
	int learnt = fw_conn_is_learnt(n), first = f->dir == n->from, fit;

	if (fw_state(n) == FW_NEW && !learnt)
		return fw_tcp_open(n, s, r, f);
	if ((f->tcp & (KERB_TCP_SYN | KERB_TCP_ACK)) == KERB_TCP_SYN) /* sent again */
		return fw_state(n) == FW_REPLIED && (first || f->end == s->end) ? FW_FIT_PASS
										: FW_FIT_NOT;
	if (f->tcp & KERB_TCP_SYN && fw_state(n) == FW_REPLIED && !(r->flags & FW_PEER_ACKED) &&
	    f->end != s->end)
		return fw_tcp_accept(n, s, r, f);
	if (!learnt && fw_tcp_skips_handshake(n, s, r, f))
		return FW_FIT_NOT;
	fit = fw_tcp_fit(n, f);
	if (fit != FW_FIT_YES)
		return fit;
	if (f->tcp & KERB_TCP_RST) {
		n->state = fw_state(n) == FW_CLOSED ? FW_CLOSED : FW_RESET;
		return fit;
	}
	if (fw_tcp_closed(s, r))
		n->state = FW_CLOSED;
	if (fw_state(n) == FW_NEW && !first)
		n->state = FW_REPLIED;
	else if (fw_state(n) == FW_REPLIED &&
		 (learnt ? first : s->flags & r->flags & FW_PEER_ACKED))
		n->state = FW_ESTABLISHED_;
	return fit;
}

/* Returns whether the ICMP error that f describes quotes a segment that may be in flight. */
static __always_inline int fw_tcp_quotes(const struct fw_conn *c, const struct fw_flow *f)
{
	const struct fw_peer *s = &c->peer[~f->dir & 1], *r = &c->peer[f->dir & 1];
	__u32 lag = fw_tcp_lag(r->maxwin);

	if (c->flags & FW_CONN_LEARNT || !(s->maxwin | r->maxwin))
		return 1;
	return s->maxwin && s->end - f->seq <= lag;
}

#endif
