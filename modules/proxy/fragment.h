/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Later fragments have no ports: they follow the first one of their datagram. Those to a virtual
 * address that arrive before it are dropped. */
#ifndef PX_FRAGMENT_H
#define PX_FRAGMENT_H

#include "flow.h"

/* how long receivers wait for the rest (Linux: ipfrag_time) */
#define PX_FRAGMENT_NS 30000000000ULL

/* Fills w->datagram; w->flow has the addresses. */
static __always_inline int px_read_datagram(const struct kerb_pkt *pkt, struct px_work *w)
{
	struct px_fragment *d = &w->datagram;

	d->src = w->flow.src;
	d->dst = w->flow.dst;
	d->ifindex = w->flow.ifindex;
	d->hook = w->flow.hook;
	d->zero = 0;
	if (w->v4) {
		struct iphdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));

		if (!ip)
			return -1;
		d->id = ip->id;
		d->proto = ip->protocol;
	} else {
		struct kerb_ext_hdr *ext = kerb_fragment(pkt);

		if (!ext)
			return -1;
		d->id = ext->id;
		d->proto = 0;
	}
	return 0;
}

/* Sets w->flow to that of the first fragment, if it is known. */
static __always_inline void px_fragment_follow(const struct kerb_pkt *pkt, struct px_work *w)
{
	struct px_fragment_of *first;

	if (px_read_datagram(pkt, w))
		return;
	first = bpf_map_lookup_elem(&fragments, &w->datagram);
	if (first && (__s64)(w->now - first->seen) <= (__s64)PX_FRAGMENT_NS)
		w->flow = first->flow;
}

/* w->flow is the key by which the packet, a first fragment, was looked up. */
static __always_inline void px_fragment_remember(const struct kerb_pkt *pkt, struct px_work *w)
{
	if (px_read_datagram(pkt, w))
		return;
	w->first.seen = w->now;
	w->first.flow = w->flow;
	w->first.zero = 0;
	bpf_map_update_elem(&fragments, &w->datagram, &w->first, BPF_ANY);
}

#endif
