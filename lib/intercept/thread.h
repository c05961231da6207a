/* SPDX-License-Identifier: Apache-2.0 */
/* The receiving thread and the scheduler. */
#pragma once

#include "kerb_intercept.h"
#include "wait.h"

/* What the scheduler has done to this thread so far. */
struct sched_sample {
	uint64_t waited;	     /* ns that it was runnable and did not run */
	long voluntary, involuntary; /* context switches */
};

/* thread_prepare sets affinity, scheduling and timer slack of the calling thread by the options.
 * Returns 0 or a negative errno. */
int thread_prepare(const struct kerb_intercept_options *o);
enum wait_standing thread_standing(void);
/* thread_sample reads the statistics of the calling thread. schedstat: its open
 * /proc/thread-self/schedstat; negative: waited is 0. */
struct sched_sample thread_sample(int schedstat);
/* thread_name reads the name of a thread; empty if this process may not read it. */
void thread_name(uint32_t pid, char *name, size_t size);
