// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>

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

/* pin keeps the calling thread on a CPU. */
static inline void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("pin");
}

/* hurry puts this process and what it starts before the machine's other work, which is not what is measured. */
static inline void hurry(void)
{
	if (setpriority(PRIO_PROCESS, 0, -20))
		die("priority");
}
