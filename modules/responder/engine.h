/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The processing of a request to a listener: checks (check.h), the application of the listener
 * (respond.h, apps/), rate limits (limit.h), and the reply, which reuses the packet (reply.h). */
#ifndef RSP_ENGINE_H
#define RSP_ENGINE_H

#include "respond.h"
#include "check.h"
#include "limit.h"
#include "reply.h"
#include "apps_gen.h"

static __always_inline int rsp_port_is_set(const __u32 *bits, __be16 port)
{
	__u32 n = bpf_ntohs(port);

	return bits[n >> 5] >> (n & 31) & 1;
}

/* All checks before the application is called. Returns RSP_ANSWERED, or the check that failed. */
static __always_inline int rsp_request_check(struct rsp_request *r)
{
	kerb_key32 half = r->half;
	struct rsp_ports *p = bpf_map_lookup_elem(&ports, &half);
	struct kerb_pkt *pkt = r->req.pkt;
	struct udphdr *udp = kerb_at(pkt, pkt->l4, sizeof(*udp));
	int fault;

	if (!p || !udp)
		return RSP_MALFORMED;
	fault = kerb_request_read(&r->req, pkt, udp);
	if (fault)
		return fault;
	if (rsp_source_kind(r))
		return RSP_SOURCE_ADDRESS;
	if (rsp_port_is_set(p->not_sources, udp->source))
		return RSP_SOURCE_PORT;
	if (r->req.len < r->listener->min_request || r->req.len > r->listener->max_request)
		return RSP_SIZE;
	fault = kerb_request_verify(&r->req);
	if (fault == KERB_REQUEST_PARTIAL)
		return rsp_partial_is_accepted(r) ? RSP_ANSWERED : RSP_CHECKSUM;
	return fault;
}

static __always_inline int rsp_reply_send(struct rsp_request *r)
{
	int rc = kerb_reply_begin(&r->req, r->req.reply_len);

	if (rc == -ENOMEM)
		return rsp_count(r->slot, RSP_NO_ROOM, KERB_NEXT);
	if (rc || rsp_app_answer(r) || rsp_reply_finish(r)) {
		rsp_count(r->slot, RSP_LOST, 0);
		return kerb_drop(r->req.pkt, KERB_DROP_NO_MEMORY);
	}
	return rsp_count(r->slot, r->challenge ? RSP_CHALLENGED : RSP_ANSWERED, KERB_REPLY);
}

static __always_inline int rsp_request_consume(struct rsp_request *r)
{
	if (rsp_app_answer(r)) {
		rsp_count(r->slot, RSP_LOST, 0);
		return kerb_drop(r->req.pkt, KERB_DROP_NO_MEMORY);
	}
	rsp_count(r->slot, RSP_CONSUMED, 0);
	return kerb_drop(r->req.pkt, RSP_DROP_CONSUMED);
}

static __always_inline int rsp_request_answer(struct rsp_request *r)
{
	int decision, outcome = rsp_request_check(r);

	if (outcome)
		return rsp_count(r->slot, outcome, KERB_NEXT);
	decision = rsp_app_check(r);
	if (decision != RSP_CONSUME && decision != RSP_REPLY)
		return rsp_count(r->slot, RSP_APP + (r->why & (RSP_APP_REASONS - 1)), KERB_NEXT);
	if (decision == RSP_REPLY && !rsp_reply_fits(r))
		return rsp_count(r->slot, RSP_REPLY_SIZE, KERB_NEXT);
	if (decision == RSP_REPLY && rsp_reply_amplifies(r))
		return rsp_count(r->slot, RSP_UNPROVEN, KERB_NEXT);
	outcome = rsp_limits_check(r);
	if (outcome)
		return rsp_count(r->slot, outcome,
				 r->listener->drop ? kerb_drop(r->req.pkt, KERB_DROP_RATE)
						   : KERB_NEXT);
	return decision == RSP_REPLY ? rsp_reply_send(r) : rsp_request_consume(r);
}

#endif
