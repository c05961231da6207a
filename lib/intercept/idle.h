/* SPDX-License-Identifier: Apache-2.0 */
/* Idle states of CPUs, which take most of the time of a wake-up to be left (Linux,
 * Documentation/power/pm_qos_interface.rst). */
#pragma once

#include <stdbool.h>

struct idle {
	int fd; /* of the wish, which ends with it; -1: there is none */
	bool polls;
};

/* idle_open has a wish ready. 0, or a negative errno. */
int idle_open(struct idle *i);
void idle_close(struct idle *i);
/* idle_set has CPUs that have nothing to do poll, which any task ends at once, or halt as they
 * like. */
void idle_set(struct idle *i, bool polls);
