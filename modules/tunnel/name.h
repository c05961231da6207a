/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Mode oakestra: between nodes an instance sends by its virtual address, which the proxy gives it;
 * the table says from which node. */
#ifndef TUN_NAME_H
#define TUN_NAME_H

#include "header.h"

/* The instance on another node that has sent a packet, or NULL. */
static __always_inline struct tun_name *tun_sender(const struct in6_addr *src)
{
	return mode == TUN_MODE_OAKESTRA ? bpf_map_lookup_elem(&names, src) : 0;
}

/* Has the control plane look up who has sent a packet, which is lost. The stack has no room for an
 * event of its own: from takes the place of the destination. */
static __always_inline int tun_ask(struct kerb_pkt *pkt, struct tun_flow *f,
				   const struct in6_addr *from)
{
	if (mode == TUN_MODE_OAKESTRA) {
		f->dst = *from;
		kerb_event(&strangers, &f->src, sizeof(f->src) + sizeof(f->dst));
	}
	return kerb_drop(pkt, TUN_DROP_UNKNOWN_SOURCE);
}

#endif
