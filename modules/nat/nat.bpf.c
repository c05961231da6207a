// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

//go:build ignore

/* Source NAT with port translation. Packets from a service leave with the outside address and one
 * of its ports as their source; packets to the outside address are sent back to the service. */
#include "translate.h"

KERB_LICENSE("Dual BSD/GPL");

#define NAT_NO_MAPPING	(KERB_DROP_MODULE_FIRST + 0) /* dropReasons in kerb.yaml */
#define NAT_NO_PORT	(KERB_DROP_MODULE_FIRST + 1)
#define NAT_UNSUPPORTED (KERB_DROP_MODULE_FIRST + 2)

static __always_inline int nat_drop(struct kerb_pkt *pkt, int rc)
{
	return kerb_drop(pkt, rc == -ENOENT    ? NAT_NO_MAPPING
			      : rc == -EBUSY   ? NAT_NO_PORT
			      : rc == -ENOSPC  ? KERB_DROP_TABLE_FULL
			      : rc == -EPROTO  ? NAT_UNSUPPORTED
			      : rc == -ENODATA ? KERB_DROP_FRAGMENT
					       : KERB_DROP_MALFORMED);
}

/* Returns whether the headers cannot be read. */
static __always_inline bool nat_is_malformed(const struct kerb_pkt *pkt)
{
	return pkt->outcome != KERB_PARSE_OK && pkt->outcome != KERB_PARSE_NOT_IP;
}

/* Returns whether the packet's family has an outside address. */
static __always_inline bool nat_is_on(const struct kerb_pkt *pkt)
{
	return pkt->family == 4 ? outside4 : pkt->family == 6 && (outside6_high || outside6_low);
}

KERB_EGRESS(pkt)
{
	struct nat_work w = {};
	int rc;

	if (nat_is_malformed(pkt))
		return kerb_drop(pkt, KERB_DROP_MALFORMED);
	if (!nat_is_on(pkt) || kerb_is_redirected(pkt))
		return KERB_NEXT;
	rc = nat_read(pkt, &w);
	if (!rc) {
		if (nat_is_excluded(pkt, &w))
			return KERB_NEXT;
		rc = nat_from_service(pkt, &w);
	}
	return rc ? nat_drop(pkt, rc) : KERB_NEXT;
}

KERB_INGRESS(pkt)
{
	struct nat_work w = {};
	int rc;

	if (nat_is_malformed(pkt))
		return kerb_drop(pkt, KERB_DROP_MALFORMED);
	if (!nat_is_on(pkt) || kerb_is_redirected(pkt))
		return KERB_NEXT;
	rc = nat_read(pkt, &w);
	if (!rc) {
		if (!nat_equal(&w.dst, &w.own))
			return KERB_NEXT;
		rc = nat_to_service(pkt, &w);
	}
	return rc ? nat_drop(pkt, rc) : KERB_NEXT;
}
