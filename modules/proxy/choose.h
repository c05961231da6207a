/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Choosing the instance for a new session. */
#ifndef PX_CHOOSE_H
#define PX_CHOOSE_H

#include "flow.h"

/* slots examined when the chosen one takes no new sessions, until the control plane has rewritten
 * the slots */
#define PX_TRIES 8

static __always_inline struct px_place *px_place(struct px_instance *in)
{
	return &in->place[in->generation & 1];
}

static __always_inline void px_place_addr(const struct px_place *p, int v4, struct px_addr *addr)
{
	if (v4)
		px_set4(addr, p->addr4);
	else
		*addr = p->addr6;
}

static __always_inline int px_reachable(const struct px_place *p, int v4)
{
	return v4 ? p->addr4 != 0
		  : (p->addr6.word[0] | p->addr6.word[1] | p->addr6.word[2] | p->addr6.word[3]) !=
			       0;
}

/* Returns the index of an instance if it has none of the flags and an address of this family,
 * otherwise 0. */
static __always_inline __u32 px_instance_accepts(__u32 index, __u32 flags, int v4)
{
	struct px_instance *in = bpf_map_lookup_elem(&instances, &index);

	if (!in || !index || in->flags & flags)
		return 0;
	return px_reachable(px_place(in), v4) ? index : 0;
}

/* Returns the instance of a slot if it takes new sessions of this family, otherwise 0. */
static __always_inline __u32 px_slot_instance(__u32 slot, int v4)
{
	__u32 *index = bpf_map_lookup_elem(&slots, &slot);

	return index ? px_instance_accepts(*index, PX_DRAINING | PX_GONE, v4) : 0;
}

/* As the kernel's jhash2 over the words of the source, or of the whole flow except the interface.
 * The same on every node: nodes with the same tables choose the same instance. */
static __always_inline __u32 px_hash(const struct px_flow *f, int whole)
{
	const __u32 *w = (const void *)f;
	__u32 a, b, c;

	a = b = c = 0xdeadbeef + ((whole ? 10 : 4) << 2);
	a += w[0];
	b += w[1];
	c += w[2];
	KERB_JHASH_MIX(a, b, c);
	a += w[3];
	if (whole) {
		b += w[4];
		c += w[5];
		KERB_JHASH_MIX(a, b, c);
		a += w[6];
		b += w[7];
		c += w[8]; /* ports */
		KERB_JHASH_MIX(a, b, c);
		a += f->proto;
	}
	KERB_JHASH_FINAL(a, b, c);
	return c;
}

/* Increments the round-robin counter. Two CPUs may get the same value, which is harmless: Linux
 * 5.10 has no fetching atomics. */
static __always_inline __u64 px_round_robin_next(__u32 id)
{
	__u64 *turn = bpf_map_lookup_elem(&turns, &id), now;

	if (!turn)
		return 0;
	now = *(volatile __u64 *)turn;
	__sync_fetch_and_add(turn, 1);
	return now;
}

static __always_inline __u64 px_start(const struct px_vip *v, const struct px_flow *f)
{
	if (v->policy == PX_HASH_SOURCE)
		return px_hash(f, 0);
	return v->policy == PX_HASH_FLOW ? px_hash(f, 1) : px_round_robin_next(v->id);
}

/* The first usable instance of a run, starting at its slot w->start. */
static __always_inline void px_choose_first(struct px_work *w, const struct px_vip *v)
{
	for (__u32 i = 0; i < PX_TRIES; i++) {
		w->instance = px_slot_instance(v->first + (w->start + i) % v->count, w->v4);
		if (kerb_reread(w->instance))
			return;
	}
}

/* The instance with the fewest sessions; the first one among equals. */
static __always_inline void px_choose_least(struct px_work *w, const struct px_vip *v)
{
	for (__u32 i = 0; i < PX_SCAN; i++) {
		__u32 index = px_slot_instance(v->first + (w->start + i) % v->count, w->v4);
		struct px_instance_stats *stats = bpf_map_lookup_elem(&instance_stats, &index);

		if (i >= v->count)
			return;
		if (!index || !stats || (w->instance && stats->sessions >= w->fewest))
			continue;
		w->instance = index;
		w->fewest = stats->sessions;
	}
}

/* The key in vips for one port of the virtual address with an id: one of the multicast addresses of
 * scope 0, which no packet may have (RFC 4291, 2.7). */
static __always_inline void px_port_addr(struct px_addr *key, __u32 id, __be16 port, __u8 proto)
{
	key->word[0] = bpf_htonl(0xff000000);
	key->word[1] = id;
	key->word[2] = port;
	key->word[3] = proto;
}

/* The vip of the packet's port if some instance does not serve it, otherwise that of the
 * address. */
static __always_inline struct px_vip *px_vip_of_port(struct px_work *w, struct px_vip *v)
{
	struct px_vip *of;

	if (!(v->flags & PX_VIP_SPLIT))
		return v;
	px_port_addr(&w->other.src, v->id, w->flow.dport, w->flow.proto);
	of = bpf_map_lookup_elem(&vips, &w->other.src);
	return of ?: v;
}

/* Returns whether an instance gets no new sessions to the packet's port. The key is not on the
 * stack, which the callers use up on Linux 5.10. */
static __always_inline int px_port_is_excluded(struct px_work *w, __u32 instance)
{
	struct px_port *key = (void *)&w->other;

	key->vip = instance;
	key->port = w->flow.dport;
	key->proto = w->flow.proto;
	key->of = PX_NOT_OF_INSTANCE;
	return bpf_map_lookup_elem(&ports, key) != 0;
}

/* Sets w->target to the instance's own target port, if it has one. */
static __noinline int px_target_port(struct px_work *w)
{
	struct px_port key = {.vip = w->instance,
			      .port = w->flow.dport,
			      .proto = w->flow.proto,
			      .of = PX_OF_INSTANCE};
	__be16 *port = bpf_map_lookup_elem(&ports, &key);

	if (port)
		w->target = *port;
	return 0;
}

/* Sets w->instance, which is 0, if an instance takes new sessions. The run is not empty. */
static __always_inline void px_choose_by_policy(struct px_work *w, const struct px_vip *v)
{
	w->start = px_start(v, &w->flow) % v->count;
	if (v->policy == PX_LEAST)
		px_choose_least(w, v);
	else
		px_choose_first(w, v);
}

#endif
