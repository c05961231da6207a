/* SPDX-License-Identifier: Apache-2.0 */
/* The adaptive wait: what a receiver does while there is no packet, to get the median latency of
 * spinning and the latency tail of sleeping. This is the decision only: a state machine without
 * clock and system calls; kerb_intercept.c executes it.
 *
 * A sleeping thread is late by its wake-up: 5 us, or 40 on a virtual machine. A spinning thread is
 * not, until other tasks need its CPU: then the scheduler preempts it for whole ticks, 4 ms and
 * more. Therefore this wait
 *  - learns at which intervals packets or bursts arrive (T1), and how long before the next one (the
 *    lead) a sleep has to end so that the thread runs by then, as timers are late and packets
 *    early. It sleeps until that time, or until the packet if that is earlier, and only then spins;
 *  - spins all the time where packets come too fast or too irregularly for that, with gaps up to
 *    `reach`, and sleeps until the next packet when they stop;
 *  - rests voluntarily, briefly and often, so that other tasks need not preempt it: after a burst,
 *    where no packet is expected, before they need the CPU; elsewhere after they have preempted it.
 *    A thread at normal priority sleeps for each packet instead. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum wait_mode { WAIT_ADAPTIVE, WAIT_SPIN, WAIT_SLEEP };

/* How the scheduler treats the thread: SCHED_OTHER, SCHED_OTHER with nice -10 or less, SCHED_FIFO
 * or SCHED_RR. */
enum wait_standing { WAIT_ORDINARY, WAIT_PREFERRED, WAIT_REALTIME };

enum wait_kind {
	STEP_SPIN,  /* poll again at once */
	STEP_REST,  /* sleep until a time; packets do not end it */
	STEP_DOZE,  /* sleep until a time or a packet, whichever is first */
	STEP_SLEEP, /* sleep until a packet */
};

struct wait_step {
	enum wait_kind kind;
	uint64_t until;
};

/* All times in ns. */
struct wait_goals {
	enum wait_mode mode;
	uint64_t reach;	   /* the longest mean gap to spin through */
	uint64_t patience; /* how long packets may wait to be received as a batch; 0: not at all */
	/* of 1000 regular packets, how many are to find the thread running; below 1000 */
	uint32_t awake;
};

struct wait {
	struct wait_goals goals;
	/* WAIT_ORDINARY: gets an even share of its CPU, and spins only where no other task needs
	 * it */
	bool ordinary;
	/* the share of time that is always rested, of 1000: the kernel throttles real-time threads
	 * that never sleep */
	uint32_t least;

	uint64_t last, first; /* T1 of the last packet, and of the first packet of its burst */
	uint64_t length;      /* mean duration of a burst */
	uint64_t gap, spread; /* mean time between the starts of bursts, and its mean deviation */
	uint32_t strays;      /* outliers: gaps in a row that do not fit the mean */
	uint64_t lead;	      /* how long before the expected packet a sleep has to end */
	bool dozed;	      /* the last step was STEP_DOZE */
	uint64_t slip;	      /* mean lateness of timers */
	uint64_t gain;	      /* mean CPU time that other tasks get of a rest */
	/* share of the time to rest, of 1000; 0: no other task needs this CPU */
	uint32_t rest;
	uint64_t eased, step; /* last change of rest; time until it is reduced */
	uint64_t running;     /* time since which this thread runs */
};

void wait_init(struct wait *w, const struct wait_goals *goals, enum wait_standing standing);
/* wait_arrived updates the estimates for a packet; time: its T1. */
void wait_arrived(struct wait *w, uint64_t time);
/* wait_next returns what to do while there is no packet. */
struct wait_step wait_next(struct wait *w, uint64_t now);
/* wait_woke updates the estimates after a sleep; asked: the time for which its timer was set, 0 if
 * a packet ended it. */
void wait_woke(struct wait *w, uint64_t asked, uint64_t now);
/* wait_rested updates the estimates after a rest; gain: CPU time that other tasks got, ns. */
void wait_rested(struct wait *w, uint64_t gain);
/* wait_preempted increases the share of rest after other tasks have preempted the thread. */
void wait_preempted(struct wait *w, uint64_t now);
