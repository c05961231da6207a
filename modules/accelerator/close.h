/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What TCP reports enrolled sockets after they are established. */
#ifndef ACCEL_CLOSE_H
#define ACCEL_CLOSE_H

#include "pair.h"

#define ACCEL_TURNS_MOST 64 /* of one connection that count for the average */

static __always_inline struct accel_destination *accel_destination(struct bpf_sock_ops *ops)
{
	struct accel_destination none = {}, *d;
	struct accel_address a;

	accel_destination_of(ops, &a);
	d = bpf_map_lookup_elem(&destinations, &a);
	if (d)
		return d;
	bpf_map_update_elem(&destinations, &a, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&destinations, &a);
}

/* Offering a connection is the main cost of short ones: not done where no peer accepts offers. */
static __always_inline void accel_learn_unanswered(struct bpf_sock_ops *ops)
{
	struct accel_destination *d = accel_destination(ops);

	if (d)
		__sync_fetch_and_add(&d->offers, 1);
}

/* No local socket has answered, although the other end has acknowledged data and so knows the
 * connection. */
static __always_inline void accel_is_unanswered(struct bpf_sock_ops *ops, struct accel_end *e)
{
	accel_learn_unanswered(ops);
	accel_stop(e, ACCEL_REMOTE);
}

/* An acknowledgement. There are none for redirected messages. */
static __always_inline void accel_acked(struct bpf_sock_ops *ops)
{
	__u64 cookie = bpf_get_socket_cookie(ops);
	struct accel_end *e = accel_end(cookie);

	if (e && !e->peer && !e->stop && e->is_client && ops->snd_una != e->pair.client)
		accel_is_unanswered(ops, e);
	if (!e || accel_pair_remove(e, cookie))
		bpf_sock_ops_cb_flags_set(ops,
					  ops->bpf_sock_ops_cb_flags & ~BPF_SOCK_OPS_RTT_CB_FLAG);
}

/* Whether a connection counts as a sample of the lengths of connections there: not if it was
 * stopped for another reason. */
static __always_inline int accel_counts_as_sample(const struct accel_end *e)
{
	__u32 why = e->stop;

	return !why || why == ACCEL_CLOSED || why == ACCEL_STREAM;
}

/* Moves the average of this destination's connections by a quarter of the difference. It begins
 * high: some ten short connections make a destination short, and not one that a pool of long ones
 * begins with. */
static __always_inline void accel_learn_turns(struct bpf_sock_ops *ops, const struct accel_end *e)
{
	__u32 now = 16 * (e->turns < ACCEL_TURNS_MOST ? e->turns : ACCEL_TURNS_MOST);
	struct accel_destination *d = accel_destination(ops);
	__u32 average;

	if (!d)
		return;
	average = d->turns ? d->turns : 16 * ACCEL_TURNS_MOST;
	d->offers = 0;
	d->turns = average - average / 4 + now / 4;
}

static __always_inline void accel_closed(struct bpf_sock_ops *ops, struct accel_end *e,
					 __u64 cookie)
{
	struct accel_end *peer = e->peer ? accel_end(e->peer) : 0;

	if (e->peer && e->is_client && accel_counts_as_sample(e))
		accel_learn_turns(ops, e);
	else if (!e->peer && e->is_client &&
		 e->stop == ACCEL_EXECUTABLE) /* the server's, which answered so */
		accel_learn_unanswered(ops);
	if (peer) {
		if (!e->redirects)
			peer->plain = 1;
		accel_stop(peer, ACCEL_CLOSED);
	}
	if (accel_may_remove_one(e, peer)) /* else it stays until its descriptor is closed, and it
					      can no longer be found */
		accel_sock_remove(e, cookie);
	if (e->uncounted)
		accel_flush(e);
	if (e->is_client && (e->pair.client || e->pair.server))
		bpf_map_delete_elem(&offers, &e->pair);
	if (e->is_client)
		accel_return_share(e->client);
	bpf_map_delete_elem(&ends, &cookie);
}

static __always_inline void accel_changed(struct bpf_sock_ops *ops, __u32 to)
{
	__u64 cookie = bpf_get_socket_cookie(ops);
	struct accel_end *e = accel_end(cookie);

	if (!e) {
		if (to == BPF_TCP_FIN_WAIT1 || to == BPF_TCP_LAST_ACK)
			accel_learn_listener(ops);
		return;
	}
	if (to == BPF_TCP_CLOSE) {
		accel_closed(ops, e, cookie);
	} else if (to != BPF_TCP_SYN_SENT && to != BPF_TCP_ESTABLISHED) {
		accel_stop(e, ACCEL_CLOSED);
		accel_pair_remove(e, cookie);
	}
}

#endif
