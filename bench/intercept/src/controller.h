// SPDX-License-Identifier: Apache-2.0
/* The controller: three kinds of messages, of which LOG gets no instruction back. */
#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#include "base.h"
#include "cpu.h"
#include "histogram.h"
#include "message.h"

enum { CTRL, DATA, LOG, KINDS, FIRST_KIND = 10, PRIORITY_OF_LOG = 50 };

static const char *const names[KINDS] = { "ctrl", "data", "log" };

/* Each is written by one thread. */
static struct kind {
	uint64_t received, told; /* losses that the receiver was notified of */
	struct histogram delays;
} kinds[KINDS];

/* take counts a message; it returns whether there is an instruction to send. */
static inline bool take(const struct message *m)
{
	unsigned int kind = m->type - FIRST_KIND;

	if (kind >= KINDS)
		return false;
	record(&kinds[kind].delays, now() - m->created);
	kinds[kind].received++;
	return kind != LOG;
}

/* order gives the calling thread its place before others: CTRL, DATA, LOG. */
static inline void order(int kind)
{
	struct sched_param p = { .sched_priority = PRIORITY_OF_LOG + LOG - kind };

	if (sched_setscheduler(0, SCHED_FIFO, &p))
		die("SCHED_FIFO");
}

/* cpu_time is that of the process, in s. */
static inline double cpu_time(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static inline void print_kinds(double cpu)
{
	printf("{\"cpu\":%.9f", cpu);
	for (int i = 0; i < KINDS; i++) {
		printf(",\"%s\":{\"received\":%lu,\"told\":%lu,", names[i], kinds[i].received,
		       kinds[i].told);
		print_times(&kinds[i].delays);
		print_bins(&kinds[i].delays);
		printf("}");
	}
	printf("}\n");
	fflush(stdout);
}

static inline void ready(void)
{
	puts("ready"); /* each thread does */
	fflush(stdout);
}

/* serve runs a thread for each of n kinds until SIGTERM, when no message is under way. */
static inline void serve(int n, void *(*receive)(void *), const char *cpu)
{
	static int kind[KINDS] = { CTRL, DATA, LOG };
	pthread_t thread;
	sigset_t end;
	int number;

	sigemptyset(&end);
	sigaddset(&end, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &end, NULL);
	pin(atoi(cpu));
	if (mlockall(MCL_CURRENT | MCL_FUTURE))
		die("lock memory");
	for (int i = 0; i < n; i++)
		if (pthread_create(&thread, NULL, receive, &kind[i]))
			die("thread");
	sigwait(&end, &number);
	print_kinds(cpu_time());
	_exit(0);
}
