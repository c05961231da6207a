/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Classes that are answered by the responder's applications. All its checks and limits are theirs. */
#ifndef ICPT_ANSWER_H
#define ICPT_ANSWER_H

#include "deliver.h"
#include "../responder/engine.h"

KERB_CONFIG(_Bool, use_answers, 1); /* some class is answered */

/* By class. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ICPT_CLASSES);
	__type(key, __u32);
	__type(value, struct rsp_listener);
} answers SEC(".maps");

static __noinline int icpt_answer(struct kerb_pkt *pkt, __u32 class, struct icpt_counts *n)
{
	__u32 zero = 0;
	struct rsp_ports *p = bpf_map_lookup_elem(&ports, &zero);
	struct rsp_request r = {.pkt = pkt};
	int verdict;

	r.listener = bpf_map_lookup_elem(&answers, &class);
	if (!p || !r.listener || !kerb_udp(pkt))
		return KERB_NEXT;
	kerb_forget(pkt);
	r.slot = r.listener->slot;
	r.payload = pkt->l4 + sizeof(struct udphdr);
	verdict = rsp_respond(&r, p);
	if (verdict == KERB_REPLY)
		n->answered++;
	return verdict;
}

#endif
