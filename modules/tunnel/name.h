/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Mode oakestra: between nodes an instance is known by its virtual address, on its node by its own
 * one. Changing only sources, and both ways by a table, needs no state of connections. */
#ifndef TUN_NAME_H
#define TUN_NAME_H

#include "header.h"

static __always_inline int tun_set_source(struct kerb_pkt *pkt, const struct tun_name *name)
{
	return pkt->family == 4 ? kerb_set_ip4_saddr(pkt, name->other.in6_u.u6_addr32[3])
				: kerb_set_ip6_saddr(pkt, &name->other);
}

/* A packet of a service of this node gets the virtual address of its instance, if it has one. */
static __noinline int tun_name_source(struct kerb_pkt *pkt, const struct in6_addr *src)
{
	struct tun_name *name = bpf_map_lookup_elem(&names, src);

	return name && !name->node ? tun_set_source(pkt, name) : 0;
}

/* The instance on another node that has sent a packet, or NULL. */
static __always_inline struct tun_name *tun_sender(const struct in6_addr *src)
{
	struct tun_name *name = mode == TUN_MODE_OAKESTRA ? bpf_map_lookup_elem(&names, src) : 0;

	return name && name->node ? name : 0;
}

/* A packet of an instance on another node gets the address of the instance itself. */
static __noinline int tun_unname_source(struct kerb_pkt *pkt, struct tun_name *name)
{
	if (!name->used)
		name->used = 1;
	return tun_set_source(pkt, name);
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
