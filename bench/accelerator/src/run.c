// SPDX-License-Identifier: Apache-2.0
/* run CPUS PROGRAM ARGS...: executes a measured program on these CPUs only, with priority over the
 * machine's other tasks. */
#define _GNU_SOURCE
#include <sys/resource.h>

#include "cpu.h"

int main(int argc, char **argv)
{
	struct rlimit descriptors;
	cpu_set_t set;

	if (argc < 3)
		return 2;
	struct cpus cpus = parse_cpus(argv[1]);

	CPU_ZERO(&set);
	for (int i = 0; i < cpus.n; i++)
		CPU_SET(cpus.list[i], &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("pin");
	getrlimit(RLIMIT_NOFILE, &descriptors);
	descriptors.rlim_cur = descriptors.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &descriptors))
		die("descriptors");
	raise_priority();
	execvp(argv[2], argv + 2);
	die(argv[2]);
}
