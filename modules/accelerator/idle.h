/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Pairs that are silent for long go out of the map, since the kernel keeps a sk_psock (1 KiB) for
 * each socket in it, and come back when they talk again. Programs cannot put a socket in at that
 * moment, nor is there one when nothing happens: the agent runs `age`, takes out what it finds, and
 * puts in what asks for it.
 *
 * A message that is sent while its socket goes must neither be lost nor overtake. Who sends by the
 * sk_msg program holds a reference to its psock all the time, and examines stop after it has taken
 * it; we set stop and examine references then. So with no more than the map's no call is in
 * progress, and later ones use plain TCP. One reference too many, such as of a thread that waits in
 * recv, and the pair stays. */
#ifndef ACCEL_IDLE_H
#define ACCEL_IDLE_H

#include "leave.h"

#define ACCEL_ALONE 10000 /* messages that an end waits for the other to come back */

struct accel_age {
	__u32 now, idle;
	__u32 found;  /* pairs */
	__u32 tended; /* ends that may be found another time */
};

/* Returns what was there before. A walk that begins after a pair has been notified of finds it: it
 * is in ends by then. */
static __always_inline int accel_set_unpaired(int is)
{
	__u32 zero = 0, *was = bpf_map_lookup_elem(&unpaired, &zero);

	return was && __sync_lock_test_and_set(was, is);
}

static __always_inline int accel_is_silent(const struct accel_end *e, const struct accel_age *a)
{
	return (__s32)(a->now - e->heard) >= (__s32)a->idle;
}

/* It can be found again when it wants to come back. */
static __always_inline int accel_can_resume(const struct accel_end *e)
{
	return e->process && e->fd != ACCEL_NO_FD;
}

static __always_inline int accel_pause(struct accel_end *e)
{
	__u32 was = __sync_val_compare_and_swap(&e->stop, 0, ACCEL_IDLE);

	return !was || was == ACCEL_IDLE;
}

static __always_inline int accel_resume(struct accel_end *e)
{
	return __sync_val_compare_and_swap(&e->stop, ACCEL_IDLE, 0) == ACCEL_IDLE;
}

/* Both have stopped. In the order of accel_may_remove. */
static __always_inline int accel_is_unused(const struct accel_end *e, __u64 cookie,
					   const struct accel_end *peer, __u64 other)
{
	if (accel_references(e->sk) > 1 || accel_references(peer->sk) > 1)
		return 0;
	accel_barrier();
	return accel_queue_empty(e->sk) && accel_queue_empty(peer->sk) &&
	       accel_cookie(e->sk) == cookie && accel_cookie(peer->sk) == other;
}

/* Marks both ends to be taken out, before it looks whether that may be: an end that is about to
 * come back looks for the mark. */
static __always_inline int accel_mark_idle(struct accel_end *e, __u64 cookie,
					   struct accel_end *peer, __u64 other)
{
	int in = e->out == ACCEL_IN && peer->out == ACCEL_IN;
	__u8 one = 1;

	if (accel_pause(e) && accel_pause(peer) &&
	    !bpf_map_update_elem(&drained, &cookie, &one, BPF_ANY) &&
	    !bpf_map_update_elem(&drained, &other, &one, BPF_ANY) &&
	    accel_is_unused(e, cookie, peer, other)) {
		e->out = ACCEL_ASIDE;
		peer->out = ACCEL_ASIDE;
		if (in)
			accel_count(e->client, e->server, rested, 1);
		return 1;
	}
	bpf_map_delete_elem(&drained, &cookie);
	bpf_map_delete_elem(&drained, &other);
	if (in) {
		accel_resume(e);
		accel_resume(peer);
	}
	return 0;
}

static __always_inline int accel_request_resume(const struct accel_end *e, __u64 cookie)
{
	struct accel_return r = {.cookie = cookie, .pid = e->process, .fd = e->fd};

	return !bpf_ringbuf_output(&returning, &r, sizeof(r), 0);
}

/* as accel_now: the next question, if there is no answer; twice as long each time, but */
#define ACCEL_AGAIN 1000
#define ACCEL_TIRED 12	 /* times at most */

/* An end that is aside has sent something. The pair wants to come back when both ends have within
 * the time of idleness, the client twice: who talks less than that would go again at once. */
static __always_inline void accel_idle_message(struct accel_end *e, __u64 cookie, __u32 now)
{
	__u32 before = e->heard;
	const struct accel_config *cfg = accel_config();
	struct accel_end *peer;

	e->heard = now;
	/* what is rare has cold caches: no more than necessary */
	if (!cfg || (cfg->idle && now - before >= cfg->idle)) {
		e->rare += e->rare < ACCEL_DEAF;
		return;
	}
	peer = e->is_client ? accel_end(e->peer) : 0;
	if (!peer || accel_is_off(cfg) || (cfg->idle && now - peer->heard >= cfg->idle) ||
	    (e->asked && now - e->last < (__u32)ACCEL_AGAIN << e->asked))
		return;
	if (accel_stopped(peer) || accel_has_unsupported_options(e->sk) ||
	    accel_has_unsupported_options(peer->sk)) {
		accel_stop_both(e, peer, accel_stopped(peer) ?: ACCEL_OPTION);
		return;
	}
	if (bpf_map_lookup_elem(&drained, &cookie) || !accel_request_resume(e, cookie) ||
	    !accel_request_resume(peer, e->peer))
		return;
	e->last = now;
	if (e->asked < ACCEL_TIRED)
		e->asked++;
}

/* Ends of which TCP does not tell us: see accel_acked. */
static __always_inline void accel_listen(struct accel_end *e, __u64 cookie, __u32 now)
{
	__u64 sk = e->sk;
	__u32 written = accel_get(accel_cast(struct tcp_sock, sk), write_seq);

	if (e->out != ACCEL_ASIDE || e->rare < ACCEL_DEAF || written == e->written ||
	    accel_cookie(sk) != cookie)
		return;
	e->written = written;
	accel_idle_message(e, cookie, now);
}

/* Ends that have stopped permanently, without a callback for acknowledgements since. */
static __always_inline void accel_age_stopped(struct accel_end *e, __u64 cookie,
					      struct accel_end *peer)
{
	__u8 one = 1;

	if (peer)
		accel_stop(peer, e->stop);
	if (accel_may_remove(e, peer, 0) && accel_cookie(e->sk) == cookie &&
	    !bpf_map_update_elem(&drained, &cookie, &one, BPF_ANY)) {
		e->out = ACCEL_GONE;
		if (e->is_client)
			accel_count(e->client, e->server, left, 1);
	}
}

/* Those aside are examined, too: some came back into the map and said nothing more. */
static long accel_age_one(void *map, __u64 *key, struct accel_end *e, struct accel_age *a)
{
	__u64 cookie = *key, other = e->peer;
	struct accel_end *peer;

	if (!other || e->out == ACCEL_GONE)
		return 0;
	a->tended++;
	accel_listen(e, cookie, a->now);
	if (!(accel_stopped(e) || (e->is_client && accel_is_silent(e, a))))
		return 0;
	peer = accel_end(other);
	if (accel_stopped(e)) {
		accel_age_stopped(e, cookie, peer);
		return 0;
	}
	if (!peer || peer->peer != cookie || !accel_is_silent(peer, a) || peer->out == ACCEL_GONE ||
	    accel_stopped(peer) || !accel_can_resume(e) || !accel_can_resume(peer) ||
	    !(accel_psock(e->sk) || accel_psock(peer->sk)))
		return 0;
	a->found += accel_mark_idle(e, cookie, peer, other);
	return 0;
}

/* An end of an idle pair sends by the sk_msg program, so that it is in the map again, unless it has
 * not gone yet. When both have done so, which also shows that they are in no recv call of before,
 * they take turns as at the beginning. */
static __always_inline void accel_resumed(struct accel_end *e, __u64 cookie, struct accel_end *peer)
{
	int own, others;

	if (!peer || bpf_map_lookup_elem(&drained, &cookie))
		return;
	e->turns = 0;
	e->run_messages = 0;
	e->run_bytes = 0;
	e->seen = peer->messages;
	e->last = 0;
	e->asked = 0;
	if (e->rare < ACCEL_DEAF)
		e->rare = 0;
	__sync_val_compare_and_swap(&e->out, ACCEL_ASIDE, ACCEL_IN);
	if (peer->out != ACCEL_IN)
		return;
	own = accel_resume(e);
	others = accel_resume(peer);
	if (e->is_client ? own : others)
		accel_count(e->client, e->server, returned, 1);
}

#endif
