/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Session affinity: a client's new session gets the instance of its last one. */
#ifndef PX_AFFINITY_H
#define PX_AFFINITY_H

#include "choose.h"
#include "share.h"

/* Converts the key of a client's packets to the key of its affinity in sessions, see
 * PX_AFFINITY. */
static __always_inline void px_affinity_key(struct px_flow *key, const struct px_vip *v)
{
	key->sport = 0;
	key->hook = PX_AFFINITY;
	if (!(v->flags & PX_VIP_PORTS)) {
		key->dport = 0;
		key->proto = 0;
	}
}

/* Returns whether the packet is in midstream of a connection whose session is unknown. */
static __always_inline int px_is_midstream(const struct px_work *w)
{
	return w->flow.proto == IPPROTO_TCP && !(w->tcp & KERB_TCP_SYN);
}

/* Sets w->instance to that of the client's last session, if this began within the time-out and the
 * instance takes new sessions. Returns whether it has. */
static __noinline int px_affinity_recall(struct px_work *w, const struct px_vip *v)
{
	struct px_session *s = bpf_map_lookup_elem(&sessions, &w->pair);
	__s64 age = s ? w->now - s->seen : 0; /* negative: another CPU's packet is later */
	__u32 index;

	if (!s || s->other != PX_AFFINITY_OWNER(v) || age >= (__s64)PX_AFFINITY_NS(v))
		return 0;
	index = px_instance_accepts(s->instance, PX_DRAINING | PX_GONE | PX_EJECTED, w->v4);
	if (!kerb_reread(index))
		return 0;
	if (v->flags & PX_VIP_SPLIT && px_port_is_excluded(w, index))
		return 0;
	w->instance = index;
	/* In place, which is harmless even if the control plane has just deleted the entry, and its
	 * memory belongs to another new session. */
	if (age > 0 && !px_is_midstream(w))
		s->seen = w->now;
	return 1;
}

/* Remembers w->instance under the key w->pair, or sets w->instance to the one that another CPU has
 * remembered in the meantime. Beyond the share of the client's interface it is not remembered: then
 * the policy chooses each time. */
static __noinline int px_affinity_remember(struct px_work *w, const struct px_vip *v)
{
	struct px_share *share = px_share_of(w->flow.ifindex, w->now);

	if (!share || share->opened >= pending_budget)
		return 0; /* no session begins */
	__builtin_memset(&w->mirror, 0, sizeof(w->mirror));
	w->mirror.instance = w->instance;
	w->mirror.seen = w->now;
	w->mirror.other = PX_AFFINITY_OWNER(v);
	if (!bpf_map_lookup_elem(&sessions, &w->pair)) {
		if (!px_share_allows(share, PX_AFFINITY_OF_FREE))
			return 0;
		if (!bpf_map_update_elem(&sessions, &w->pair, &w->mirror, BPF_NOEXIST)) {
			px_share_count(w->flow.ifindex, 1);
			return 0;
		}
	}
	if (!px_affinity_recall(w, v))
		bpf_map_update_elem(&sessions, &w->pair, &w->mirror, BPF_EXIST);
	return 0;
}

/* The session w->made has its first reply, which proves that its client exists. */
static __noinline int px_affinity_answered(struct px_work *w)
{
	struct px_session *s;
	struct px_vip *v;

	w->other = w->made.flags & PX_REVERSE ? w->pair : w->flow;
	v = bpf_map_lookup_elem(&vips, &w->other.dst);
	if (!v)
		return 0;
	px_affinity_key(&w->other, v);
	s = bpf_map_lookup_elem(&sessions, &w->other);
	if (!s || s->state)
		return 0;
	w->mirror = *s;
	w->mirror.state = PX_ANSWERED;
	bpf_map_update_elem(&sessions, &w->other, &w->mirror, BPF_EXIST);
	return 0;
}

/* Sets w->instance, to 0 if none takes new sessions. */
static __noinline int px_choose(struct px_work *w, const struct px_vip *v)
{
	w->instance = 0;
	if (!v->count)
		return 0;
	if (v->flags & PX_VIP_AFFINITY) {
		w->pair = w->flow;
		px_affinity_key(&w->pair, v);
		if (px_affinity_recall(w, v))
			return 0;
	}
	px_choose_by_policy(w, v);
	if (v->flags & PX_VIP_AFFINITY && kerb_reread(w->instance) && !px_is_midstream(w))
		px_affinity_remember(w, v);
	return 0;
}

#endif
