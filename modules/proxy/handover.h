/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The short path: a packet for a service of this node is redirected to its interface, bypassing
 * bridge and stack. */
#ifndef PX_HANDOVER_H
#define PX_HANDOVER_H

#include "flow.h"

KERB_CONFIG(_Bool, short_path, 1); /* otherwise the bridge or the stack forwards packets */

/* The local that a session refers to, if it still exists. */
static __always_inline struct px_local *px_target(const __u32 *local, __u32 other)
{
	struct px_local *l = bpf_map_lookup_elem(&locals, local);

	return l && l->ifindex == other ? l : 0;
}

/* Where a packet's destination MAC address is written, or NULL if it has a VLAN tag. */
static __always_inline void *px_dst_mac(const struct kerb_pkt *pkt)
{
	return pkt->l3 == ETH_HLEN && !pkt->vlan ? kerb_at(pkt, 0, ETH_HLEN) : 0;
}

/* Writes to the packet: call it before its pointers become invalid. */
static __always_inline int px_neigh_redirect(struct kerb_pkt *pkt, void *ether,
					     const struct px_local *l)
{
	__u32 mac;
	__u16 tail;

	if (!short_path || !l || !ether)
		return KERB_NEXT;
	mac = *px_ports((void *)l->mac);
	tail = *(__u16 *)(l->mac + 4);
	if (!(mac | tail))
		return KERB_NEXT;
	*px_ports(ether) = mac;
	*(__u16 *)(ether + 4) = tail;
	return kerb_redirect_deferred(pkt, l->ifindex, l->flags & PX_LOCAL_PEER ? KERB_TO_PEER : 0);
}

#endif
