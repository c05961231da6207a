/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Each message that an enrolled socket sends: by TCP, or into the other end's queue. Runs under the
 * sender's socket lock.
 *
 * ORDER. A receiver reads its queue of redirected messages before what TCP has for it. So from the
 * queue to TCP one may change at any time; from TCP to the queue only when the receiver has read
 * all that was ever sent by TCP: its copied_seq is our write_seq, and it has left that recv call
 * (it does not own its socket's lock; a recv that still waits for more, MSG_WAITALL, shows in the
 * wait queue). */
#ifndef ACCEL_TURN_H
#define ACCEL_TURN_H

#include "leave.h"

/* A message and what there is at this moment. */
struct accel_view {
	__u32 size;	/* of this one, bytes */
	__u32 flags;	/* of the call */
	__u32 written;	/* by TCP so far: write_seq */
	__u32 ordered;	/* TCP has nothing that the receiver has not read */
	__u32 empty;	/* nor has its queue */
	__u32 room;	/* of the receiver's buffer, bytes: accel_receive_buffer */
};

/* This and accel_redirects decide; model_test.go has the same in Go, but for room. Reports when
 * the connection has to leave. */
static __always_inline int accel_update_turn(struct accel_end *e, const struct accel_config *cfg,
					     __u32 answered, __u32 size)
{
	e->messages++;
	if (e->seen != answered) {
		e->seen = answered;
		e->turns++;
		e->run_messages = 0;
		e->run_bytes = 0;
	}
	e->run_messages++;
	e->run_bytes += size;
	if (cfg->mode == ACCEL_ALL)
		return ACCEL_FINE;
	if (e->run_messages > cfg->leave_messages || e->run_bytes > cfg->leave_bytes)
		return ACCEL_STREAM;
	return ACCEL_FINE;
}

static __always_inline int accel_redirects(struct accel_end *e, const struct accel_config *cfg,
					   const struct accel_view *v)
{
	if (!v->ordered)
		return 0;
	if (v->empty)
		e->queued = 0;
	if (cfg->mode == ACCEL_ALL)
		return 1;
	return e->turns >= cfg->warm && e->run_messages <= cfg->pass_messages &&
	       e->run_bytes <= cfg->pass_bytes && e->queued + v->size <= v->room &&
	       (!e->queued || e->queued + v->size <= cfg->backlog);
}

/* The process that sends may be another one than that which connected or listened, or have executed
 * another program since. */
static __always_inline void accel_check_process(struct accel_end *e)
{
	__u32 process = bpf_get_current_pid_tgid() >> 32,
	      executed = bpf_get_current_task_btf()->self_exec_id;
	struct accel_file f;
	enum accel_reason why;

	if (accel_uses_uring(bpf_get_current_task()))
		accel_stop(e, ACCEL_URING);
	if (e->process == process && e->executed == executed)
		return;
	e->process = process;
	e->executed = executed;
	f = accel_current_file();
	why = f.inode ? accel_examine_calls(&f)
		      : ACCEL_FINE; /* the kernel's own threads send for those that they work for */
	if (why == ACCEL_UNJUDGED)
		accel_ask(&f);
	if (why != ACCEL_FINE)
		accel_stop(e, why);
}

/* Whether threads wait in a way that redirected messages would disappoint. One that blocks in recv
 * sees EAGAIN whenever it is woken without a message: by signals, SIGSTOP and SIGCONT, the freezer,
 * a reset, another thread's shutdown. */
static __always_inline enum accel_reason accel_has_blocking_waiter(const struct accel_config *cfg,
								   __u64 sk, __u64 peer)
{
	struct accel_waiting theirs = accel_find_waiting(peer);

	if (theirs.flags & ACCEL_MSG_WAITALL)
		return accel_exclude_program(theirs.receiver, ACCEL_WAITALL) ?: ACCEL_WAITALL;
	if (accel_find_waiting(sk).receivers)
		return ACCEL_THREADS;
	return theirs.receivers && cfg->mode != ACCEL_ALL
		       ? accel_exclude_program(theirs.receiver, ACCEL_BLOCKING)
		       : ACCEL_FINE;
}

/* Whether redirecting this message keeps all promises now; sets what the decision needs to know. A
 * module that must see it may have come since the connection was established: that is seen within
 * 16 messages, as is who waits. */
static __always_inline int accel_check_message(struct accel_end *e, const struct accel_end *other,
					       const struct accel_config *cfg, struct accel_view *v)
{
	__u64 sk = e->sk, peer = other->sk;
	__u32 written = accel_get(accel_cast(struct tcp_sock, sk), write_seq);
	/* nothing went by TCP since the last redirect */
	int again = e->last && e->written == written;
	enum accel_reason why = ACCEL_FINE;

	if (accel_cookie(peer) != e->peer)
		return 0;
	v->ordered = again || accel_get(accel_cast(struct tcp_sock, peer), copied_seq) == written;
	accel_barrier();
	v->ordered &= again || !accel_get(accel_sock(peer), sk_lock.owned);
	accel_barrier();
	v->empty = accel_queue_empty(peer);
	v->room = accel_receive_buffer(peer);
	if (!accel_open(sk) || !accel_open(peer))
		why = ACCEL_CLOSED;
	else if (accel_has_unsupported_options(sk) || accel_has_unsupported_options(peer))
		why = ACCEL_OPTION;
	else if (v->flags & ACCEL_MSG_OOB)
		why = ACCEL_URGENT;
	else if (!again || e->messages < 16 || e->messages % 16 == 0)
		why = accel_is_watched(e->netns, other->netns)
			      ? ACCEL_POLICY
			      : accel_has_blocking_waiter(cfg, sk, peer);
	if (accel_cookie(peer) != e->peer)
		return 0;
	if (why != ACCEL_FINE)
		accel_stop(e, why);
	v->written = written;
	return why == ACCEL_FINE;
}

static __always_inline void accel_count_message(struct accel_end *e, const struct accel_end *peer,
						const struct accel_view *v)
{
	e->written = v->written;
	e->queued += v->size;
	e->last = e->heard;
	e->uncounted++;
	e->uncounted_bytes += v->size;
	if (e->redirects == 1 && !peer->redirects)
		accel_count(e->client, e->server, accelerated, 1);
	if (e->uncounted >= 64)
		accel_flush(e);
}

/* Returns KERB_REDIRECT, or KERB_NEXT for TCP. */
static __always_inline int accel_message(struct sk_msg_md *msg)
{
	const struct accel_config *cfg = accel_config();
	__u64 own = accel_cookie(accel_msg_sk(msg)), cookie;
	struct accel_end *e = accel_end(own), *peer;
	struct accel_view v = {.size = msg->size};
	enum accel_reason why;

	if (!cfg || !e)
		return KERB_NEXT;
	cookie = e->peer;
	peer = cookie ? accel_end(cookie) : 0;
	/* an element of `ends` that another connection got while accel_answer wrote to it */
	if (peer && peer->peer != own)
		peer = 0;
	v.flags = accel_send_flags();
	/* being in the map is enough for its completion not to come */
	if (v.flags & ACCEL_MSG_ZEROCOPY)
		accel_exclude_program(bpf_get_current_task(), ACCEL_OPTION);
	e->heard = accel_about_now();
	why = e->stop ?: peer ? peer->stop : 0;
	if (why) {
		accel_stop_both(e, peer, why);
		e->quiet |= accel_has_no_pending_data(e, 1);
		return KERB_NEXT;
	}
	why = accel_update_turn(e, cfg, peer ? peer->messages : 0, v.size);
	if (why != ACCEL_FINE)
		accel_stop_both(e, peer, why);
	if (!peer || accel_is_off(cfg))
		return KERB_NEXT;
	accel_check_process(e);
	if (e->stop || !accel_check_message(e, peer, cfg, &v) || !accel_redirects(e, cfg, &v))
		return KERB_NEXT;
	/* before the last check of stop: see accel_has_no_pending_data */
	__sync_fetch_and_add(&e->redirects, 1);
	if (e->stop || peer->stop ||
	    bpf_msg_redirect_hash(msg, &sockets, &cookie, BPF_F_INGRESS) != SK_PASS)
		return KERB_NEXT;
	if (e->redirects == ACCEL_PROVEN)
		accel_readmit_program();
	accel_count_message(e, peer, &v);
	return KERB_REDIRECT;
}

/* Why the connection of a message stays with TCP for good, for traces. */
static __always_inline enum accel_reason accel_why_plain(struct sk_msg_md *msg)
{
	const struct accel_end *e = accel_end(accel_cookie(accel_msg_sk(msg)));

	return e ? e->stop : ACCEL_FINE;
}

#endif
