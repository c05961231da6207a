/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Delivery to programs with the package intercept: a module labels a packet, and a class of
 * intercept with `match: {label: N}`, after it in the chain, delivers the packet
 * (docs/intercept.md). A packet keeps its label to the end of the chain, or until a module
 * redirects it. */
#ifndef KERB_DELIVER_H
#define KERB_DELIVER_H

#include <kerb/module.h>

/* Indicates to the agent that the module labels packets, so that labels are passed to the next
 * program of a chain with several ones (internal/dataplane/handover.go). */
const volatile _Bool kerb_labels __attribute__((used)) = 1;

/* Sets the packet's label, 1 or above; 0 removes it. Subsequent modules may change the label. */
static __always_inline int kerb_deliver(struct kerb_pkt *pkt, __u16 label)
{
	pkt->to_flags = (pkt->to_flags & KERB_TO_FLAGS) | (__u32)label << KERB_LABEL_SHIFT;
	return KERB_NEXT;
}

#endif
