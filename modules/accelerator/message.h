/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Each message that an enrolled socket sends: over TCP, or redirected to the queue of the other
 * end. Runs under the socket lock of the sender.
 *
 * ORDER
 * A receiver reads its queue of redirected messages before data of TCP. So a sender may switch from
 * the queue to TCP at any time, but from TCP to the queue only when the receiver has read all that
 * was ever sent over TCP: its copied_seq equals the sender's write_seq, and it has left that recv
 * call (its socket lock is not owned; a recv that waits for more, MSG_WAITALL, is in the wait
 * queue). */
#ifndef ACCEL_MESSAGE_H
#define ACCEL_MESSAGE_H

#include "remove.h"

/* A message, and the state of both ends. */
struct accel_view {
	__u32 size;    /* of the message, bytes */
	__u32 flags;   /* of the send call */
	__u32 written; /* write_seq of the sender's TCP */
	__u32 ordered; /* the receiver has read all data of TCP */
	__u32 empty;   /* its queue is empty */
	__u32 room;    /* size of its receive buffer, bytes: accel_receive_buffer */
};

/* Counts a message; answered: messages of the peer. Returns why the connection has to be removed,
 * or ACCEL_OK. model_test.go has this and accel_should_redirect in Go, except for room. */
static __always_inline int accel_turn_update(struct accel_end *e, const struct accel_config *cfg,
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
		return ACCEL_OK;
	if (e->run_messages > cfg->leave_messages || e->run_bytes > cfg->leave_bytes)
		return ACCEL_STREAM;
	return ACCEL_OK;
}

static __always_inline int accel_should_redirect(struct accel_end *e,
						 const struct accel_config *cfg,
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

/* Checks the sending process, which may not be the one that connected or listened, or may have
 * called execve since. */
static __always_inline void accel_process_check(struct accel_end *e)
{
	__u32 process = bpf_get_current_pid_tgid() >> 32,
	      executed = bpf_get_current_task_btf()->self_exec_id;
	struct accel_file f;
	enum accel_reason why;

	if (accel_task_uses_uring(bpf_get_current_task()))
		accel_end_stop(e, ACCEL_URING);
	if (e->process == process && e->executed == executed)
		return;
	e->process = process;
	e->executed = executed;
	f = accel_current_file();
	why = f.inode ? accel_executable_check(&f)
		      : ACCEL_OK; /* kernel threads send on behalf of others */
	if (why == ACCEL_UNJUDGED)
		accel_current_query(&f);
	if (why != ACCEL_OK)
		accel_end_stop(e, why);
}

/* Returns why threads that wait for the sockets sk and peer are incompatible with redirected
 * messages, or ACCEL_OK. A blocking recv returns EAGAIN if it is woken without a message: by
 * signals, SIGSTOP and SIGCONT, the freezer, a reset, shutdown by another thread. */
static __always_inline enum accel_reason accel_waiters_check(const struct accel_config *cfg,
							     __u64 sk, __u64 peer)
{
	struct accel_waiters theirs = accel_waiters_find(peer);

	if (theirs.flags & ACCEL_MSG_WAITALL)
		return accel_program_exclude(theirs.receiver, ACCEL_WAITALL) ?: ACCEL_WAITALL;
	if (accel_waiters_find(sk).receivers)
		return ACCEL_THREADS;
	return theirs.receivers && cfg->mode != ACCEL_ALL
		       ? accel_program_exclude(theirs.receiver, ACCEL_BLOCKING)
		       : ACCEL_OK;
}

/* Returns whether redirecting this message is safe now, and sets the state in v. Modules that must
 * see the connection may have been added since it was established: this and waiting threads are
 * checked every 16 messages. */
static __always_inline int accel_message_check(struct accel_end *e, const struct accel_end *other,
					       const struct accel_config *cfg, struct accel_view *v)
{
	__u64 sk = e->sk, peer = other->sk;
	__u32 written = accel_get(accel_cast(struct tcp_sock, sk), write_seq);
	/* nothing was sent over TCP since the last redirected message */
	int again = e->last && e->written == written;
	enum accel_reason why = ACCEL_OK;

	if (accel_cookie(peer) != e->peer)
		return 0;
	v->ordered = again || accel_get(accel_cast(struct tcp_sock, peer), copied_seq) == written;
	accel_barrier();
	v->ordered &= again || !accel_get(accel_sock(peer), sk_lock.owned);
	accel_barrier();
	v->empty = accel_queue_empty(peer);
	v->room = accel_receive_buffer(peer);
	if (!accel_sock_is_open(sk) || !accel_sock_is_open(peer))
		why = ACCEL_CLOSED;
	else if (accel_has_unsupported_options(sk) || accel_has_unsupported_options(peer))
		why = ACCEL_OPTION;
	else if (v->flags & ACCEL_MSG_OOB)
		why = ACCEL_URGENT;
	else if (!again || e->messages < 16 || e->messages % 16 == 0)
		why = accel_must_be_visible(e->netns, other->netns)
			      ? ACCEL_POLICY
			      : accel_waiters_check(cfg, sk, peer);
	if (accel_cookie(peer) != e->peer)
		return 0;
	if (why != ACCEL_OK)
		accel_end_stop(e, why);
	v->written = written;
	return why == ACCEL_OK;
}

static __always_inline void accel_message_count(struct accel_end *e, const struct accel_end *peer,
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
		accel_counts_flush(e);
}

/* Handles a message. Returns KERB_REDIRECT, or KERB_NEXT for TCP. */
static __always_inline int accel_message_handle(struct sk_msg_md *msg)
{
	const struct accel_config *cfg = accel_config_lookup();
	__u64 own = accel_cookie(accel_msg_sk(msg)), cookie;
	struct accel_end *e = accel_end_lookup(own), *peer;
	struct accel_view v = { .size = msg->size };
	enum accel_reason why;

	if (!cfg || !e)
		return KERB_NEXT;
	cookie = e->peer;
	peer = cookie ? accel_end_lookup(cookie) : 0;
	/* its element of `ends` may have been reused for another connection */
	if (peer && peer->peer != own)
		peer = 0;
	v.flags = accel_send_flags();
	/* in a sockmap, its completion is never reported */
	if (v.flags & ACCEL_MSG_ZEROCOPY)
		accel_program_exclude(bpf_get_current_task(), ACCEL_OPTION);
	e->heard = accel_now_coarse();
	why = e->stop ?: peer ? peer->stop : 0;
	if (why) {
		accel_pair_stop(e, peer, why);
		e->quiet |= accel_end_is_drained(e, 1);
		return KERB_NEXT;
	}
	why = accel_turn_update(e, cfg, peer ? peer->messages : 0, v.size);
	if (why != ACCEL_OK)
		accel_pair_stop(e, peer, why);
	if (!peer || accel_is_off(cfg))
		return KERB_NEXT;
	accel_process_check(e);
	if (e->stop || !accel_message_check(e, peer, cfg, &v) || !accel_should_redirect(e, cfg, &v))
		return KERB_NEXT;
	/* before the last check of stop: see accel_end_is_drained */
	__sync_fetch_and_add(&e->redirects, 1);
	if (e->stop || peer->stop ||
	    bpf_msg_redirect_hash(msg, &sockets, &cookie, BPF_F_INGRESS) != SK_PASS)
		return KERB_NEXT;
	if (e->redirects == ACCEL_READMIT_MESSAGES)
		accel_program_readmit();
	accel_message_count(e, peer, &v);
	return KERB_REDIRECT;
}

/* Returns why the connection of a message uses TCP permanently, for traces. */
static __always_inline enum accel_reason accel_plain_reason(struct sk_msg_md *msg)
{
	const struct accel_end *e = accel_end_lookup(accel_cookie(accel_msg_sk(msg)));

	return e ? e->stop : ACCEL_OK;
}

#endif
