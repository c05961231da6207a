/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Limits of what the clients behind one interface take of the shared tables. */
#ifndef PX_SHARE_H
#define PX_SHARE_H

#include "flow.h"

/* an interface may have this many times the free entries of sessions: one alone gets 80% */
#define PX_SHARE_OF_FREE    4
/* the same for affinities, 50%: they leave room for sessions of the same interface */
#define PX_AFFINITY_OF_FREE 1

KERB_CONFIG(__u64, max_sessions, 65536);
KERB_CONFIG(__u32, pending_budget, 16384); /* sessions per window: see struct px_share */

/* Values that a change of the config changes without a new program, in addition to the ranges. No
 * packet needs both: packets to unknown addresses create no sessions. */
struct px_values {
	__u64 service_sessions; /* of one interface; 0: PX_SHARE_OF_FREE alone decides */
};

KERB_TUNABLES(struct px_values);

static __always_inline __u32 px_local_of(__u32 ifindex)
{
	__u32 *local = bpf_map_lookup_elem(&interfaces, &ifindex);

	return local ? *local : 0;
}

/* The share of an interface, with the counters of the current window. */
static __always_inline struct px_share *px_share_of(__u32 ifindex, __u64 now)
{
	__u32 local = px_local_of(ifindex), window = now >> 30;
	struct px_share *s = bpf_map_lookup_elem(&shares, &local);

	if (s && s->window != window) {
		s->window = window;
		s->opened = s->closed = s->asked = 0;
	}
	return s;
}

/* Returns whether sessions has room for another one of the interface, which may have of_free times
 * the free entries: fewer as the table fills, so that others get some. */
static __always_inline int px_share_allows(const struct px_share *s, __u64 of_free)
{
	__u32 zero = 0;
	struct px_share *all = bpf_map_lookup_elem(&shares, &zero);
	const struct px_values *v = kerb_tunables(kerb_tunables_half());

	if (!s || !all || !v || all->sessions >= max_sessions)
		return 0;
	if (v->service_sessions)
		return PX_SHARE_OF_FREE * s->sessions < of_free * v->service_sessions;
	return s->sessions < of_free * (max_sessions - all->sessions);
}

/* Counts a session that enters (1) or leaves (-1) the table sessions. */
static __always_inline void px_share_count(__u32 ifindex, __s64 n)
{
	__u32 local = px_local_of(ifindex), zero = 0;
	struct px_share *s = bpf_map_lookup_elem(&shares, &local),
			*all = bpf_map_lookup_elem(&shares, &zero);

	if (s && local)
		__sync_fetch_and_add(&s->sessions, n);
	if (all)
		__sync_fetch_and_add(&all->sessions, n);
}

#endif
