/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Delivery to programs, by the package intercept: a module labels a packet, and a class of
 * intercept with `match: {label: N}`, behind it in the chain, delivers it (docs/intercept.md). A
 * label stays with the packet to the end of the chain, or until a module redirects it. */
#ifndef KERB_DELIVER_H
#define KERB_DELIVER_H

#include <kerb/module.h>

/* By this the agent knows that the module labels packets, and hands labels on to the next program
 * where a chain has several (internal/dataplane/handover.go). */
const volatile _Bool kerb_labels __attribute__((used)) = 1;

/* Labels the packet, from 1 on; 0 removes its label. A module behind may give it another one. */
static __always_inline int kerb_deliver(struct kerb_pkt *pkt, __u16 label)
{
	pkt->to_flags = (pkt->to_flags & KERB_TO_FLAGS) | (__u32)label << KERB_LABEL_SHIFT;
	return KERB_NEXT;
}

#endif
