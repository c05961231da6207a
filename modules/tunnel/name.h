/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Mode oakestra: between nodes an instance sends from its virtual address, which the proxy sets;
 * the map `names` has its node. */
#ifndef TUN_NAME_H
#define TUN_NAME_H

#include "drops.h"
#include "header.h"

/* The instance on another node that sent a packet, or NULL. */
static __always_inline struct tun_name *tun_sender_lookup(const struct in6_addr *src)
{
	return mode == TUN_MODE_OAKESTRA ? bpf_map_lookup_elem(&names, src) : 0;
}

/* Returns whether a node is over the limit of packets that are passed to the control plane, from
 * this source or from all. */
static __always_inline int tun_hold_is_limited(const struct tun_sender_key *key, __u32 window,
					       __u32 most)
{
	struct tun_held *held = bpf_map_lookup_elem(&senders, key);

	return held && held->window == window && held->packets >= most;
}

/* Counts a packet. Returns whether it exceeds the limit. */
static __always_inline int tun_hold_count(const struct tun_sender_key *key, __u32 window,
					  __u32 most)
{
	struct tun_held *held = bpf_map_lookup_elem(&senders, key);
	struct tun_held fresh = {.window = window, .packets = 1};

	if (held && held->window == window) {
		__sync_fetch_and_add(&held->packets, 1); /* a result needs Linux 5.12 */
		return held->packets > most;
	}
	bpf_map_update_elem(&senders, key, &fresh, BPF_ANY);
	return 0;
}

/* The verifier requires a constant size in the ring buffer: the smaller one of two that holds the
 * frame. */
#define TUN_SEND(size)                                                   \
	do {                                                             \
		struct tun_stranger *e;                                  \
		KERB_EVENT_RESERVE_FRAME(e, &strangers, pkt, len, size); \
		e->ifindex = pkt->ifindex;                               \
		e->len = len;                                            \
		e->tos = tos;                                            \
		e->partial = kerb_is_partial(pkt);                       \
		e->key = *key;                                           \
		e->to = *to;                                             \
		e->port = port;                                          \
		kerb_event_submit(e, 0);                                 \
		return 0;                                                \
	} while (0)

/* Without the frame. */
static __always_inline int tun_send_source(const struct tun_sender_key *key)
{
	struct tun_stranger *e = kerb_event_reserve(&strangers, sizeof(*e));

	if (!e)
		return -1;
	__builtin_memset(e, 0, sizeof(*e));
	e->key = *key;
	kerb_event_submit(e, 0);
	return -1;
}

/* Returns 0 if the control plane has received the inner packet, whose outer headers are removed.
 * One source does not use up its node's limit. */
static __noinline int tun_hold(const struct kerb_pkt *pkt, struct tun_sender_key *key, __u32 tos,
			       const struct in6_addr *to, __u32 port)
{
	__u32 window = bpf_ktime_get_ns() >> TUN_WINDOW_BITS;
	struct tun_sender_key node = {.from = key->from};
	__u64 len = pkt->len;

	if (tun_hold_is_limited(&node, window, TUN_HELD_NODE) ||
	    tun_hold_count(key, window, TUN_HELD_SOURCE) ||
	    tun_hold_count(&node, window, TUN_HELD_NODE))
		return -1;
	if (kerb_ctx_field(pkt->ctx, gso_size))
		return tun_send_source(key);
	kerb_opaque(len);
	if (len <= 256)
		TUN_SEND(256);
	if (len <= TUN_HELD_MAX)
		TUN_SEND(TUN_HELD_MAX);
	return tun_send_source(key);
}

/* Makes the control plane look up the sender of a packet, and hold the packet in the meantime. The
 * stack has no room for another key: from replaces the destination. */
static __always_inline int tun_ask(struct kerb_pkt *pkt, struct tun_flow *f,
				   const struct in6_addr *from, __u32 tos,
				   const struct in6_addr *to, __be16 port)
{
	int rc;

	if (mode != TUN_MODE_OAKESTRA)
		return kerb_drop(pkt, TUN_DROP_UNKNOWN_SOURCE);
	f->dst = *from;
	rc = tun_hold(pkt, (void *)&f->src, tos, to, port);
	return kerb_drop(pkt, rc ? TUN_DROP_UNKNOWN_SOURCE : TUN_DROP_HELD);
}

#endif
