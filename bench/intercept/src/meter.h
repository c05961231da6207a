// SPDX-License-Identifier: Apache-2.0
/* What a receiver is, however it receives: its CPU and class of scheduling, and what it counts
 * between the messages that begin and end a measurement. */
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base.h"
#include "cpu.h"
#include "histogram.h"
#include "message.h"

enum { HEADERS = 14 + 20 + 8, FIFO_PRIORITY = 50, SLOW_NS = 100000 };

struct meter {
	uint64_t received, disorder, next, told, slow, unstamped;
	int64_t begin, cpu;
	struct rusage use; /* at the beginning */
	struct histogram delays, since_created; /* from T1, from T0 */
};

static struct meter meter;

/* A packet as this receiver had it: front_t1 is what the program in front of all receivers wrote
 * into it, t1 the time of the receiver's own kernel part, 0 of a socket. */
struct seen {
	uint64_t number, front_t1, t1, t2;
};

/* All packets are kept, and written in the end, if PACKETS is set to the name of a file. */
static struct {
	struct seen *all;
	size_t n;
} kept;

enum { MOST_KEPT = 1 << 16 };

static inline void keep(const struct message *m, int64_t t1, int64_t t2)
{
	if (kept.all && kept.n < MOST_KEPT)
		kept.all[kept.n++] = (struct seen){ m->number, m->arrived, t1, t2 };
}

static inline void write_kept(void)
{
	FILE *file = kept.all ? fopen(getenv("PACKETS"), "we") : NULL;

	if (kept.all &&
	    (!file || fwrite(kept.all, sizeof(*kept.all), kept.n, file) != kept.n || fclose(file)))
		die("packets");
}

static inline int64_t cpu_time(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* memory is what the process has in RAM, rings and buffers included, in MiB. Not ru_maxrss, which
 * a program inherits from the one that started it. */
static inline double memory(void)
{
	FILE *file = fopen("/proc/self/statm", "re");
	unsigned long pages;

	if (!file || fscanf(file, "%*u %lu", &pages) != 1)
		die("/proc/self/statm");
	fclose(file);
	return (double)pages * sysconf(_SC_PAGESIZE) / (1 << 20);
}

static inline void print_cost(void)
{
	struct rusage use;

	getrusage(RUSAGE_SELF, &use);
	printf("\"waits\":%ld,\"preempted\":%ld,\"memory\":%.3f,",
	       use.ru_nvcsw - meter.use.ru_nvcsw, use.ru_nivcsw - meter.use.ru_nivcsw, memory());
}

static inline void print_meter(void)
{
	double seconds = (now() - meter.begin) / 1e9;

	printf("{\"received\":%lu,\"disorder\":%lu,\"told\":%lu,\"over100\":%lu,"
	       "\"unstamped\":%lu,\"seconds\":%.6f,\"cpu\":%.9f,",
	       meter.received, meter.disorder, meter.told, meter.slow, meter.unstamped, seconds,
	       (cpu_time() - meter.cpu) / 1e9 / seconds);
	print_cost();
	print_times(&meter.delays);
	print_bins(&meter.delays);
	printf(",\"to_program\":{");
	print_times(&meter.since_created);
	print_bins(&meter.since_created);
	printf("}}\n");
	fflush(stdout);
}

/* account takes a message that the receiver's kernel part had at own_t1, and this program has at
 * t2. It does not return from the last. */
static inline void account_from(const struct message *m, int64_t own_t1, int64_t t2)
{
	if (m->type == MESSAGE_DATA) {
		int64_t t1 = m->arrived;
		int64_t delay = t2 > t1 ? t2 - t1 : 0; /* clocks of two CPUs */

		meter.unstamped += !t1;
		record(&meter.delays, delay);
		record(&meter.since_created, t2 - (int64_t)m->created);
		meter.slow += delay > SLOW_NS;
		meter.received++;
		meter.disorder += m->number < meter.next;
		meter.next = m->number + 1;
		keep(m, own_t1, t2);
	} else if (m->type == MESSAGE_BEGIN) {
		memset(&meter, 0, sizeof(meter));
		kept.n = 0;
		meter.begin = now();
		meter.cpu = cpu_time();
		getrusage(RUSAGE_SELF, &meter.use);
	} else if (meter.begin) { /* one from a measurement before may have been on its way still */
		/* those before it found no room either */
		meter.told -= m->number < meter.told ? m->number : meter.told;
		write_kept();
		print_meter();
		exit(0);
	}
}

static inline void account(const struct message *m, int64_t t2)
{
	account_from(m, 0, t2);
}

/* poll_idle has idle CPUs poll until this process ends. */
static inline void poll_idle(void)
{
	int fd = open("/dev/cpu_dma_latency", O_WRONLY);
	int32_t us = 0;

	if (fd < 0 || write(fd, &us, sizeof(us)) != sizeof(us))
		die("/dev/cpu_dma_latency");
}

/* settle gives the receiver its CPU and class: `other`, as any program has it, `eager`, which goes
 * before these but shares with them, `ready`, which is eager and has idle CPUs poll, or `fifo`. */
static inline void settle(const char *class, const char *cpu)
{
	struct sched_param first = { .sched_priority = FIFO_PRIORITY };

	pin(atoi(cpu));
	if (getenv("PACKETS") && !(kept.all = calloc(MOST_KEPT, sizeof(*kept.all))))
		die("memory");
	if (mlockall(MCL_CURRENT | MCL_FUTURE))
		die("lock memory");
	if (!strcmp(class, "eager") || !strcmp(class, "ready"))
		hurry();
	if (!strcmp(class, "ready"))
		poll_idle();
	if (!strcmp(class, "fifo") && sched_setscheduler(0, SCHED_FIFO, &first))
		die("SCHED_FIFO");
}

static inline void ready(void)
{
	puts("ready");
	fflush(stdout);
}
