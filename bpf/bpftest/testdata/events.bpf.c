// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* One event per packet, in each of the ways that event.h has: copied on egress, written in place on
 * ingress. */
#include <kerb/module.h>

#define DISCARDED 9	/* destination port whose event is given up after it has been begun */
#define OTHER	  10	/* destination port whose events go into a second ring */
#define BATCH	  256	/* bytes that wake the reader on ingress */

struct event {
	__u32 len;
	__u16 port, from; /* host byte order */
};

KERB_EVENTS(events, 4096);
KERB_EVENTS(others, 4096);

KERB_EGRESS(pkt)
{
	struct udphdr *udp = kerb_udp(pkt);
	struct event e = {.len = pkt->len};

	if (!udp)
		return KERB_NEXT;
	e.port = bpf_ntohs(udp->dest);
	e.from = bpf_ntohs(udp->source);
	if (e.port == OTHER)
		kerb_event(&others, &e, sizeof(e));
	else
		kerb_event(&events, &e, sizeof(e));
	return KERB_NEXT;
}

KERB_INGRESS(pkt)
{
	struct udphdr *udp = kerb_udp(pkt);
	struct event *e;

	if (!udp)
		return KERB_NEXT;
	e = kerb_event_reserve(&events, sizeof(*e));
	if (!e)
		return KERB_NEXT;
	if (udp->dest == bpf_htons(DISCARDED)) {
		kerb_event_discard(e);
		return KERB_NEXT;
	}
	e->len = pkt->len;
	e->port = bpf_ntohs(udp->dest);
	e->from = bpf_ntohs(udp->source);
	kerb_event_submit(e, kerb_event_batch(&events, BATCH));
	return KERB_NEXT;
}

KERB_LICENSE("Dual BSD/GPL");
