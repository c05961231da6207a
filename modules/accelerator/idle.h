/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Pairs that are silent for long go out of the map, since the kernel keeps a sk_psock (1 KiB) for
 * each socket in it. Nothing else happens at that moment: the agent runs `age`, and takes out what
 * it finds. They continue by TCP. */
#ifndef ACCEL_IDLE_H
#define ACCEL_IDLE_H

#include "leave.h"

struct accel_age {
	__u32 now, idle;
	__u32 found; /* ends to take out */
	__u32 left;  /* ends that may be found another time */
};

static __always_inline int accel_is_silent(const struct accel_end *e, const struct accel_age *a)
{
	return (__s32)(a->now - e->heard) >= (__s32)a->idle;
}

/* Ends that are silent, and those that have stopped and of which TCP has reported nothing since. */
static long accel_age_one(void *map, __u64 *key, struct accel_end *e, struct accel_age *a)
{
	__u64 cookie = *key, other = e->peer;
	struct accel_end *peer;
	__u8 one = 1;

	if (!other || e->out)
		return 0;
	peer = accel_end(other);
	if (!e->stop && e->is_client && accel_is_silent(e, a) && peer && peer->peer == cookie &&
	    accel_is_silent(peer, a))
		accel_stop(e, ACCEL_IDLE);
	if (e->stop && peer)
		accel_stop(peer, e->stop);
	if (!e->stop || !accel_may_remove(e, peer, 0) || accel_cookie(e->sk) != cookie ||
	    bpf_map_update_elem(&drained, &cookie, &one, BPF_ANY)) {
		a->left++;
		return 0;
	}
	e->out = 1;
	a->found++;
	if (e->is_client)
		accel_count(e->client, e->server, left, 1);
	return 0;
}

#endif
