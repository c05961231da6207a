/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What happens off the packets' path: the models' work (CLS_TIMER), and the end of windows whose sources have fallen silent: who
 * stops to attack is judged, too. */
#ifndef CLS_TIMER_H
#define CLS_TIMER_H

#include "rpl.h"
#include "flow.h"

#define CLS_TIMER_NS 10000000 /* between two runs while there is work */
#define CLS_LAPSES   256      /* windows of one run */

#define CLS_CLOCK_MONOTONIC 1

/* Ends the window of a source that has sent in it and not since. 1: so many are enough for this run. */
static long cls_lapse(void *map, struct cls_source *source, struct cls_record *r, void *none)
{
	struct cls_work *w = cls_work();
	__u64 slice = *(volatile __u64 *)&r->slice;

	if (!w)
		return 1;
	if (r->span != cls_span() || r->last < (slice - (sliding ? CLS_SLICES - 1 : 0)) * cls_slice_ns())
		return 0;
	w->job.source = *source;
	if (!cls_close(w, r, &slice))
		return 0;
	if (extractor == CLS_RPL)
		cls_rpl_values(w, r);
	else
		cls_flow_values(w, r);
	cls_closed(w, r, slice);
	if (w->held && deferred == CLS_USER)
		cls_dispatch(w);
	else if (w->held)
		cls_judge();
	w->lapses++;
	return w->lapses >= CLS_LAPSES;
}

/* Ends all such windows. A function of its own for its stack. 1: there may be more. */
static __noinline int cls_lapse_all(void)
{
	struct cls_work *w = cls_work();

	if (!w)
		return 0;
	w->now = cls_clock();
	w->lapses = 0;
	bpf_for_each_map_elem(&records, cls_lapse, 0, 0);
	return w->lapses >= CLS_LAPSES;
}

static int cls_tick(void *map, __u32 *key, struct cls_timer *t)
{
	__u64 now = bpf_ktime_get_ns(), wait = lapse_ns;

	if (lapse_ns && now >= t->lapse) {
		t->lapse = now + lapse_ns;
		if (cls_lapse_all())
			t->lapse = now;
	}
	if (deferred == CLS_TIMER) {
		cls_drain(CLS_DRAIN);
		wait = CLS_TIMER_NS;
	}
	bpf_timer_start(&t->timer, t->lapse == now ? CLS_TIMER_NS : wait, 0);
	return 0;
}

static __always_inline void cls_start_timer(void)
{
	__u32 zero = 0;
	struct cls_timer *t = bpf_map_lookup_elem(&timers, &zero);

	if (!t || t->started)
		return;
	if (bpf_timer_init(&t->timer, &timers, CLS_CLOCK_MONOTONIC))
		return;
	bpf_timer_set_callback(&t->timer, cls_tick);
	bpf_timer_start(&t->timer, CLS_TIMER_NS, 0);
	t->started = 1;
}

#endif
