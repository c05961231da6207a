/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* From features to actions: the models' decisions, hysteresis, allow-list, fuse, blocks, events. */
#ifndef CLS_ACTION_H
#define CLS_ACTION_H

#include <kerb/infer.h>
#include "window.h"

static __always_inline void cls_event_send(struct cls_work *w, const struct cls_tunables *t,
					   __u32 kind, __u32 done)
{
	struct cls_event *e = &w->event;

	if (t->events == CLS_EVENTS_CHANGES && kind == CLS_EVENT_EVALUATED)
		return;
	if (t->events == CLS_EVENTS_POSITIVES && kind == CLS_EVENT_EVALUATED && !(e->hits & 1))
		return;
	e->kind = kind;
	e->action = done;
	kerb_event(&verdicts, e, sizeof(*e));
}

static __always_inline void cls_unblock(struct cls_fuse *z, struct cls_source *source)
{
	if (!bpf_map_delete_elem(&blocks, source))
		cls_add(z->blocked, (__u32)-1);
}

/* Why the model must not block another source, or CLS_FUSE_INTACT. */
static __always_inline __u32 cls_fuse_check(const struct cls_fuse *z, const struct cls_tunables *t)
{
	__u64 n = z->blocked + 1, sources = cls_source_count(z);

	if (n > t->fuse_sources)
		return CLS_FUSE_SOURCES;
	if (t->fuse_share >= 100 || n <= t->fuse_least)
		return CLS_FUSE_INTACT;
	if (sources < z->sources_before)
		sources = z->sources_before;
	return n * 100 > sources * t->fuse_share ? CLS_FUSE_SHARE : CLS_FUSE_INTACT;
}

static __always_inline void cls_fuse_blow(struct cls_work *w, const struct cls_tunables *t,
					  struct cls_fuse *z, __u32 cause)
{
	if (!cls_compare_and_swap(&z->blown, 0, w->now ?: 1, 0))
		return;
	z->cause = cause;
	w->event.cause = cause;
	cls_event_send(w, t, CLS_EVENT_FUSE, CLS_EVENT);
	w->event.cause = CLS_FUSE_INTACT;
}

static __always_inline int cls_addr_is_allowed(struct cls_work *w, const __u8 *addr)
{
	w->prefix.len = 32 + 128;
	w->prefix.half = w->half;
	__builtin_memcpy(w->prefix.addr, addr, sizeof(w->prefix.addr));
	return !!bpf_map_lookup_elem(&allowed, &w->prefix);
}

static __always_inline int cls_block(struct cls_work *w, const struct cls_tunables *t,
				     const struct kerb_decision *d)
{
	struct cls_block *b = &w->block;

	b->since = w->now;
	b->until = t->action_ns ? w->now + t->action_ns : 0;
	b->version = d->version;
	b->class = d->class;
	b->score = d->score;
	b->action = t->action;
	return bpf_map_update_elem(&blocks, &w->job.source, b, BPF_NOEXIST);
}

/* Starts or prolongs the action on the source. Returns the enum cls_action taken. *new: it was not
 * active before. */
static __always_inline __u32 cls_action_apply(struct cls_work *w, const struct cls_tunables *t,
					      struct cls_fuse *z, const struct kerb_decision *d,
					      __u32 *new)
{
	struct cls_source *source = &w->job.source;
	struct cls_block *b;
	__u32 cause;

	if (t->action == CLS_EVENT)
		return CLS_EVENT;
	if (cls_addr_is_allowed(w, source->addr) ||
	    (extractor == CLS_FLOW && !by_peer && cls_addr_is_allowed(w, source->local))) {
		w->event.allowed = 1;
		cls_count(CLS_COUNT_ALLOWED);
		return CLS_EVENT;
	}
	if (z->blown)
		return CLS_EVENT;
	b = bpf_map_lookup_elem(&blocks, source);
	if (b) {
		if (b->until && t->action_ns)
			b->until = w->now + t->action_ns;
		return t->watch ? CLS_EVENT : b->action;
	}
	cause = cls_fuse_check(z, t);
	if (!cause && cls_block(w, t, d))
		cause = CLS_FUSE_SOURCES;
	if (cause) {
		cls_fuse_blow(w, t, z, cause);
		return CLS_EVENT;
	}
	cls_add(z->blocked, 1);
	*new = 1;
	return t->watch ? CLS_EVENT : t->action;
}

static __always_inline int cls_decision_opposes(const struct cls_tunables *t, __u32 role,
						const struct kerb_decision *d, __u32 suspicious)
{
	__u64 *classes = bpf_map_lookup_elem(&harmless, &role);

	if (!classes || !*classes)
		return 0;
	if (suspicious && d->score >= t->clear)
		return 1;
	return !(*classes >> (d->class & 63) & 1) && d->score >= t->raise;
}

/* Compares the shadow model's decision with the live one's. */
static __always_inline void cls_shadow_compare(struct kerb_inference *s,
					       const struct cls_tunables *t, __u32 against)
{
	__u32 other =
		cls_decision_opposes(t, KERB_MODEL_SHADOW, &s->decision[KERB_MODEL_SHADOW], 0);

	cls_count(against ? other ? CLS_COUNT_BOTH_POSITIVE : CLS_COUNT_ONLY_LIVE
			  : other ? CLS_COUNT_ONLY_SHADOW : CLS_COUNT_BOTH_HARMLESS);
	if (s->decision[KERB_MODEL_LIVE].class == s->decision[KERB_MODEL_SHADOW].class)
		cls_count(CLS_COUNT_SAME_CLASS);
}

/* Applies hysteresis and its consequences. A block of a source that is cleared lasts until it
 * expires: action_ns is a minimum. */
static __always_inline void cls_verdict_update(struct cls_work *w, const struct cls_tunables *t,
					       struct cls_fuse *z, struct cls_record *r,
					       const struct kerb_decision *d, __u32 against)
{
	__u32 was = r->suspicious, is, hits = r->hits << 1 | against,
	      recent = hits & (0xffffffffU >> (32 - t->hits_of));
	__u32 kind, new = 0, done = CLS_EVENT;

	is = (against && __builtin_popcount(recent) >= t->hits_needed) || (was && recent);
	r->hits = hits;
	r->suspicious = is;
	r->version = d->version;
	r->class = d->class;
	r->score = d->score;
	w->event.hits = hits;
	if (is && against)
		done = cls_action_apply(w, t, z, d, &new);
	kind = is && (!was || new) ? CLS_EVENT_SUSPICIOUS
	       : was && !is	   ? CLS_EVENT_CLEARED
				   : CLS_EVENT_EVALUATED;
	cls_event_send(w, t, kind, done);
}

static __always_inline void cls_event_prepare(struct cls_work *w, const struct kerb_decision *d)
{
	struct cls_event *e = &w->event;

	e->time = w->job.time;
	e->source = w->job.source;
	e->allowed = 0;
	e->cause = CLS_FUSE_INTACT;
	e->version = d->version;
	e->class = d->class;
	e->score = d->score;
	__builtin_memcpy(e->values, w->job.values, sizeof(e->values));
}

/* Returns whether the source of the job is counted in z->held: it was blocked before the window
 * began. */
static __always_inline int cls_source_is_held(struct cls_work *w, const struct cls_fuse *z)
{
	struct cls_block *b = z->held ? bpf_map_lookup_elem(&blocks, &w->job.source) : 0;

	return b && b->since / cls_epoch_ns() < z->window;
}

/* Applies the decisions on this CPU's job. compared: the shadow model has decided, too. */
__noinline int cls_decision_apply(__u32 compared)
{
	struct cls_work *w = cls_work();
	struct kerb_inference *s = kerb_inference();
	struct cls_fuse *z = cls_fuse();
	const struct cls_tunables *t;
	struct cls_record *r;
	__u32 against;

	if (!w || !s || !z)
		return 0;
	t = cls_tunables(w);
	if (!t)
		return 0;
	cls_count(CLS_COUNT_EVALUATED);
	w->now = cls_clock();
	cls_epoch(z, w->now);
	r = bpf_map_lookup_elem(&records, &w->job.source);
	if (r && r->judged != z->window) {
		r->judged = z->window;
		if (!cls_source_is_held(w, z))
			cls_add(z->judged, 1);
	}
	against = cls_decision_opposes(t, KERB_MODEL_LIVE, &s->decision[KERB_MODEL_LIVE],
				       r && r->suspicious);
	if (against)
		cls_count(CLS_COUNT_POSITIVE);
	if (compared)
		cls_shadow_compare(s, t, against);
	cls_event_prepare(w, &s->decision[KERB_MODEL_LIVE]);
	if (r)
		cls_verdict_update(w, t, z, r, &s->decision[KERB_MODEL_LIVE], against);
	return 0;
}

/* Evaluates the job of this CPU, for packets, timers and queues. Global functions, so that the
 * verifier examines them once; two, so that models have the stack that applying the decision
 * takes. */
__noinline int cls_evaluate_job(void)
{
	struct cls_work *w = cls_work();
	struct kerb_inference *s = kerb_inference();

	if (!w || !s)
		return 0;
	for (int i = 0; i < CLS_VALUES; i++)
		s->features.v[i] = w->job.values[i];
	if (kerb_infer(KERB_MODEL_LIVE)) {
		cls_count(CLS_COUNT_NO_MODEL);
		return 0;
	}
	cls_decision_apply(!kerb_infer(KERB_MODEL_SHADOW));
	return 0;
}

#define CLS_DRAIN 32 /* evaluations of one run of the timer */

/* Evaluates up to this many pending jobs. */
__noinline int cls_drain(__u32 most)
{
	struct cls_work *w = cls_work();

	if (!w)
		return 0;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < CLS_DRAIN; i++) {
		if (i >= most || bpf_map_pop_elem(&due, &w->job))
			break;
		cls_evaluate_job();
	}
	return 0;
}

/* w->job is complete: evaluates it, or queues it. */
static __always_inline void cls_dispatch(struct cls_work *w)
{
	if (deferred == CLS_AT_ONCE) {
		cls_evaluate_job();
	} else if (deferred == CLS_USER) {
		w->window.time = w->job.time;
		__builtin_memcpy(w->window.values, w->job.values, sizeof(w->window.values));
		if (bpf_map_update_elem(&windows, &w->job.source, &w->window, BPF_ANY))
			cls_count(CLS_COUNT_NO_ROOM);
	} else if (bpf_map_push_elem(&due, &w->job, 0)) {
		cls_count(CLS_COUNT_NO_ROOM);
	}
}

/* Drops a packet of a blocked source, and checks the total number of drops. */
static __always_inline int cls_packet_drop(struct kerb_pkt *pkt, struct cls_work *w,
					   const struct cls_tunables *t, struct cls_fuse *z,
					   struct cls_block *b, __u32 reason)
{
	cls_add(b->dropped, 1);
	cls_count(reason == KERB_DROP_RATE ? CLS_COUNT_LIMITED : CLS_COUNT_DROPPED);
	if (packet_fuse) {
		cls_add(z->dropped, 1);
		if (z->packets >= 100 && z->dropped * 100 > z->packets * t->fuse_packets) {
			w->event.hits = 0;
			w->event.source = w->job.source;
			cls_fuse_blow(w, t, z, CLS_FUSE_PACKETS);
		}
	}
	return kerb_drop(pkt, reason);
}

static __always_inline int cls_rate_is_exceeded(struct cls_block *b, const struct cls_tunables *t,
						__u64 now)
{
	__u64 due = b->due > now ? b->due : now;

	if (due > now + t->rate_burst)
		return 1;
	b->due = due + t->rate_cost;
	return 0;
}

static __always_inline int cls_action_execute(struct kerb_pkt *pkt, struct cls_work *w,
					      const struct cls_tunables *t, struct cls_fuse *z,
					      struct cls_block *b)
{
	if (b->action == CLS_DROP)
		return cls_packet_drop(pkt, w, t, z, b, CLS_DROP_CLASSIFIED);
	if (b->action == CLS_RATE_LIMIT && cls_rate_is_exceeded(b, t, w->now))
		return cls_packet_drop(pkt, w, t, z, b, KERB_DROP_RATE);
#ifdef KERB_HOOK_TC
	if (b->action == CLS_MARK) {
		((struct __sk_buff *)pkt->ctx)->mark = t->mark;
		cls_count(CLS_COUNT_MARKED);
	}
#endif
	return KERB_NEXT;
}

/* Applies the block, if any, to a packet of w->job.source. */
static __always_inline int cls_enforce(struct kerb_pkt *pkt, struct cls_work *w, struct cls_fuse *z)
{
	const struct cls_tunables *t;
	struct cls_block *b;

	if (packet_fuse) {
		cls_epoch(z, w->now);
		cls_add(z->packets, 1);
	}
	if (!z->blocked)
		return KERB_NEXT;
	b = bpf_map_lookup_elem(&blocks, &w->job.source);
	if (!b)
		return KERB_NEXT;
	if (b->until && w->now >= b->until) {
		cls_unblock(z, &w->job.source);
		return KERB_NEXT;
	}
	t = cls_tunables(w);
	if (!t)
		return KERB_NEXT;
	cls_add(b->packets, 1);
	if (t->watch || z->blown) {
		cls_count(CLS_COUNT_WATCHED);
		return KERB_NEXT;
	}
	return cls_action_execute(pkt, w, t, z, b);
}

#endif
