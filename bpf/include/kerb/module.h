/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The contract of a data plane module. Include this file alone, then define
 *
 *	KERB_EGRESS(pkt)  { ... return KERB_NEXT; }	packets from the service
 *	KERB_INGRESS(pkt) { ... return KERB_NEXT; }	packets to the service
 *
 * one of them or both. The same source is compiled twice, with KERB_HOOK_XDP or KERB_HOOK_TC
 * defined by `kerb package build`, and linked into the chains that the module takes part in.
 * Directions are the service's; maps and data sections are the module's own. Constants from the
 * module's config are declared with KERB_CONFIG. */
#ifndef KERB_MODULE_H
#define KERB_MODULE_H

#include <kerb/types.h>
#include <kerb/parse.h>
#include <kerb/packet.h>
#include <kerb/rewrite.h>
#include <kerb/event.h>

#if !defined(KERB_HOOK_XDP) && !defined(KERB_HOOK_TC)
#error "build modules with 'kerb package build', which defines KERB_HOOK_XDP or KERB_HOOK_TC"
#endif

#define KERB_EGRESS(pkt)  SEC("kerb/egress") int kerb_egress(struct kerb_pkt *pkt)
#define KERB_INGRESS(pkt) SEC("kerb/ingress") int kerb_ingress(struct kerb_pkt *pkt)

/* A constant that the agent sets from the config property of the same name before the program is
 * loaded; the verifier then removes the branches it rules out. Integers and booleans; the value
 * given here is the default. */
#define KERB_CONFIG(type, name, value) const volatile type name = value

#define KERB_LICENSE(name) char _license[] SEC("license") = name

#endif
