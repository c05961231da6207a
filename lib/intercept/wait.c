/* SPDX-License-Identifier: Apache-2.0 */
#include "wait.h"

#define US 1000ULL

enum {
	/* real-time threads owe others 5% (sched_rt_runtime_us; since 6.12 the fair server), net of
	 * interrupts */
	REALTIME_REST = 100,
	FIRST_REST = 70,     /* those of nice -20 owe 1 to 3%, */
	FREE_REST = 30,	     /* and nothing if they have taken that where it delays nothing */
	LITTLE = 20,	     /* not worth resting */
	MOST_REST = 250,     /* the median stays that of spinning */
	STRAYS = 4,	     /* after so many long gaps it is another stream */
};

#define WORTH	   (30 * US)  /* shorter sleeps cost more than they save */
#define TOGETHER   (15 * US)  /* packets that come so soon behind another one are of its burst, */
#define LONGEST	   (200 * US) /* up to here: what continues for longer is none */
#define BEHIND	   (5 * US)   /* a burst: when a rest has to begin that is to end before the next */
#define LEAST_LEAD (2 * US)
#define LEAST_REST (2 * US)   /* beyond what timers are late */
#define LEAST_GAIN (5 * US)
#define LOST	   (500 * US) /* a sleep that ends so late was held up by others */
/* Between two steps of taking rest back. */
#define BRIEF	   (12500 * US)	   /* the least, of ordinary threads */
#define FAST	   (100000 * US)   /* of others */
#define SLOW	   (10000000 * US) /* the longest */
#define NEVER	   (1ULL << 60)

static uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* track moves a mean and a mean deviation, as RFC 6298 does. */
static void track(uint64_t *mean, uint64_t *spread, uint64_t sample)
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
			    .step = FAST };
	w->rest = w->least;
}

/* aim learns the lead from what came of the last one: a quantile of how early packets and how late
 * timers are, by steps up and down that cancel out when as many packets find this thread awake as
 * are to. Where a lead is too long for a sleep, it is tried again from time to time. */
static void aim(struct wait *w, uint64_t time)
{
	uint64_t step = w->lead / 1024;

	if (!w->dozed)
		w->lead -= step / 4;
	else if (time < w->running)
		w->lead += step * w->goals.awake / (1000 - w->goals.awake);
	else
		w->lead -= step;
	w->lead = max(min(w->lead, w->goals.reach / 2), LEAST_LEAD);
	w->dozed = false;
}

/* beat learns from a burst's first packet. */
static void beat(struct wait *w, uint64_t gap)
{
	if (w->gap >= NEVER || (gap > 8 * w->gap && ++w->strays >= STRAYS)) {
		w->gap = gap;
		w->spread = gap / 2;
		w->strays = 0;
	} else if (gap <= 8 * w->gap) {
		track(&w->gap, &w->spread, gap);
		w->strays = 0;
	}
}

void wait_arrived(struct wait *w, uint64_t time)
{
	uint64_t first = w->first, last = w->last;

	time = max(time, last); /* packets of several CPUs may overtake each other */
	w->last = time;
	if (last && time < last + TOGETHER && time < first + LONGEST)
		return;
	w->first = time;
	if (!last)
		return;
	w->length += ((int64_t)(last - first) - (int64_t)w->length) / 8;
	aim(w, time);
	beat(w, time - first);
}

/* over is when the last burst is. */
static uint64_t over(const struct wait *w)
{
	return w->first + (w->length ? w->length + w->length / 4 + 3 * US : 0);
}

/* A rest is longer the more is owed: each one may end while another program's slice does, which
 * holds it up to the next tick. */
static uint64_t rest_length(const struct wait *w)
{
	return 40 * US + 150 * US * w->rest / 1000 * w->rest / 1000;
}

/* room is how long a rest is that begins behind a burst and is over before the next, and so delays
 * nothing. 0: none is. */
static uint64_t room(const struct wait *w)
{
	uint64_t begin = over(w) + BEHIND, due = w->first + w->gap;

	return w->gap < w->goals.reach && begin + w->slip + LEAST_REST < due
		       ? min(due - begin, rest_length(w))
		       : 0;
}

/* ease takes the rest back by a quarter from time to time; an ordinary thread, which sleeps
 * meanwhile, tries whether it is alone. */
static void ease(struct wait *w, uint64_t now)
{
	if (w->rest <= w->least || now < w->eased + w->step)
		return;
	w->eased = now;
	w->rest -= w->rest / 4;
	if (w->ordinary || w->rest <= max(LITTLE, w->least))
		w->rest = w->least;
}

/* spin is a spin, or a rest if it is time for one: behind a burst if that comes soon enough. */
static struct wait_step spin(struct wait *w, uint64_t now)
{
	uint64_t length = room(w),
		 rest = length && !w->ordinary ? max(w->rest, FREE_REST) : w->rest;
	uint64_t run = rest ? w->gain * (1000 - rest) / rest : NEVER, ran = now - w->running;

	if (ran < run || (length && ran < 2 * run && (now < over(w) || now > over(w) + BEHIND)))
		return (struct wait_step){ STEP_SPIN, 0 };
	if (!length)
		length = rest_length(w);
	return (struct wait_step){ STEP_REST, now + length - min(w->slip, length - US) };
}

static struct wait_step adapt(struct wait *w, uint64_t now)
{
	uint64_t due = w->first + w->gap, late = w->lead + 4 * w->spread, reach = w->goals.reach,
		 patience = w->goals.patience;
	/* before a packet is due, for a sleep that is worth it */
	uint64_t least = w->lead + WORTH - min(w->slip, WORTH - US);
	bool regular = w->length + least < w->gap && w->lead + late < reach, often = w->gap < reach;
	/* what it spins it is short of when a packet comes */
	bool crowded = w->ordinary && w->rest;

	ease(w, now);
	if (patience && now < w->last + max(patience, reach))
		return (struct wait_step){ STEP_REST, now + patience };
	if (regular && now < over(w) && now < w->last + TOGETHER)
		return (struct wait_step){ STEP_SPIN, 0 };
	if (regular && !crowded && now + least < due) {
		w->dozed = true;
		return (struct wait_step){ STEP_DOZE, due - w->lead };
	}
	if (!crowded && (regular || often) && now < due + (regular ? late : w->gap))
		return spin(w, now);
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
		w->slip += ((int64_t)(now - asked) - (int64_t)w->slip) / 8;
}

/* To find out that others are still there costs a tick, so steps get longer each time that it was
 * too early. */
void wait_preempted(struct wait *w, uint64_t now)
{
	w->step = now < w->eased + 4 * w->step ? min(2 * w->step, SLOW)
		  : w->ordinary		       ? BRIEF
					       : FAST;
	w->rest = (uint32_t)min(w->rest + max(FIRST_REST, w->rest / 2), MOST_REST);
	w->eased = w->running = now;
}

void wait_rested(struct wait *w, uint64_t gain)
{
	w->gain += ((int64_t)min(gain, LOST) - (int64_t)w->gain) / 8;
	w->gain = max(w->gain, LEAST_GAIN);
}
