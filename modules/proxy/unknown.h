/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets to unknown addresses that may be virtual: they are passed completely to the control
 * plane, which requests the address and sends them again. */
#ifndef PX_UNKNOWN_H
#define PX_UNKNOWN_H

#include "share.h"

static __always_inline int px_in_range(const struct px_addr *a, const struct px_range *r)
{
	__u32 differs = 0;

#pragma unroll
	for (int i = 0; i < 4; i++)
		differs |= (a->word[i] & r->mask.word[i]) ^ r->prefix.word[i];
	kerb_opaque(differs); /* one branch, not four: it is in a loop */
	return !differs;
}

static __always_inline int px_is_virtual(const struct px_addr *a)
{
	__u32 half = kerb_tunables_half();
	struct px_ranges *all = bpf_map_lookup_elem(&ranges, &half);

	if (!all)
		return 0;
	for (__u32 i = 0; i < PX_RANGES && i < all->count; i++)
		if (px_in_range(a, &all->range[i]))
			return 1;
	return 0;
}

/* Returns whether the interface is over the limit of packets that are passed to the control plane,
 * for this address or for all. */
static __always_inline int px_request_limited(struct px_work *w)
{
	struct px_asked fresh = {.since = w->now, .packets = 1}, *asking;
	struct px_share *share = px_share_of(w->flow.ifindex, w->now);

	if (!share || share->asked >= PX_ASK_SERVICE)
		return 1;
	__sync_fetch_and_add(&share->asked, 1);
	w->ask.addr = w->flow.dst;
	w->ask.ifindex = w->flow.ifindex;
	asking = bpf_map_lookup_elem(&asked, &w->ask);
	if (asking && (__s64)(w->now - asking->since) <= (__s64)PX_ASK_NS) {
		__sync_fetch_and_add(&asking->packets, 1);
		return asking->packets > PX_ASK_MOST;
	}
	bpf_map_update_elem(&asked, &w->ask, &fresh, BPF_ANY);
	return 0;
}

static __noinline int px_request_fill(const struct kerb_pkt *pkt, const struct px_work *w,
				      struct px_unknown *e, __u32 len)
{
	e->ifindex = pkt->ifindex;
	e->len = len;
	e->l3 = pkt->l3;
	e->l4 = pkt->l4;
	e->family = pkt->family;
	e->proto = pkt->proto;
	e->flags = pkt->flags;
	e->partial = kerb_is_partial(pkt);
	e->dst = w->flow.dst;
	return 0;
}

/* The verifier requires a constant size in the ring buffer: the smallest of three that holds the
 * frame. */
#define PX_SEND(size)                                                  \
	do {                                                           \
		struct px_unknown *e;                                  \
		KERB_EVENT_RESERVE_FRAME(e, &unknown, pkt, len, size); \
		px_request_fill(pkt, w, e, len);                       \
		kerb_event_submit(e, 0);                               \
		return 0;                                              \
	} while (0)

/* Without the frame. */
static __always_inline int px_send_address(const struct kerb_pkt *pkt, const struct px_work *w)
{
	struct px_unknown *e = kerb_event_reserve(&unknown, sizeof(*e));

	if (!e)
		return -1;
	px_request_fill(pkt, w, e, 0);
	kerb_event_submit(e, 0);
	return 0;
}

/* Returns 0 if the control plane has received the packet. */
static __always_inline int px_request_send(const struct kerb_pkt *pkt, struct px_work *w)
{
	__u64 len = pkt->len;

	if (px_request_limited(w))
		return -1;
	kerb_opaque(len);
	if (len <= 256)
		PX_SEND(256);
	if (len <= 2048)
		PX_SEND(2048);
	if (len <= PX_HELD_MAX)
		PX_SEND(PX_HELD_MAX);
	px_send_address(pkt, w);
	return -1;
}

/* Returns whether the source is a virtual address that is not the sender's, as written by another
 * proxy in front of this one, for example. */
static __always_inline int px_is_spoofed(const struct px_flow *f)
{
	struct px_name *name;

	if (!source_instance || !(px_is_virtual(&f->src) || bpf_map_lookup_elem(&vips, &f->src)))
		return 0;
	name = px_name_of(&f->src, f->ifindex);
	return !name || name->flags != PX_VIRTUAL;
}

#endif
