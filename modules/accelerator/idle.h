/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Idle pairs are removed from the map, as the kernel has a sk_psock (1 KiB) for each socket in it:
 * the agent runs `age` and removes what it finds. They continue on TCP. */
#ifndef ACCEL_IDLE_H
#define ACCEL_IDLE_H

#include "remove.h"

struct accel_age {
	__u32 now, idle;
	__u32 found; /* ends to remove */
	__u32 left;  /* ends that a later run may find */
};

static __always_inline int accel_end_is_idle(const struct accel_end *e, const struct accel_age *a)
{
	return (__s32)(a->now - e->heard) >= (__s32)a->idle;
}

/* Finds idle ends, and stopped ones for which no TCP callback has run since. */
static long accel_end_age(void *map, __u64 *key, struct accel_end *e, struct accel_age *a)
{
	__u64 cookie = *key, other = e->peer;
	struct accel_end *peer;
	__u8 one = 1;

	if (!other || e->out)
		return 0;
	peer = accel_end_lookup(other);
	if (!e->stop && e->is_client && accel_end_is_idle(e, a) && peer && peer->peer == cookie &&
	    accel_end_is_idle(peer, a))
		accel_end_stop(e, ACCEL_IDLE);
	if (e->stop && peer)
		accel_end_stop(peer, e->stop);
	if (!e->stop || !accel_pair_is_removable(e, peer, 0) || accel_cookie(e->sk) != cookie ||
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
