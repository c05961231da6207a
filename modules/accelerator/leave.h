/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Out of the map, since being in it costs a stream 4 to 30% of its throughput. What must not be: that a redirected message is in
 * the queue of a socket that goes, or on its way there. A sender that has decided to redirect gives up its socket's lock before the
 * message arrives; but all the time of a send or recv call it holds a reference to its own psock. */
#ifndef ACCEL_LEAVE_H
#define ACCEL_LEAVE_H

#include "call.h"
#include "maps.h"

#define ACCEL_SETTLED 5 /* jiffies; 5 to 50 ms */

static __always_inline void accel_flush(struct accel_end *e)
{
	struct accel_counts *c = accel_counts(e->client, e->server);
	__u64 messages = e->redirects, bytes = e->redirected;

	if (!c)
		return;
	__sync_fetch_and_add(&c->messages, messages - e->counted_messages);
	__sync_fetch_and_add(&c->bytes, bytes - e->counted_bytes);
	e->counted_messages = messages;
	e->counted_bytes = bytes;
}

/* No message of this end is on its way into the other's queue, nor will there be one: stop was set before we look at redirects, and
 * the sender looks at stop after it has counted itself there. References are the map's, of calls (that we are in: 0 or 1), and of
 * threads that wait in recv; these are believed only a while after the last redirect, since they come and go while we count. */
static __always_inline int accel_quiet(const struct accel_end *e, int calls)
{
	int refs;

	if (!e->redirects || e->quiet)
		return 1;
	refs = accel_references(e->sk);
	if (refs <= 1 + calls)
		return 1;
	return bpf_jiffies64() - e->last > ACCEL_SETTLED && refs <= 1 + calls + accel_waiting(e->sk).threads;
}

/* Both ends stop for the same reason. */
static __always_inline void accel_stop_both(struct accel_end *e, struct accel_end *peer, enum accel_reason why)
{
	accel_stop(e, why);
	if (peer)
		accel_stop(peer, why);
}

static __always_inline int accel_may_leave(const struct accel_end *e, const struct accel_end *peer, int calls)
{
	if (!e->stop || !accel_quiet(e, calls) || !accel_queue_empty(e->sk))
		return 0;
	return !peer || (peer->stop && accel_quiet(peer, 0) && accel_queue_empty(peer->sk));
}

/* Takes both ends of a connection out of the map if they have stopped and nothing is under way. Only sock_ops programs may delete
 * from it, so that this happens when TCP has something to tell. */
static __always_inline int accel_leave(struct accel_end *e, __u64 cookie)
{
	__u64 other = e->peer;
	struct accel_end *peer = other ? accel_end(other) : 0;

	if (e->left)
		return 1;
	if (!e->stop && peer && peer->stop)
		accel_stop(e, peer->stop);
	if (!e->stop)
		return 0;
	if (peer)
		accel_stop(peer, e->stop);
	if (!accel_may_leave(e, peer, 0))
		return 0;
	e->left = 1;
	bpf_map_delete_elem(&sockets, &cookie);
	if (peer) {
		peer->left = 1;
		bpf_map_delete_elem(&sockets, &other);
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

	if (e->left)
		return 0;
	accel_stop_both(e, peer, ACCEL_SWITCHED);
	if (accel_cookie(e->sk) == key && !accel_may_leave(e, peer, 0)) {
		d->waiting++;
		return 0;
	}
	if (!bpf_map_update_elem(&drained, &key, &one, BPF_ANY))
		e->left = 1;
	else
		d->waiting++;
	return 0;
}

#endif
