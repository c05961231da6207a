/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The two entries of a session, one for each direction: key and value of the other one, and removal
 * of both. */
#ifndef PX_PAIR_H
#define PX_PAIR_H

#include "choose.h"
#include "hot.h"
#include "share.h"

static __always_inline void px_count(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&counts, &what);

	if (n)
		*n += 1;
}

static __always_inline void px_count_sessions(__u32 instance, __s64 n)
{
	struct px_instance_stats *stats = bpf_map_lookup_elem(&instance_stats, &instance);

	if (!stats)
		return;
	__sync_fetch_and_add(&stats->sessions, n);
	if (n > 0)
		__sync_fetch_and_add(&stats->opened, 1);
}

/* The effect of names on it. Between nodes virtual addresses are used only as sources. */
static __always_inline int px_pair_names(const struct px_flow *f, const struct px_session *s,
					 struct px_flow *pair)
{
	int reverse = s->flags & PX_REVERSE;
	struct px_name *name;

	if (!(s->flags & PX_FAR)) {
		name = px_client_name(f, s);
		if (name)
			*(reverse ? &pair->src : &pair->dst) = name->other;
	} else if (!reverse) {
		name = px_instance_name(s->instance, px_is4(&s->addr));
		if (name)
			pair->src = name->other;
	}
	return 0;
}

/* Key of the other entry: the rewritten packet, reversed. */
static __noinline int px_pair_key(const struct px_flow *f, const struct px_session *s,
				  struct px_flow *pair)
{
	int hairpin = s->flags & PX_HAIRPIN, reverse = s->flags & PX_REVERSE;

	pair->src = hairpin || !reverse ? s->addr : f->dst;
	pair->dst = hairpin ? f->dst : reverse ? s->addr : f->src;
	pair->sport = s->dport;
	pair->dport = s->sport;
	pair->ifindex = s->other;
	pair->proto = f->proto;
	pair->hook = !reverse && s->flags & PX_FAR ? PX_INGRESS : PX_EGRESS;
	pair->zero = 0;
	return px_is_named(s) ? px_pair_names(f, s, pair) : 0;
}

/* Returns whether the other entry exists: the LRU may have evicted it. The lookup marks it as used
 * in any case. */
static __noinline int px_has_pair(const struct px_flow *f, const struct px_session *s)
{
	struct px_flow pair;

	px_pair_key(f, s, &pair);
	return !!px_session_lookup(&pair);
}

/* The other entry itself. local: see struct px_session. */
static __noinline int px_pair_entry(const struct px_flow *f, const struct px_session *s,
				    struct px_session *pair, __u32 local)
{
	int take_source = s->flags & (PX_HAIRPIN | PX_REVERSE);

	*pair = *s;
	pair->opened = 0;
	pair->addr = take_source ? f->src : f->dst;
	pair->sport = f->dport;
	pair->dport = f->sport;
	pair->other = f->ifindex;
	pair->local = local;
	pair->flags = s->flags ^ PX_REVERSE;
	return 0;
}

/* The interface on which an instance is seen on this node, or 0. */
static __always_inline __u32 px_interface_of(__u32 local)
{
	struct px_local *l = bpf_map_lookup_elem(&locals, &local);

	return l ? l->ifindex : 0;
}

/* The receiver of rewritten packets of the other entry: the client if its replies arrive on egress
 * of the instance. */
static __always_inline __u32 px_pair_local(const struct px_flow *f, const struct px_session *s)
{
	if (!s->instance)
		return 0;
	if (s->flags & PX_REVERSE)
		return px_local_of(s->flags & PX_FAR ? 0 : f->ifindex);
	return s->flags & PX_FAR ? 0 : px_local_of(f->ifindex);
}

/* Removes an entry from either table; returns whether it existed. A forward entry is seen on its
 * client's interface. */
static __always_inline int px_remove(const struct px_flow *f, int forward)
{
	if (bpf_map_delete_elem(&sessions, f))
		return !bpf_map_delete_elem(&pending, f);
	if (forward)
		px_share_count(f->ifindex, -1);
	return 1;
}

/* Removes both entries of a session; s is the one with the key f. The CPU that removes the forward
 * one updates the counters. */
static __noinline int px_session_delete(struct px_work *w, const struct px_flow *f,
					const struct px_session *s)
{
	int reverse = s->flags & PX_REVERSE, counted = !(s->state & PX_CLOSED), pair, own;
	__u32 instance = s->instance;

	px_pair_key(f, s, &w->pair);
	pair = px_remove(&w->pair, reverse);
	own = px_remove(f, !reverse);
	if (counted && (reverse ? pair : own))
		px_count_sessions(instance, -1);
	px_epoch_advance(&w->pair);
	px_epoch_advance(f);
	return 0;
}

#endif
