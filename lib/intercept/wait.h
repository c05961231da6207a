/* SPDX-License-Identifier: Apache-2.0 */
/* The adaptive wait: what a receiver does while there is no packet, so that it has the median of
 * spinning and the tail of sleeping. This is the decision alone, without clock, system call or
 * memory but its own; kerb_intercept.c carries it out.
 *
 * A thread that sleeps is late by its wake-up: 5 us, or 40 on a virtual machine. One that spins is
 * not, until others want its CPU: then the scheduler takes it away for whole ticks, 4 ms and more.
 * So this wait
 *  - learns when packets come, one by one or in bursts (T1), and how long before that it has to be
 * woken so that it runs by then,
 *    as timers are late and packets early; it sleeps until that time, or until the packet comes,
 * and spins for it only then;
 *  - spins through where packets come too fast or too irregularly for that, but not less often than
 * `reach`; and sleeps for
 *    good when they stop;
 *  - rests by itself, shortly and often, as much as makes others leave its CPU alone: behind a
 * burst, where nothing comes, before
 *    they want it; elsewhere when they have taken it. A thread at normal priority sleeps for each
 * packet then. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum wait_mode { WAIT_ADAPTIVE, WAIT_SPIN, WAIT_SLEEP };

/* How the scheduler sees the thread. */
enum wait_standing { WAIT_ORDINARY, WAIT_PREFERRED, WAIT_REALTIME };

enum wait_kind {
	STEP_SPIN,  /* look again at once */
	STEP_REST,  /* sleep until a time; packets do not wake */
	STEP_DOZE,  /* sleep until a time or a packet */
	STEP_SLEEP, /* sleep until a packet */
};

struct wait_step {
	enum wait_kind kind;
	uint64_t until;
};

/* All times in ns. */
struct wait_goals {
	enum wait_mode mode;
	uint64_t reach;	   /* a longer gap is not spun through */
	uint64_t patience; /* packets may wait so long to be taken together */
	/* of 1000 packets that come regularly, how many are to be spun for; below 1000 */
	uint32_t awake;
};

struct wait {
	struct wait_goals goals;
	/* shares its CPU evenly, and spins only where no other task wants it */
	bool ordinary;
	/* rest that is always taken, of 1000: the kernel stops real-time threads that take none */
	uint32_t least;

	uint64_t last, first;  /* T1 of the last packet, and of the first one of its burst */
	uint64_t length;       /* of a burst, the mean */
	uint64_t gap, spread;  /* mean time from burst to burst, and its mean deviation */
	uint32_t strays;       /* gaps in a row that are none of this stream's */
	uint64_t lead;	       /* how long before a packet is due a sleep has to end */
	bool dozed;	       /* the last sleep was for the next packet */
	uint64_t slip;	       /* how late timers are, the mean */
	uint64_t gain;	       /* mean CPU time that other threads gain from a sleep */
	/* part of the time to rest, of 1000; 0: no other task wants this CPU */
	uint32_t rest;
	uint64_t eased, step;  /* when rest changed last; how long until some of it is taken back */
	uint64_t running;      /* since when this thread runs */
};

void wait_init(struct wait *w, const struct wait_goals *goals, enum wait_standing standing);
/* wait_arrived learns from a packet's T1. */
void wait_arrived(struct wait *w, uint64_t time);
/* wait_next is what to do now that there is no packet. */
struct wait_step wait_next(struct wait *w, uint64_t now);
/* wait_woke learns from a sleep's end; asked: the time that it was to end at, 0 if it was a packet
 * that ended it. */
void wait_woke(struct wait *w, uint64_t asked, uint64_t now);
/* wait_rested learns how long others have had the CPU in a rest. */
void wait_rested(struct wait *w, uint64_t gain);
/* wait_preempted learns that others have had the CPU meanwhile. */
void wait_preempted(struct wait *w, uint64_t now);
