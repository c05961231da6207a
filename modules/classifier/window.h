/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Sources and their windows: allocation of records, the end of a slice, the contents of a
 * window. */
#ifndef CLS_WINDOW_H
#define CLS_WINDOW_H

#include "ieee802154.h"

/* Work space of one CPU. */
struct cls_work {
	struct cls_frame frame;
	struct cls_due job;	   /* the source of this packet, and its evaluation */
	struct cls_event event;
	struct cls_window window;
	struct cls_block block;
	struct cls_prefix prefix;
	__u32 due;		   /* the job is complete */
	/* of the values and of allowed: see KERB_TUNABLES. Not determined yet: CLS_NO_HALF */
	__u32 half;
	__u64 held;		   /* 0: the window was empty */
	struct cls_lapse lapse;	   /* of the timer, or for it */
	__u64 total[CLS_SUMS];	   /* sums of the record at one moment */
	__u64 sum[CLS_SUMS];	   /* of the window */
	struct cls_range length, gap;
	__u64 now, before;	   /* time of this packet and of the previous one */
	struct cls_record fresh; /* initial contents of records */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cls_work);
} work SEC(".maps");

static __always_inline struct cls_work *cls_work(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&work, &zero);
}

#define CLS_NO_HALF 2

/* The values that apply to this packet, or this run of the timer, until its end. Most need none. */
static __always_inline const struct cls_tunables *cls_tunables(struct cls_work *w)
{
	if (w->half == CLS_NO_HALF)
		w->half = kerb_tunables_half();
	return kerb_tunables(w->half);
}

static __always_inline struct cls_fuse *cls_fuse(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&fuse, &zero);
}

/* Sets a note with the last evaluation of the packet's source: version, class and score. */
static __always_inline void cls_note_evaluation(struct kerb_pkt *pkt, const struct cls_record *r)
{
	if (r->version)
		kerb_note(pkt, CLS_NOTE_CLASS,
			  (__u64)(r->version & 0xffffff) << 24 | (r->class & 0xff) << 16 |
				  (r->score & 0xffff));
}

static __always_inline void cls_count(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&counts, &what);

	if (n)
		*n += 1;
}

/* The time. Flows are measured in microseconds; ticks are sufficient for everything else. A
 * separate function, so that tests can replace the clock. */
static __noinline __u64 cls_clock(void)
{
	return extractor == CLS_FLOW ? bpf_ktime_get_ns() : kerb_now();
}

#define cls_add(counter, n) __sync_fetch_and_add(&(counter), n)

static __always_inline __u64 cls_epoch_ns(void)
{
	return window_ns ?: 1000000000;
}

static __always_inline __u64 cls_slice_ns(void)
{
	return sliding ? window_ns / CLS_SLICES : window_ns;
}

/* Distinguishes windows of one config from those of another. */
static __always_inline __u32 cls_config_id(void)
{
	return window_ns / 1000 << 1 | sliding;
}

/* Changes *place from one value to another: returns 1 on the one CPU that does. */
static __always_inline int cls_compare_and_swap(__u64 *place, __u64 from, __u64 to, __u32 which)
{
	__u32 index = which & (CLS_LOCKS - 1);
	struct cls_lock *l = bpf_map_lookup_elem(&locks, &index);
	int won;

	if (!l)
		return 0;
	bpf_spin_lock(&l->lock);
	won = *(volatile __u64 *)place == from;
	if (won)
		*(volatile __u64 *)place = to;
	bpf_spin_unlock(&l->lock);
	return won;
}

/* Number of sources in the window so far; blocked ones count even if they are silent. */
static __always_inline __u64 cls_source_count(const struct cls_fuse *z)
{
	return (__u64)z->judged + z->held;
}

/* Starts a new window of the counters over all sources. */
static __always_inline void cls_epoch(struct cls_fuse *z, __u64 now)
{
	__u64 window = z->window, n = now / cls_epoch_ns();

	/* by a CPU that is ahead; larger differences come from a config with shorter windows */
	if (window == n || window == n + 1)
		return;
	if (!cls_compare_and_swap(&z->window, window, n, 0))
		return;
	z->sources_before = window + 1 == n ? cls_source_count(z) : 0;
	z->judged = 0;
	z->held = z->blocked;
	z->packets = 0;
	z->dropped = 0;
	z->admitted = 0;
	z->promoted = 0;
}

/* Returns whether a source without a record gets one: see struct cls_newcomer. */
static __always_inline int cls_source_admit(struct cls_work *w, struct cls_fuse *z)
{
	struct cls_newcomer *n, new = {.first = w->now, .packets = 1};
	const struct cls_tunables *t;

	cls_epoch(z, w->now);
	if (z->admitted < capacity / 8) {
		cls_add(z->admitted, 1);
		return 1;
	}
	n = bpf_map_lookup_elem(&newcomers, &w->job.source);
	if (!n) {
		bpf_map_update_elem(&newcomers, &w->job.source, &new, BPF_NOEXIST);
		return 0;
	}
	cls_add(n->packets, 1);
	t = cls_tunables(w);
	if (!t || z->promoted >= capacity / 8 ||
	    (n->packets < t->probation_packets && w->now - n->first < cls_epoch_ns()))
		return 0;
	cls_add(z->promoted, 1);
	bpf_map_delete_elem(&newcomers, &w->job.source);
	return 1;
}

static __always_inline void cls_range_clear(struct cls_range *r)
{
	r->low = ~0U;
	r->high = 0;
}

/* The record of the source, or NULL while it is a newcomer. */
static __always_inline struct cls_record *cls_source_lookup(struct cls_work *w, struct cls_fuse *z)
{
	struct cls_record *r = bpf_map_lookup_elem(&records, &w->job.source);

	if (r)
		return r;
	if (!cls_source_admit(w, z)) {
		cls_count(CLS_COUNT_PROBATION);
		return 0;
	}
	w->fresh.first = w->now;
	w->fresh.slice = window_ns ? w->now / cls_slice_ns() : 0;
	w->fresh.span = cls_config_id();
	for (int i = 0; i < CLS_SLICES; i++) {
		cls_range_clear(&w->fresh.past[i].length);
		cls_range_clear(&w->fresh.past[i].gap);
	}
	if (!bpf_map_update_elem(&records, &w->job.source, &w->fresh, BPF_NOEXIST))
		cls_count(CLS_COUNT_ADMITTED);
	return bpf_map_lookup_elem(&records, &w->job.source);
}

/* The current slice of the record. */
static __always_inline struct cls_slice *cls_slice(struct cls_record *r, __u64 number)
{
	return &r->past[number & (CLS_SLICES - 1)];
}

/* Extends a range to a value. Two CPUs at the same time may miss one. */
static __always_inline void cls_range_extend(struct cls_range *r, __u64 value)
{
	__u32 v = value > KERB_FEATURE_LIMIT ? KERB_FEATURE_LIMIT : value;

	if (v < r->low)
		r->low = v;
	if (v > r->high)
		r->high = v;
}

static __always_inline void cls_window_merge(struct cls_range *r, const struct cls_range *other)
{
	if (other->low < r->low)
		r->low = other->low;
	if (other->high > r->high)
		r->high = other->high;
}

/* The contents of the window that ends with a slice: w->sum, length and gap. */
static __always_inline void cls_window_of(struct cls_work *w, struct cls_record *r, __u64 slice)
{
	struct cls_slice *base = cls_slice(r, sliding ? slice + 1 : slice);
	__u64 any = 0;

	for (int i = 0; i < CLS_SUMS; i++) {
		w->total[i] = *(volatile __u64 *)&r->sum[i];
		w->sum[i] = w->total[i] - base->sum[i];
		any |= w->sum[i];
	}
	w->held = any;
	cls_range_clear(&w->length);
	cls_range_clear(&w->gap);
	for (int i = 0; i < (sliding ? CLS_SLICES : 1); i++) {
		cls_window_merge(&w->length, &cls_slice(r, slice - i)->length);
		cls_window_merge(&w->gap, &cls_slice(r, slice - i)->gap);
	}
}

/* Starts slice n, and skips slices without packets. */
static __always_inline void cls_slice_begin(struct cls_work *w, struct cls_record *r, __u64 slice,
					    __u64 n)
{
	for (int i = 1; i <= CLS_SLICES; i++) {
		struct cls_slice *s = cls_slice(r, slice + i);

		if (slice + i > n)
			break;
		__builtin_memcpy(s->sum, w->total, sizeof(s->sum));
		cls_range_clear(&s->length);
		cls_range_clear(&s->gap);
	}
}

/* The last whole window before n, for the features of the next ones. */
static __always_inline void cls_window_save(struct cls_work *w, struct cls_record *r, __u64 slice,
					    __u64 n)
{
	__u64 was = sliding ? slice / CLS_SLICES : slice, is = sliding ? n / CLS_SLICES : n;
	const struct cls_slice *base = cls_slice(r, sliding ? 0 : slice);

	if (was == is)
		return;
	for (int i = 0; i < CLS_BEFORE; i++) {
		__u64 n = w->total[i] - base->sum[i];

		r->before[i] = was + 1 != is ? 0 : n > KERB_FEATURE_LIMIT ? KERB_FEATURE_LIMIT : n;
	}
}

/* Restarts counting in slice n: the previous counters are of windows of another length. */
static __always_inline void cls_window_restart(struct cls_work *w, struct cls_record *r, __u64 n)
{
	cls_slice_begin(w, r, n - CLS_SLICES, n);
	__builtin_memset(r->before, 0, sizeof(r->before));
	r->span = cls_config_id();
	*(volatile __u64 *)&r->slice = n;
}

/* Ends the slice of the record if its time is over: returns 1 on the one CPU that does, which then
 * takes the features from w->sum, length and gap, and calls cls_window_closed(). CPUs that count in
 * the meantime do so for one of the two slices. */
static __always_inline int cls_window_close(struct cls_work *w, struct cls_record *r, __u64 *slice)
{
	__u64 n;
	int stale;

	if (!window_ns)
		return 0;
	n = w->now / cls_slice_ns();
	*slice = *(volatile __u64 *)&r->slice;
	stale = r->span != cls_config_id();
	if (*slice & CLS_ROLLING || (*slice >= n && !stale) ||
	    !cls_compare_and_swap(&r->slice, *slice, n | CLS_ROLLING, w->job.source.addr[15]))
		return 0;
	cls_window_of(w, r, *slice);
	if (stale) {
		cls_window_restart(w, r, n);
		return 0;
	}
	w->job.time = (*slice + 1) * cls_slice_ns();
	return 1;
}

static __always_inline void cls_window_closed(struct cls_work *w, struct cls_record *r, __u64 slice)
{
	__u64 n = w->now / cls_slice_ns();

	if (n - slice > 1 || !w->held)
		cls_count(CLS_COUNT_EMPTY);
	cls_window_save(w, r, slice, n);
	cls_slice_begin(w, r, slice, n);
	*(volatile __u64 *)&r->slice = n;
}

/* Makes the timer end the slice of the record, in case no packet of its source does. */
static __always_inline void cls_timer_arm(struct cls_work *w, struct cls_record *r)
{
	__u64 slice = *(volatile __u64 *)&r->slice;

	if (!lapse_ns || slice & CLS_ROLLING || r->armed == slice + 1)
		return;
	r->armed = slice + 1;
	w->lapse.source = w->job.source;
	w->lapse.due = (slice + 1) * cls_slice_ns();
	if (bpf_map_push_elem(&lapsing, &w->lapse, 0))
		cls_count(CLS_COUNT_NO_ROOM);
}

/* Returns whether this packet makes an evaluation of the window so far due. */
static __always_inline int cls_evaluation_due(struct cls_work *w, struct cls_record *r)
{
	__u64 slice = *(volatile __u64 *)&r->slice;

	if (when == CLS_PER_WINDOW || slice & CLS_ROLLING)
		return 0;
	cls_add(r->pending, 1);
	if (when == CLS_EVERY_N && r->pending < every)
		return 0;
	r->pending = 0;
	cls_window_of(w, r, slice);
	w->job.time = w->now;
	return 1;
}

/* Feature i of the evaluation. */
static __always_inline void cls_value(struct cls_work *w, __u32 i, __u64 value)
{
	w->job.values[i] = value > KERB_FEATURE_LIMIT ? KERB_FEATURE_LIMIT : value;
}

static __always_inline __u64 cls_mean(__u64 sum, __u64 n)
{
	return n ? sum / n : 0;
}

/* Returns the square root, rounded down; without branches, as the verifier would walk each path. */
static __always_inline __u64 cls_sqrt(__u64 square)
{
	__u64 root = 0;

	if (square >> 62)
		square = (1ULL << 62) - 1;
#pragma clang loop unroll(disable)
	for (int bit = 30; bit >= 0; bit--) {
		__u64 try = root | 1ULL << bit, over = (square - try * try) >> 63;

		root |= (1 - over) << bit;
	}
	return root;
}

/* Standard deviation. */
static __always_inline __u64 cls_deviation(__u64 sum, __u64 squares, __u64 n)
{
	__u64 mean = cls_mean(sum, n);

	return n ? cls_sqrt(squares / n - mean * mean) : 0;
}

#endif
