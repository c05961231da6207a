// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

//go:build ignore

/* Intercept classifies packets before the network stack, and passes, drops, marks, answers or
 * forwards them, or delivers them to a program through a ring in shared memory (record.h).
 * control.go fills the maps. */
#define KERB_FIXED_LAYOUT /* global functions build their own struct kerb_pkt */
#include <kerb/module.h>
#include <kerb/scratch.h>
#include "class.h"
#include "deliver.h"
#include "control.h"
#include "answer.h"
#include "forward.h"

/* Sets skb->priority, by which queueing disciplines classify; XDP has no skb. */
static __always_inline int icpt_packet_mark(struct kerb_pkt *pkt, const struct icpt_found *k,
					    struct icpt_counts *n)
{
#ifdef KERB_HOOK_TC
	((struct __sk_buff *)pkt->ctx)->priority = k->priority;
#else
	n->unmarked++;
#endif
	return KERB_NEXT;
}

/* Counts the packet for its class and performs the action. If the class was removed meanwhile, it
 * has no counters, and the packet passes. */
static __always_inline int icpt_action_apply(struct kerb_pkt *pkt, const struct icpt_found *k,
					     __u32 direction)
{
	struct icpt_counts *n = bpf_map_lookup_elem(&class_counts, &k->identity);
	struct icpt_flow *f = bpf_map_lookup_elem(&flows, &k->class);

	__u64 *answered;
	int verdict = KERB_NEXT;

	if (!n || !f)
		return KERB_NEXT;
	kerb_note(pkt, ICPT_NOTE_CLASS, k->class);
	answered = &n->answered;
	n->packets++;
	n->bytes += pkt->len;
	icpt_gap_count(n, f, k->time);
	switch (k->action) {
	case ICPT_DROP:
		return kerb_drop(pkt, KERB_DROP_POLICY);
	case ICPT_MARK:
		return icpt_packet_mark(pkt, k, n);
	case ICPT_COPY:
	case ICPT_STEAL:
		verdict = icpt_deliver(pkt, k, f, n);
		answered = &n->fallbacks;
		break;
	case ICPT_ANSWER:
		verdict = ICPT_UNDELIVERED;
		break;
	case ICPT_FORWARD:
		if (use_forwards && direction == ICPT_INGRESS)
			return icpt_forward(pkt, k, n);
	}
	if (verdict != ICPT_UNDELIVERED)
		return verdict;
	if (!use_answers || direction != ICPT_INGRESS)
		return KERB_NEXT;
	return icpt_reply(pkt, k->class | k->half * ICPT_HALF, answered);
}

/* Unpacks what icpt_classify found: class in bits 0 to 7, action 8 to 15, bytes to copy 16 to 31,
 * priority 32 to 63. Returns 0 for a packet of no class. */
static __always_inline int icpt_found_load(struct icpt_found *f, const struct kerb_pkt *pkt,
					   __u64 found)
{
	const struct icpt_class *c;
	struct icpt_table *t;
	__u32 class = found & 0xff;

	if (class == ICPT_NONE)
		return 0;
	t = icpt_table(f->half);
	if (!t)
		return 0;
	kerb_opaque(class); /* keeps the bound next to its use, for the verifier */
	c = &t->classes[0][class & (ICPT_CLASSES - 1)];
	f->class = class;
	f->action = found >> 8;
	f->max_bytes = found >> 16 & 0xffff;
	f->priority = found >> 32;
	f->identity = c->identity; /* control messages do not change these */
	f->xdp_sockets = c->xdp_sockets;
	f->ring = c->ring;
	f->payload = kerb_payload(pkt);
	f->time = bpf_ktime_get_ns();
	return 1;
}

/* Only IP packets are classified: ARP and others always pass. */
static __always_inline int icpt_packet_process(struct kerb_pkt *pkt, __u32 direction)
{
	struct icpt_found f = {.direction = direction, .half = kerb_tunables_half()};
	__u32 rung;
	__u64 found;

	kerb_forget(pkt);
	rung = icpt_doorbells_read(f.half);
	if (rung)
		icpt_controls_drain(rung, f.half);
	if (!pkt->family)
		return KERB_NEXT;
	found = icpt_classify(pkt->ctx, ICPT_OFFSETS(pkt),
			      ICPT_KIND(pkt, direction | f.half * ICPT_HALF), pkt->l4_len,
			      kerb_label(pkt));
	return icpt_found_load(&f, pkt, found) ? icpt_action_apply(pkt, &f, direction) : KERB_NEXT;
}

KERB_INGRESS(pkt)
{
	return icpt_packet_process(pkt, ICPT_INGRESS);
}

KERB_EGRESS(pkt)
{
	return icpt_packet_process(pkt, ICPT_OUTGOING);
}

KERB_LICENSE("Dual BSD/GPL");
