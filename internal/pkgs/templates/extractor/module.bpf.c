// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore
/* Classifies each IP packet by a model with three features, and drops packets that are not of its
 * first class. */
#include <kerb/module.h>
#include <kerb/scratch.h>
#include <kerb/infer.h>

KERB_LICENSE("Dual BSD/GPL");

#define ANOMALY KERB_DROP_MODULE_FIRST /* dropReasons in kerb.yaml */

/* As in `kerb model pack --features length,ttl,port`. */
enum feature {
	LENGTH, /* of the payload, bytes */
	TTL,	/* or hop limit */
	PORT,	/* destination, 0: none */
};

/* Returns the class of the packet: 0 is normal traffic, also if there is no model. */
static __always_inline int class_of(struct kerb_pkt *pkt)
{
	struct kerb_inference *s = kerb_inference();
	__be16 *ports = kerb_ports(pkt);

	if (!s)
		return 0;
	kerb_feature_set(s, LENGTH, kerb_payload_len(pkt));
	kerb_feature_set(s, TTL, kerb_ttl(pkt));
	kerb_feature_set(s, PORT, ports ? bpf_ntohs(ports[1]) : 0);
	return kerb_infer(KERB_MODEL_LIVE) ? 0 : s->decision[KERB_MODEL_LIVE].class;
}

static __always_inline int judge(struct kerb_pkt *pkt)
{
	int class;

	if (!pkt->family)
		return KERB_NEXT;
	kerb_forget(pkt);
	if (!kerb_scratch_enter())
		return KERB_NEXT;
	class = class_of(pkt);
	kerb_scratch_leave();
	return class ? kerb_drop(pkt, ANOMALY) : KERB_NEXT;
}

KERB_INGRESS(pkt)
{
	return judge(pkt);
}
