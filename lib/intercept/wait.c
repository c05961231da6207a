/* SPDX-License-Identifier: Apache-2.0 */
#include "wait.h"

#define US 1000ULL

enum {
	FIRST_REST = 120, /* threads of nice -20 owe others 1 to 3%, real-time ones 5% (sched_rt_runtime_us; since 6.12 the fair
			   * server), net of the switches */
	LITTLE = 30,	  /* not worth resting */
	BEFORE_OTHERS = 250, /* at most, of those: the median stays that of spinning */
	ONE_OF_MANY = 600,   /* at most, of ordinary threads: a CPU shared by three */
	STRAYS = 4,	 /* after so many long gaps it is another stream */
};

#define WORTH	  (30 * US)   /* shorter sleeps cost more than they save */
#define MOST_SLIP (200 * US)
#define LOST	  (500 * US)  /* a sleep that ends so late was held up by others */
#define FAST	  (100000 * US) /* the least and the longest time between two steps of taking rest back */
#define SLOW	  (10000000 * US)

static uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* track moves a mean and a mean deviation, as RFC 6298 does. */
static void track(uint64_t *mean, uint64_t *spread, uint64_t sample)
{
	int64_t d = (int64_t)(sample - *mean), away = d < 0 ? -d : d;

	*mean += d / 8;
	*spread += (away - (int64_t)*spread) / 4;
}

void wait_init(struct wait *w, enum wait_mode mode, uint64_t reach, uint64_t patience, enum wait_standing standing)
{
	*w = (struct wait){ .mode = mode, .reach = reach, .patience = patience, .gap = UINT64_MAX / 16, .slip = 50 * US,
		.slip_spread = 10 * US, .least = standing == WAIT_REALTIME ? FIRST_REST : 0,
		.most = standing == WAIT_ORDINARY ? ONE_OF_MANY : BEFORE_OTHERS, .step = FAST };
	w->rest = w->least;
}

void wait_arrived(struct wait *w, uint64_t time)
{
	uint64_t gap = time > w->last ? time - w->last : 0; /* packets of several CPUs may overtake each other */
	bool first = !w->last;

	w->last = max(time, w->last);
	if (first)
		return;
	if (w->gap >= UINT64_MAX / 16 || (gap > 8 * w->gap && ++w->strays >= STRAYS)) {
		w->gap = gap;
		w->spread = gap / 2;
		w->strays = 0;
	} else if (gap <= 8 * w->gap) {
		track(&w->gap, &w->spread, gap);
		w->strays = 0;
	}
}

/* A rest is longer the more is owed: each one may end while somebody else's slice does, which holds it up to the next tick. */
static uint64_t rest_length(const struct wait *w) { return 40 * US + 150 * US * w->rest / 1000 * w->rest / 1000; }
static uint64_t run_length(const struct wait *w) { return rest_length(w) * (1000 - w->rest) / w->rest; }

/* ease takes the rest back by a quarter from time to time. To find out that others are still there costs a tick, so the steps
 * get longer each time that it was too early. */
static void ease(struct wait *w, uint64_t now)
{
	if (w->rest <= w->least || now < w->eased + w->step)
		return;
	w->eased = now;
	w->rest -= w->rest / 4;
	if (w->rest <= max(LITTLE, w->least)) {
		w->rest = w->least;
		w->step = max(w->step / 2, FAST);
	}
}

/* spin is a spin, or a rest if it is time for one. */
static struct wait_step spin(struct wait *w, uint64_t now)
{
	ease(w, now);
	if (!w->rest || now - w->running < run_length(w))
		return (struct wait_step){ STEP_SPIN, 0 };
	return (struct wait_step){ STEP_REST, now + rest_length(w) - min(w->slip, rest_length(w) - US) };
}

static struct wait_step adapt(struct wait *w, uint64_t now)
{
	uint64_t margin = min(w->slip + 3 * w->slip_spread, MOST_SLIP);
	uint64_t due = w->last + w->gap, early = margin + 2 * w->spread, late = margin + 4 * w->spread;
	bool often = w->gap < w->reach, regular = early + late < w->gap && early + late < w->reach;

	if (w->patience && now < w->last + max(w->patience, w->reach))
		return (struct wait_step){ STEP_REST, now + w->patience };
	if (regular && now + early + WORTH < due)
		return (struct wait_step){ STEP_DOZE, due - early };
	if (regular && now < due + late)
		return (struct wait_step){ STEP_SPIN, 0 }; /* dozing leaves others enough */
	if (often && now < due + w->gap)
		return spin(w, now);
	return (struct wait_step){ STEP_SLEEP, 0 };
}

struct wait_step wait_next(struct wait *w, uint64_t now)
{
	switch (w->mode) {
	case WAIT_SPIN:
		return (struct wait_step){ STEP_SPIN, 0 };
	case WAIT_SLEEP:
		return (struct wait_step){ STEP_SLEEP, 0 };
	default:
		return w->last ? adapt(w, now) : (struct wait_step){ STEP_SLEEP, 0 };
	}
}

void wait_woke(struct wait *w, uint64_t asked, uint64_t now)
{
	w->running = now;
	if (!asked || now < asked)
		return;
	if (now - asked > LOST)
		wait_preempted(w, now);
	else
		track(&w->slip, &w->slip_spread, now - asked);
}

void wait_preempted(struct wait *w, uint64_t now)
{
	if (now < w->eased + 4 * w->step)
		w->step = min(2 * w->step, SLOW);
	w->rest = (uint32_t)min(w->rest + max(FIRST_REST, w->rest / 2), w->most);
	w->eased = w->running = now;
}
