// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base.h"

/* A list of CPUs as text: "0,2". */
struct cpus {
	int n, list[CPU_SETSIZE];
};

static inline struct cpus parse_cpus(const char *text)
{
	struct cpus c = { 0 };

	for (char *end; *text && c.n < CPU_SETSIZE; text = *end ? end + 1 : end)
		c.list[c.n++] = strtol(text, &end, 10);
	return c;
}

static inline void pin_thread(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("pin");
}

/* struct sched_attr (linux/sched/types.h), which glibc declares since 2.41. */
struct sched_attributes {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

/* raise_autogroup_priority raises the priority of the session if this process leads it. With
 * autogroup, the scheduler groups tasks by session, and nice values apply within a group only. */
static inline void raise_autogroup_priority(void)
{
	FILE *f = getsid(0) == getpid() ? fopen("/proc/self/autogroup", "w") : NULL;

	if (!f)
		return;
	fputs("-20", f);
	fclose(f);
}

/* raise_priority gives this process and its children priority over tasks that are not measured: a
 * higher weight, and a shorter slice (Linux 6.12), so that they preempt other tasks as soon as they
 * wake up. */
static inline void raise_priority(void)
{
	struct sched_attributes a = { .size = sizeof(a), .nice = -20, .runtime = 100000 };

	if (syscall(SYS_sched_setattr, 0, &a, 0))
		die("priority");
	raise_autogroup_priority();
}
