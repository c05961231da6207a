// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Answers each request after the number of arithmetic steps that it requests. The benchmark of the
 * responder measures with it up to how much computation an answer in the kernel pays off. A message
 * is u32 OP, u32 VALUE in host byte order. VALUE is the number of steps in a request, a multiple of
 * STEPS_AT_ONCE, and the result in a reply. Linux 5.17 (bpf_loop). */
#include <kerb/respond.h>

KERB_CONFIG(__u16, port, 7007);

#define REPLY	      3
#define GET	      4
#define STEPS_AT_ONCE 50
#define MOST_STEPS    131072

struct message {
	__u32 op, value;
};

struct work {
	__u64 x;
};

/* STEPS_AT_ONCE steps (xorshift), as compute_work() in ../../responder/src/wire.h. */
static long work_steps(__u32 i, struct work *w)
{
	__u64 x = w->x;

#pragma unroll
	for (int step = 0; step < STEPS_AT_ONCE; step++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
	}
	w->x = x;
	return 0;
}

static __always_inline int work_reply(struct kerb_request *r)
{
	struct message *m = kerb_request_at(r, 0, sizeof(*m)), reply = { REPLY };
	struct work w = { 88172645463325252ULL };
	__u32 steps;

	if (!m || m->op != GET || m->value > MOST_STEPS)
		return KERB_NEXT;
	steps = m->value;
	if (kerb_reply_begin(r, sizeof(reply)))
		return KERB_NEXT;
	bpf_loop(steps / STEPS_AT_ONCE, work_steps, &w, 0);
	reply.value = w.x;
	if (kerb_reply_store(r, 0, &reply, sizeof(reply)))
		return kerb_drop(r->pkt, KERB_DROP_NO_MEMORY);
	return kerb_reply_finish(r);
}

KERB_INGRESS(pkt)
{
	struct udphdr *udp = kerb_udp(pkt);
	struct kerb_request r;

	if (!udp || udp->dest != bpf_htons(port))
		return KERB_NEXT;
	kerb_forget(pkt);
	if (kerb_request_read(&r, pkt, udp) || r.len != sizeof(struct message) ||
	    kerb_request_verify(&r))
		return KERB_NEXT;
	return work_reply(&r);
}

KERB_LICENSE("Dual BSD/GPL");
