/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "thread.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "connection.h"

/* struct sched_attr (linux/sched/types.h), which glibc declares since 2.41. */
struct sched_attributes {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

/* raise_autogroup sets nice -20 for the session's scheduling group: with autogroup, nice values
 * count within a session only (sched(7)). It leaves a session that other processes share
 * unchanged. */
static void raise_autogroup(void)
{
	int fd = getsid(0) == getpid() ? open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC) : -1;

	if (fd < 0)
		return;
	dprintf(fd, "-20");
	close(fd);
}

/* request_short_slices requests nice -20 and time slices of 100 us, the shortest: such a thread
 * preempts others as soon as it wakes (Linux 6.12). */
static void request_short_slices(void)
{
	struct sched_attributes a = { .size = sizeof(a), .nice = -20, .runtime = 100000 };

	if (sched_getscheduler(0) != SCHED_OTHER)
		return;
	if (!syscall(SYS_sched_setattr, 0, &a, 0)) {
		raise_autogroup();
		return;
	}
	a.nice = getpriority(PRIO_PROCESS, 0);
	syscall(SYS_sched_setattr, 0, &a, 0);
}

int thread_prepare(const struct kerb_intercept_options *o)
{
	struct sched_param priority = { .sched_priority = o->fifo };
	cpu_set_t cpus;

	prctl(PR_SET_TIMERSLACK,
	      1); /* the default, 50 us, delays timers of threads that are not real-time */
	CPU_ZERO(&cpus);
	if (o->pin)
		CPU_SET((size_t)o->cpu, &cpus);
	if (o->pin && sched_setaffinity(0, sizeof(cpus), &cpus))
		return fail(errno, "pin to CPU %d: %s", o->cpu, strerror(errno));
	if (o->lock_memory && mlockall(MCL_CURRENT | MCL_FUTURE))
		return fail(errno, "lock memory: %s: it needs CAP_IPC_LOCK or a larger ulimit -l",
			    strerror(errno));
	if (o->fifo && sched_setscheduler(0, SCHED_FIFO, &priority))
		return fail(errno, "SCHED_FIFO %d: %s: it needs CAP_SYS_NICE or ulimit -r %d",
			    o->fifo, strerror(errno), o->fifo);
	if (!o->fifo && !o->keep)
		request_short_slices();
	return 0;
}

enum wait_standing thread_standing(void)
{
	int policy = sched_getscheduler(0);

	if (policy == SCHED_FIFO || policy == SCHED_RR)
		return WAIT_REALTIME;
	return getpriority(PRIO_PROCESS, 0) <= -10 ? WAIT_PREFERRED : WAIT_ORDINARY;
}

struct sched_sample thread_sample(int schedstat)
{
	struct sched_sample l = { 0 };
	struct rusage usage;
	char line[96];
	ssize_t n = schedstat < 0 ? 0 : pread(schedstat, line, sizeof(line) - 1, 0);

	if (n > 0) {
		line[n] = 0;
		sscanf(line, "%*u %lu", &l.waited);
	}
	getrusage(RUSAGE_THREAD, &usage);
	l.voluntary = usage.ru_nvcsw;
	l.involuntary = usage.ru_nivcsw;
	return l;
}

void thread_name(uint32_t pid, char *name, size_t size)
{
	char path[32];
	ssize_t n;
	int fd;

	memset(name, 0, size);
	snprintf(path, sizeof(path), "/proc/%u/comm", pid);
	fd = pid ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0)
		return;
	n = read(fd, name, size - 1);
	if (n > 0)
		name[n - 1] = 0;
	close(fd);
}
