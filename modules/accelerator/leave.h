/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Out of the map, since being in it costs a stream 4 to 30% of its throughput. What must not be:
 * that a redirected message is in the queue of a socket that goes, or on its way there. A sender
 * that has decided to redirect gives up its socket's lock before the message arrives; but all the
 * time of a send or recv call it holds a reference to its own psock. */
#ifndef ACCEL_LEAVE_H
#define ACCEL_LEAVE_H

#include <kerb/verifier.h>

#include "call.h"
#include "maps.h"

#define ACCEL_SETTLED 50 /* as accel_now */

static __always_inline void accel_flush(struct accel_end *e)
{
	struct accel_counts *c = accel_counts(e->client, e->server);
	__u64 messages = e->uncounted, bytes = e->uncounted_bytes;

	if (!c)
		return;
	e->uncounted = 0;
	e->uncounted_bytes = 0;
	__sync_fetch_and_add(&c->messages, messages);
	__sync_fetch_and_add(&c->bytes, bytes);
}

/* No message of this end is on its way into the other's queue, nor will there be one: stop was set
 * before we examine redirects, and the sender examines stop after it has counted itself there.
 * References are the map's, of calls (that we are in: 0 or 1), and of threads that wait in recv;
 * these are believed only a while after the last redirect, since they come and go while we
 * count. */
static __always_inline int accel_has_no_pending_data(const struct accel_end *e, int calls)
{
	int refs;

	if (!e->redirects || e->quiet)
		return 1;
	refs = accel_references(e->sk);
	if (refs <= 1 + calls)
		return 1;
	return accel_now() - e->last > ACCEL_SETTLED &&
	       refs <= 1 + calls + accel_find_waiting(e->sk).threads;
}

/* Both ends stop for the same reason. */
static __always_inline void accel_stop_both(struct accel_end *e, struct accel_end *peer,
					    enum accel_reason why)
{
	accel_stop(e, why);
	if (peer)
		accel_stop(peer, why);
}

/* First all senders stop, then the queues are examined: what was on its way is in one by then. */
static __always_inline int accel_may_remove(const struct accel_end *e, const struct accel_end *peer,
					    int calls)
{
	if (!e->stop || !accel_has_no_pending_data(e, calls) ||
	    (peer && (!peer->stop || !accel_has_no_pending_data(peer, 0))))
		return 0;
	accel_barrier();
	return accel_queue_empty(e->sk) && (!peer || accel_queue_empty(peer->sk));
}

/* The same of one end, whose queue is empty, while the other may have something to read. It has to
 * go by itself where it can: recv waits once (tcp_msg_wait_data), so that one which begins after
 * shutdown(SHUT_WR) ends with EAGAIN when TCP wakes it without data, as it does when the FIN is
 * acknowledged. */
static __always_inline int accel_may_remove_one(const struct accel_end *e,
						const struct accel_end *peer)
{
	if (!accel_has_no_pending_data(e, 0) || (peer && !accel_has_no_pending_data(peer, 0)))
		return 0;
	accel_barrier();
	return accel_queue_empty(e->sk);
}

static __always_inline void accel_sock_remove(struct accel_end *e, __u64 cookie)
{
	e->out = 1;
	bpf_map_delete_elem(&sockets, &cookie);
}

/* Takes both ends of a connection out of the map if they have stopped permanently and nothing is in
 * flight. Only sock_ops programs may delete from it, so that this happens when TCP has something to
 * tell. */
static __always_inline int accel_pair_remove(struct accel_end *e, __u64 cookie)
{
	__u64 other = e->peer;
	struct accel_end *peer = other ? accel_end(other) : 0;
	int counted;

	if (e->out && (!peer || peer->out))
		return 1;
	/* else a register keeps whether there is a peer, which the verifier of 6.1 does not relate
	 * to the pointer */
	kerb_opaque(peer);
	if (!e->stop && peer && peer->stop)
		accel_stop(e, peer->stop);
	if (!e->stop)
		return 0;
	kerb_opaque(peer);
	if (peer)
		accel_stop(peer, e->stop);
	if (!accel_may_remove(e, peer, 0)) {
		if (!e->out && accel_may_remove_one(e, peer))
			accel_sock_remove(e, cookie);
		return 0;
	}
	kerb_opaque(peer);
	counted = e->is_client ? e->out : peer && peer->out; /* by `age` */
	accel_sock_remove(e, cookie);
	if (peer) {
		accel_sock_remove(peer, other);
		if (!counted)
			accel_count(e->client, e->server, left, 1);
	}
	return 1;
}

struct accel_drain {
	__u32 waiting;
};

static long accel_drain_one(void *map, __u64 *cookie, struct accel_end *e, struct accel_drain *d)
{
	__u64 key = *cookie, other = e->peer;
	struct accel_end *peer = other ? accel_end(other) : 0;
	__u8 one = 1;

	if (e->out)
		return 0;
	accel_stop_both(e, peer, ACCEL_SWITCHED);
	if (accel_cookie(e->sk) == key && !accel_may_remove(e, peer, 0)) {
		d->waiting++;
		return 0;
	}
	if (!bpf_map_update_elem(&drained, &key, &one, BPF_ANY))
		e->out = 1;
	else
		d->waiting++;
	return 0;
}

#endif
