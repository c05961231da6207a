/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* TCP callbacks of enrolled sockets after they are established. */
#ifndef ACCEL_CLOSE_H
#define ACCEL_CLOSE_H

#include "pair.h"

#define ACCEL_MAX_TURNS 64 /* turns of a connection that count for the average */

static __always_inline struct accel_destination *accel_destination_get(struct bpf_sock_ops *ops)
{
	struct accel_destination none = {}, *d;
	struct accel_address a;

	accel_destination_key(ops, &a);
	d = bpf_map_lookup_elem(&destinations, &a);
	if (d)
		return d;
	bpf_map_update_elem(&destinations, &a, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&destinations, &a);
}

/* Counts an unanswered offer: offers are the main cost of short connections, so they are not made
 * to destinations that do not answer them. */
static __always_inline void accel_destination_count_unanswered(struct bpf_sock_ops *ops)
{
	struct accel_destination *d = accel_destination_get(ops);

	if (d)
		__sync_fetch_and_add(&d->offers, 1);
}

/* No local socket has answered the offer, although the other end has acknowledged data, and so is
 * established. */
static __always_inline void accel_offer_expire(struct bpf_sock_ops *ops, struct accel_end *e)
{
	accel_destination_count_unanswered(ops);
	accel_end_stop(e, ACCEL_REMOTE);
}

/* Handles an ACK (BPF_SOCK_OPS_RTT_CB). There are none for redirected messages. */
static __always_inline void accel_ack_handle(struct bpf_sock_ops *ops)
{
	__u64 cookie = bpf_get_socket_cookie(ops);
	struct accel_end *e = accel_end_lookup(cookie);

	if (e && !e->peer && !e->stop && e->is_client && ops->snd_una != e->pair.client)
		accel_offer_expire(ops, e);
	if (!e || accel_pair_remove(e, cookie))
		bpf_sock_ops_cb_flags_set(ops,
					  ops->bpf_sock_ops_cb_flags & ~BPF_SOCK_OPS_RTT_CB_FLAG);
}

/* Returns whether a connection is a sample for the turns of its destination: not if it was stopped
 * for another reason. */
static __always_inline int accel_end_is_sample(const struct accel_end *e)
{
	__u32 why = e->stop;

	return !why || why == ACCEL_CLOSED || why == ACCEL_STREAM;
}

/* Updates the moving average of the destination, with weight 1/4. It starts at the maximum, so that
 * about ten short connections make a destination short, not the first one of a pool of long
 * ones. */
static __always_inline void accel_destination_update_turns(struct bpf_sock_ops *ops,
							   const struct accel_end *e)
{
	__u32 now = 16 * (e->turns < ACCEL_MAX_TURNS ? e->turns : ACCEL_MAX_TURNS);
	struct accel_destination *d = accel_destination_get(ops);
	__u32 average;

	if (!d)
		return;
	average = d->turns ? d->turns : 16 * ACCEL_MAX_TURNS;
	d->offers = 0;
	d->turns = average - average / 4 + now / 4;
}

static __always_inline void accel_end_close(struct bpf_sock_ops *ops, struct accel_end *e,
					    __u64 cookie)
{
	struct accel_end *peer = e->peer ? accel_end_lookup(e->peer) : 0;

	if (e->peer && e->is_client && accel_end_is_sample(e))
		accel_destination_update_turns(ops, e);
	else if (!e->peer && e->is_client &&
		 e->stop == ACCEL_EXECUTABLE) /* of the server: it did not answer */
		accel_destination_count_unanswered(ops);
	if (peer) {
		if (!e->redirects)
			peer->plain = 1;
		accel_end_stop(peer, ACCEL_CLOSED);
	}
	if (accel_end_is_removable(e, peer)) /* otherwise it stays in the map until
					      its descriptor is closed */
		accel_sock_remove(e, cookie);
	if (e->uncounted)
		accel_counts_flush(e);
	if (e->is_client && (e->pair.client || e->pair.server))
		bpf_map_delete_elem(&offers, &e->pair);
	if (e->is_client)
		accel_share_release(e->client);
	bpf_map_delete_elem(&ends, &cookie);
}

static __always_inline void accel_state_handle(struct bpf_sock_ops *ops, __u32 to)
{
	__u64 cookie = bpf_get_socket_cookie(ops);
	struct accel_end *e = accel_end_lookup(cookie);

	if (!e) {
		if (to == BPF_TCP_FIN_WAIT1 || to == BPF_TCP_LAST_ACK)
			accel_listener_learn(ops);
		return;
	}
	if (to == BPF_TCP_CLOSE) {
		accel_end_close(ops, e, cookie);
	} else if (to != BPF_TCP_SYN_SENT && to != BPF_TCP_ESTABLISHED) {
		accel_end_stop(e, ACCEL_CLOSED);
		accel_pair_remove(e, cookie);
	}
}

#endif
