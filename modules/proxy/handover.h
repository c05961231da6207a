/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The short path: a packet for a service of this node goes straight to its interface, past bridge and stack. */
#ifndef PX_HANDOVER_H
#define PX_HANDOVER_H

#include "maps.h"

KERB_CONFIG(_Bool, short_path, 1); /* else the bridge or the stack carries packets on */

/* Whether the local that the session names is still there. */
static __always_inline struct px_local *px_target(const struct px_session *s)
{
	struct px_local *l = bpf_map_lookup_elem(&locals, &s->local);

	return l && l->ifindex == s->other ? l : 0;
}

/* Writes into the packet: to be called before its pointers end. */
static __always_inline int px_hand_over(struct kerb_pkt *pkt, const struct px_local *l)
{
	struct ethhdr *eth = kerb_at(pkt, 0, sizeof(*eth));
	__u16 *mac = (void *)l->mac, *dest = (void *)eth->h_dest;

	if (!short_path || !l || !eth || pkt->l3 != sizeof(*eth) || pkt->vlan || !(mac[0] | mac[1] | mac[2]))
		return KERB_NEXT;
	dest[0] = mac[0];
	dest[1] = mac[1];
	dest[2] = mac[2];
	return kerb_redirect(pkt, l->ifindex, l->flags & PX_LOCAL_PEER ? KERB_TO_PEER : 0);
}

#endif
