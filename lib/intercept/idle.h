/* SPDX-License-Identifier: Apache-2.0 */
/* Idle states of CPUs: leaving one takes most of the time of a wake-up (Linux,
 * Documentation/power/pm_qos_interface.rst). */
#pragma once

#include <stdbool.h>

struct idle {
	int fd; /* of the PM QoS request, which ends when it is closed; -1: none */
	bool polls;
};

/* idle_open prepares a request. Returns 0 or a negative errno. */
int idle_open(struct idle *i);
void idle_close(struct idle *i);
/* idle_set makes idle CPUs poll, which any task that becomes runnable ends at once, or halt. */
void idle_set(struct idle *i, bool polls);
