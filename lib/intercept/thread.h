/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that receives, and the scheduler. */
#pragma once

#include "kerb_intercept.h"
#include "wait.h"

/* What the scheduler has done to this thread so far. */
struct look {
	uint64_t waited; /* runnable and not running, ns */
	long voluntary, involuntary;
};

/* prepare_thread makes the calling thread one for packets that must not wait. */
int prepare_thread(const struct kerb_intercept_options *o);
enum wait_standing thread_standing(void);
struct look look_at_thread(int schedstat);
/* name_of_thread: empty if this process may not see it. */
void name_of_thread(uint32_t pid, char *name, size_t size);
