/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Work on a timer instead of on packets: evaluation of models (CLS_TIMER), and the end of windows
 * of silent sources, so that a source is evaluated even if it stops sending. */
#ifndef CLS_TIMER_H
#define CLS_TIMER_H

#include "rpl.h"
#include "flow.h"

#define CLS_TIMER_NS 10000000 /* between runs while evaluations are pending */
#define CLS_LAPSE_NS 1000000  /* between runs while ended windows are pending */
/* windows per run, which bounds the time in the timer interrupt */
#define CLS_LAPSES   64

/* The verifier refuses timers on kernels with PREEMPT_RT (Linux 6.18, and stable releases of older
 * ones). There, packets of any source do the work, up to so many windows each. */
#define CLS_HAS_TIMERS	  (!kerb_preemptible)
#define CLS_PACKET_LAPSES 8

#define CLS_CLOCK_MONOTONIC 1

/* Returns whether the source has sent anything in the window that ends with a slice. */
static __always_inline int cls_window_has_packets(const struct cls_record *r, __u64 slice)
{
	return r->last >= (slice - (sliding ? CLS_SLICES - 1 : 0)) * cls_slice_ns();
}

static __always_inline void cls_lapse_evaluate(struct cls_work *w)
{
	if (deferred == CLS_USER)
		cls_dispatch(w);
	else
		cls_evaluate_job();
}

/* Ends the window of the source of w->lapse, unless a packet has. Returns 1 if the caller has to
 * evaluate it: here the stack is too small for models. */
__noinline int cls_window_expire_one(void)
{
	struct cls_work *w = cls_work();
	struct cls_record *r;
	__u64 slice;

	r = w ? bpf_map_lookup_elem(&records, &w->lapse.source) : 0;
	if (!r)
		return 0;
	slice = *(volatile __u64 *)&r->slice;
	if (r->span != cls_config_id() || !cls_window_has_packets(r, slice))
		return 0;
	w->job.source = w->lapse.source;
	if (!cls_window_close(w, r, &slice))
		return 0;
	if (extractor == CLS_RPL)
		cls_rpl_values(w, r);
	else
		cls_flow_values(w, r);
	cls_window_closed(w, r, slice);
	if (sliding && cls_window_has_packets(r, r->slice))
		cls_timer_arm(w, r);
	return !!w->held;
}

/* Ends up to `most` due windows, CLS_LAPSES at most. Returns 1 if there may be more. Entries that
 * are due later than any window of this config are of another config, which their records show. */
static __noinline int cls_window_expire_some(__u32 most)
{
	struct cls_work *w = cls_work();

	if (!w)
		return 0;
	w->now = cls_clock();
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < CLS_LAPSES && i < most; i++) {
		if (bpf_map_peek_elem(&lapsing, &w->lapse))
			return 0;
		if (w->lapse.due > w->now && w->lapse.due - w->now <= cls_slice_ns())
			return 0;
		if (bpf_map_pop_elem(&lapsing, &w->lapse))
			return 0;
		if (cls_window_expire_one())
			cls_lapse_evaluate(w);
	}
	return 1;
}

static int cls_timer_run(void *map, __u32 *key, struct cls_timer *t)
{
	struct cls_work *w = cls_work();
	__u64 wait = lapse_ns;

	if (!w || !kerb_scratch_enter()) {
		bpf_timer_start(&t->timer, CLS_LAPSE_NS, 0);
		return 0;
	}
	w->half = CLS_NO_HALF;
	if (lapse_ns && cls_window_expire_some(CLS_LAPSES))
		wait = CLS_LAPSE_NS;
	if (deferred == CLS_TIMER) {
		cls_drain(CLS_DRAIN);
		if (!lapse_ns || wait > CLS_TIMER_NS)
			wait = CLS_TIMER_NS;
	}
	kerb_scratch_leave();
	bpf_timer_start(&t->timer, wait, 0);
	return 0;
}

/* Does the timer's work on windows, on one CPU at a time: another one could pop the entry that this
 * one has found to be due, and this one the next, which is not. */
static __always_inline void cls_packet_expire(void)
{
	__u32 zero = 0;
	struct cls_timer *t = bpf_map_lookup_elem(&timers, &zero);

	if (!t || !cls_compare_and_swap(&t->started, 0, 1, 0))
		return;
	cls_window_expire_some(CLS_PACKET_LAPSES);
	*(volatile __u64 *)&t->started = 0;
}

static __always_inline void cls_timer_start(void)
{
	__u32 zero = 0;
	struct cls_timer *t = bpf_map_lookup_elem(&timers, &zero);

	if (!t || t->started)
		return;
	if (bpf_timer_init(&t->timer, &timers, CLS_CLOCK_MONOTONIC))
		return;
	bpf_timer_set_callback(&t->timer, cls_timer_run);
	bpf_timer_start(&t->timer, CLS_TIMER_NS, 0);
	t->started = 1;
}

#endif
