/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Removal of sockets from the map, in which a stream loses 4 to 30% of its throughput. A socket
 * must not be removed while a redirected message is in its queue or in flight to it. A sender that
 * has decided to redirect releases its socket lock before the message arrives, but holds a
 * reference to its own psock during the whole send or recv call. */
#ifndef ACCEL_REMOVE_H
#define ACCEL_REMOVE_H

#include <kerb/verifier.h>

#include "call.h"
#include "maps.h"

#define ACCEL_SETTLE_TIME 50 /* in units of accel_now */

static __always_inline void accel_counts_flush(struct accel_end *e)
{
	struct accel_counts *c = accel_counts_get(e->client, e->server);
	__u64 messages = e->uncounted, bytes = e->uncounted_bytes;

	if (!c)
		return;
	e->uncounted = 0;
	e->uncounted_bytes = 0;
	__sync_fetch_and_add(&c->messages, messages);
	__sync_fetch_and_add(&c->bytes, bytes);
}

/* Returns whether no message of this end is in flight to the other's queue, nor will be: stop was
 * set before redirects is read here, and the sender checks stop after it has incremented redirects.
 * References to the psock are held by the map, by calls (the number of those that this code runs
 * in: 0 or 1), and by threads that wait in recv; the latter count only some time after the last
 * redirected message, as they change while they are counted. */
static __always_inline int accel_end_is_drained(const struct accel_end *e, int calls)
{
	int refs;

	if (!e->redirects || e->quiet)
		return 1;
	refs = accel_references(e->sk);
	if (refs <= 1 + calls)
		return 1;
	return accel_now() - e->last > ACCEL_SETTLE_TIME &&
	       refs <= 1 + calls + accel_waiters_find(e->sk).threads;
}

/* Stops both ends for the same reason. */
static __always_inline void accel_pair_stop(struct accel_end *e, struct accel_end *peer,
					    enum accel_reason why)
{
	accel_end_stop(e, why);
	if (peer)
		accel_end_stop(peer, why);
}

/* Returns whether both ends can be removed. Senders are checked before the queues, so that what was
 * in flight is in a queue by then. */
static __always_inline int accel_pair_is_removable(const struct accel_end *e,
						   const struct accel_end *peer, int calls)
{
	if (!e->stop || !accel_end_is_drained(e, calls) ||
	    (peer && (!peer->stop || !accel_end_is_drained(peer, 0))))
		return 0;
	accel_barrier();
	return accel_queue_empty(e->sk) && (!peer || accel_queue_empty(peer->sk));
}

/* Returns whether one end can be removed while the other may have unread messages. This must be
 * done: recv waits only once (tcp_msg_wait_data), so that one that starts after shutdown(SHUT_WR)
 * would return EAGAIN when TCP wakes it without data, for the ACK of the FIN. */
static __always_inline int accel_end_is_removable(const struct accel_end *e,
						  const struct accel_end *peer)
{
	if (!accel_end_is_drained(e, 0) || (peer && !accel_end_is_drained(peer, 0)))
		return 0;
	accel_barrier();
	return accel_queue_empty(e->sk);
}

static __always_inline void accel_sock_remove(struct accel_end *e, __u64 cookie)
{
	e->out = 1;
	bpf_map_delete_elem(&sockets, &cookie);
}

/* Removes both ends of a connection from the map if they have stopped and nothing is in flight.
 * Only sock_ops programs may delete from a sockmap, so this runs in callbacks of TCP. Returns 1 if
 * both are removed. */
static __always_inline int accel_pair_remove(struct accel_end *e, __u64 cookie)
{
	__u64 other = e->peer;
	struct accel_end *peer = other ? accel_end_lookup(other) : 0;
	int counted;

	if (e->out && (!peer || peer->out))
		return 1;
	/* otherwise clang keeps `peer != 0` in a register, which the verifier of Linux 6.1 does not
	 * relate to the pointer */
	kerb_opaque(peer);
	if (!e->stop && peer && peer->stop)
		accel_end_stop(e, peer->stop);
	if (!e->stop)
		return 0;
	kerb_opaque(peer);
	if (peer)
		accel_end_stop(peer, e->stop);
	if (!accel_pair_is_removable(e, peer, 0)) {
		if (!e->out && accel_end_is_removable(e, peer))
			accel_sock_remove(e, cookie);
		return 0;
	}
	kerb_opaque(peer);
	counted = e->is_client ? e->out : peer && peer->out; /* already, by `age` */
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

static long accel_end_drain(void *map, __u64 *cookie, struct accel_end *e, struct accel_drain *d)
{
	__u64 key = *cookie, other = e->peer;
	struct accel_end *peer = other ? accel_end_lookup(other) : 0;
	__u8 one = 1;

	if (e->out)
		return 0;
	accel_pair_stop(e, peer, ACCEL_SWITCHED);
	if (accel_cookie(e->sk) == key && !accel_pair_is_removable(e, peer, 0)) {
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
