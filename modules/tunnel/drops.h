/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Drop reasons of the tunnel; the manifest has their names. */
#ifndef TUN_DROPS_H
#define TUN_DROPS_H

#include <kerb/types.h>

enum tun_drop {
	/* truncated, or with an unknown version or unknown flags */
	TUN_DROP_BAD_HEADER = KERB_DROP_MODULE_FIRST,
	TUN_DROP_OTHER_NETWORK,
	TUN_DROP_NO_MAC,	 /* we have keys, and the packet has no MAC */
	TUN_DROP_BAD_MAC,
	TUN_DROP_UNKNOWN_KEY,
	/* the inner source address does not belong to the node that sent the packet */
	TUN_DROP_UNKNOWN_SOURCE,
	TUN_DROP_NOT_LOCAL,	 /* the inner destination is no service of this node */
	/* the inner packet cannot be parsed, or is longer than the outer one */
	TUN_DROP_BAD_INNER,
	TUN_DROP_BAD_ECN,	 /* RFC 6040: congestion, but the inner packet cannot say so */
	/* the service uses a tunnel itself, and the kernel encapsulates such packets only once */
	TUN_DROP_NESTED,
	/* an IPsec policy covers the packet, which the tunnel would bypass */
	TUN_DROP_IPSEC,
	TUN_DROP_HELD, /* arrives again when its source has been looked up */
};

#endif
