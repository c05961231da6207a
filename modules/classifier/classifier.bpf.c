// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

//go:build ignore

/* The classifier counts the activity of nodes of an RPL network, or of flows (rpl.h, flow.h), in
 * windows (window.h), evaluates it with models (engine.h), and acts on the results (action.h).
 * Packets are never changed. control.go fills the maps. */
#include <kerb/module.h>
#include "timer.h"

/* Counts the packet. A separate function, so that its stack is free again when models are
 * evaluated. */
static __noinline int cls_features_extract(struct kerb_pkt *pkt, __u32 local)
{
	struct cls_work *w = cls_work();
	struct cls_fuse *z = cls_fuse();

	if (!w || !z)
		return KERB_NEXT;
	kerb_reload(pkt);
	w->before = w->now;
	w->now = cls_clock();
	return extractor == CLS_RPL ? cls_rpl(pkt, w, z) : cls_flow(pkt, w, z, local);
}

/* A later packet evaluates pending jobs, and without timers ends windows, if it arrives after a
 * pause of a clock tick. */
static __always_inline void cls_pending_evaluate(struct cls_work *w)
{
	if ((deferred != CLS_NEXT_PACKET && CLS_HAS_TIMERS) || w->now == w->before)
		return;
	if (deferred == CLS_NEXT_PACKET || (deferred == CLS_TIMER && !CLS_HAS_TIMERS))
		cls_drain(1);
	if (lapse_ns && !CLS_HAS_TIMERS)
		cls_packet_expire();
}

static __always_inline int cls_packet_process(struct kerb_pkt *pkt, __u32 local)
{
	struct cls_work *w = cls_work();
	int verdict;

	if (!w)
		return KERB_NEXT;
	kerb_forget(pkt);
	if (!kerb_scratch_enter())
		return KERB_NEXT;
	cls_count(CLS_COUNT_PACKETS);
	if (CLS_HAS_TIMERS && (deferred == CLS_TIMER || lapse_ns))
		cls_timer_start();
	w->due = 0;
	w->half = CLS_NO_HALF;
	verdict = cls_features_extract(pkt, local);
	if (w->due)
		cls_dispatch(w);
	cls_pending_evaluate(w);
	kerb_scratch_leave();
	return verdict;
}

KERB_EGRESS(pkt)
{
	return cls_packet_process(pkt, 1);
}

KERB_INGRESS(pkt)
{
	return cls_packet_process(pkt, 0);
}

KERB_LICENSE("Dual BSD/GPL");
