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

enum { CTRL, DATA, LOG, KINDS, FIRST_KIND = 10, LOG_PRIORITY = 50 };

static const char *const names[KINDS] = { "ctrl", "data", "log" };

/* Counts per kind; one thread writes each of them. */
static struct kind {
	uint64_t received, reported; /* losses that the interface reported */
	struct histogram delays;
} kinds[KINDS];

/* record_message counts a message and returns whether it requires an instruction. */
static inline bool record_message(const struct message *m)
{
	unsigned int kind = m->type - FIRST_KIND;

	if (kind >= KINDS)
		return false;
	histogram_add(&kinds[kind].delays, now_ns() - m->created);
	kinds[kind].received++;
	return kind != LOG;
}

/* set_fifo_priority sets the priority of the calling thread: CTRL, then DATA, then LOG. */
static inline void set_fifo_priority(int kind)
{
	struct sched_param p = { .sched_priority = LOG_PRIORITY + LOG - kind };

	if (sched_setscheduler(0, SCHED_FIFO, &p))
		die("SCHED_FIFO");
}

static inline double process_cpu_seconds(void)
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
		       kinds[i].reported);
		print_times(&kinds[i].delays);
		print_bins(&kinds[i].delays);
		printf("}");
	}
	printf("}\n");
	fflush(stdout);
}

static inline void print_ready(void)
{
	puts("ready"); /* once per thread */
	fflush(stdout);
}

/* run_threads runs a thread for each of n kinds until SIGTERM, which the benchmark sends when no
 * message is in flight. */
static inline void run_threads(int n, void *(*receive)(void *), const char *cpu)
{
	static int kind[KINDS] = { CTRL, DATA, LOG };
	pthread_t thread;
	sigset_t end;
	int number;

	sigemptyset(&end);
	sigaddset(&end, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &end, NULL);
	pin_thread(atoi(cpu));
	if (mlockall(MCL_CURRENT | MCL_FUTURE))
		die("lock memory");
	for (int i = 0; i < n; i++)
		if (pthread_create(&thread, NULL, receive, &kind[i]))
			die("thread");
	sigwait(&end, &number);
	print_kinds(process_cpu_seconds());
	_exit(0);
}
