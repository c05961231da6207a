/* SPDX-License-Identifier: Apache-2.0 */
#include "wait.h"

#define US 1000ULL

enum {
	/* of 1000. The kernel reserves 5% for tasks that are not real-time (sched_rt_runtime_us;
	 * since Linux 6.12 the fair server), not counting interrupts */
	REALTIME_REST = 100,
	FIRST_REST = 70,      /* other tasks are due 1 to 3% next to a thread of nice -20 */
	FREE_REST = 30,	      /* where it delays no packet, so that they need not preempt */
	NEGLIGIBLE_REST = 20, /* below it the rest is ended */
	MAX_REST = 250,	      /* so that the median latency stays that of spinning */
	MAX_STRAYS = 4,	      /* long gaps in a row until the mean starts again */
};

#define MIN_SLEEP     (30 * US)	 /* shorter sleeps cost more than they save */
#define BURST_GAP     (15 * US)	 /* packets with smaller gaps are of one burst */
#define MAX_BURST     (200 * US) /* a longer burst is split */
#define REST_DELAY    (5 * US)	 /* after a burst: a later rest would not end in time */
#define MIN_LEAD      (2 * US)
#define MIN_REST      (2 * US) /* in addition to the lateness of timers */
#define MIN_GAIN      (5 * US)
#define HELD_UP	      (500 * US) /* a sleep that ends later was delayed by other tasks */
/* Intervals at which the rest is reduced. */
#define ORDINARY_EASE (12500 * US)    /* the first one, WAIT_ORDINARY */
#define MIN_EASE      (100000 * US)   /* the first one, otherwise */
#define MAX_EASE      (10000000 * US) /* the longest one */
#define NEVER	   (1ULL << 60)

static uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* update_mean updates a mean and a mean deviation like the RTT estimator of RFC 6298, section 2. */
static void update_mean(uint64_t *mean, uint64_t *spread, uint64_t sample)
{
	int64_t d = (int64_t)(sample - *mean), away = d < 0 ? -d : d;

	*mean += d / 8;
	*spread += (away - (int64_t)*spread) / 4;
}

void wait_init(struct wait *w, const struct wait_goals *goals, enum wait_standing standing)
{
	*w = (struct wait){ .goals = *goals,
			    .gap = NEVER,
			    .lead = 40 * US,
			    .slip = 50 * US,
			    .gain = 20 * US,
			    .ordinary = standing == WAIT_ORDINARY,
			    .least = standing == WAIT_REALTIME ? REALTIME_REST : 0,
			    .step = MIN_EASE };
	w->rest = w->least;
}

/* update_lead estimates the lead as a quantile of how early packets and how late timers are: it
 * steps up if the packet came before the thread ran, and down otherwise, by sizes that cancel out
 * when the share goals.awake of packets finds the thread running. Without a timed sleep it decays,
 * so that one is tried again from time to time. */
static void update_lead(struct wait *w, uint64_t time)
{
	uint64_t step = w->lead / 1024;

	if (!w->dozed)
		w->lead -= step / 4;
	else if (time < w->running)
		w->lead += step * w->goals.awake / (1000 - w->goals.awake);
	else
		w->lead -= step;
	w->lead = max(min(w->lead, w->goals.reach / 2), MIN_LEAD);
	w->dozed = false;
}

/* update_gap updates the mean gap; gap: time between the first packets of two bursts. */
static void update_gap(struct wait *w, uint64_t gap)
{
	if (w->gap >= NEVER || (gap > 8 * w->gap && ++w->strays >= MAX_STRAYS)) {
		w->gap = gap;
		w->spread = gap / 2;
		w->strays = 0;
	} else if (gap <= 8 * w->gap) {
		update_mean(&w->gap, &w->spread, gap);
		w->strays = 0;
	}
}

void wait_arrived(struct wait *w, uint64_t time)
{
	uint64_t first = w->first, last = w->last;

	time = max(time, last); /* packets of several CPUs may overtake each other */
	w->last = time;
	if (last && time < last + BURST_GAP && time < first + MAX_BURST)
		return;
	w->first = time;
	if (!last)
		return;
	w->length += ((int64_t)(last - first) - (int64_t)w->length) / 8;
	update_lead(w, time);
	update_gap(w, time - first);
}

/* burst_end returns when the last burst is expected to be over. */
static uint64_t burst_end(const struct wait *w)
{
	return w->first + (w->length ? w->length + w->length / 4 + 3 * US : 0);
}

/* rest_length returns how long a rest is: the larger the share of rest, the longer, as each rest
 * may end within the time slice of another task, which delays it to the next tick. */
static uint64_t rest_length(const struct wait *w)
{
	return 40 * US + 150 * US * w->rest / 1000 * w->rest / 1000;
}

/* gap_rest_length returns the length of a rest after a burst that ends before the next burst, and
 * so delays no packet; 0: the gap is too short. */
static uint64_t gap_rest_length(const struct wait *w)
{
	uint64_t begin = burst_end(w) + REST_DELAY, due = w->first + w->gap;

	return w->gap < w->goals.reach && begin + w->slip + MIN_REST < due
		       ? min(due - begin, rest_length(w))
		       : 0;
}

/* reduce_rest reduces the share of rest by a quarter from time to time. An ordinary thread, which
 * sleeps for each packet meanwhile, ends it at once, to find out whether it has the CPU to
 * itself. */
static void reduce_rest(struct wait *w, uint64_t now)
{
	if (w->rest <= w->least || now < w->eased + w->step)
		return;
	w->eased = now;
	w->rest -= w->rest / 4;
	if (w->ordinary || w->rest <= max(NEGLIGIBLE_REST, w->least))
		w->rest = w->least;
}

/* spin_or_rest returns STEP_SPIN, or STEP_REST if a rest is due: after a burst if that ends
 * soon. */
static struct wait_step spin_or_rest(struct wait *w, uint64_t now)
{
	uint64_t length = gap_rest_length(w),
		 rest = length && !w->ordinary ? max(w->rest, FREE_REST) : w->rest;
	uint64_t run = rest ? w->gain * (1000 - rest) / rest : NEVER, ran = now - w->running;

	if (ran < run ||
	    (length && ran < 2 * run && (now < burst_end(w) || now > burst_end(w) + REST_DELAY)))
		return (struct wait_step){ STEP_SPIN, 0 };
	if (!length)
		length = rest_length(w);
	return (struct wait_step){ STEP_REST, now + length - min(w->slip, length - US) };
}

static struct wait_step adaptive_step(struct wait *w, uint64_t now)
{
	uint64_t due = w->first + w->gap, late = w->lead + 4 * w->spread, reach = w->goals.reach,
		 patience = w->goals.patience;
	/* the shortest time before the expected packet that is worth a sleep */
	uint64_t least = w->lead + MIN_SLEEP - min(w->slip, MIN_SLEEP - US);
	bool regular = w->length + least < w->gap && w->lead + late < reach, often = w->gap < reach;
	/* other tasks need the CPU: what it spins is missing when a packet comes */
	bool crowded = w->ordinary && w->rest;

	reduce_rest(w, now);
	if (patience && now < w->last + max(patience, reach))
		return (struct wait_step){ STEP_REST, now + patience };
	if (regular && now < burst_end(w) && now < w->last + BURST_GAP)
		return (struct wait_step){ STEP_SPIN, 0 };
	if (regular && !crowded && now + least < due) {
		w->dozed = true;
		return (struct wait_step){ STEP_DOZE, due - w->lead };
	}
	if (!crowded && (regular || often) && now < due + (regular ? late : w->gap))
		return spin_or_rest(w, now);
	w->dozed = false;
	return (struct wait_step){ STEP_SLEEP, 0 };
}

struct wait_step wait_next(struct wait *w, uint64_t now)
{
	switch (w->goals.mode) {
	case WAIT_SPIN:
		return (struct wait_step){ STEP_SPIN, 0 };
	case WAIT_SLEEP:
		return (struct wait_step){ STEP_SLEEP, 0 };
	default:
		return w->last ? adaptive_step(w, now) : (struct wait_step){ STEP_SLEEP, 0 };
	}
}

void wait_woke(struct wait *w, uint64_t asked, uint64_t now)
{
	w->running = now;
	if (!asked || now < asked)
		return;
	if (now - asked > HELD_UP)
		wait_preempted(w, now);
	else
		w->slip += ((int64_t)(now - asked) - (int64_t)w->slip) / 8;
}

/* Reducing the rest too early costs a tick, so the interval doubles each time that this happens. */
void wait_preempted(struct wait *w, uint64_t now)
{
	w->step = now < w->eased + 4 * w->step ? min(2 * w->step, MAX_EASE)
		  : w->ordinary		       ? ORDINARY_EASE
					       : MIN_EASE;
	w->rest = (uint32_t)min(w->rest + max(FIRST_REST, w->rest / 2), MAX_REST);
	w->eased = w->running = now;
}

void wait_rested(struct wait *w, uint64_t gain)
{
	w->gain += ((int64_t)min(gain, HELD_UP) - (int64_t)w->gain) / 8;
	w->gain = max(w->gain, MIN_GAIN);
}
