// SPDX-License-Identifier: Apache-2.0
/* The common part of all receivers: CPU and scheduling class, and the counts between the messages
 * that begin and end a measurement. */
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
	uint64_t received, disorder, next, reported, slow, unstamped;
	int64_t begin, cpu;
	struct rusage use; /* at the beginning */
	struct histogram delays, since_created; /* from T1, from T0 */
};

static struct meter meter;

/* The times of a packet. front_t1: written by the program in front of all receivers; t1: taken by
 * the receiver's own kernel part, 0 for sockets; t2: in the receiving program. */
struct packet_times {
	uint64_t number, front_t1, t1, t2;
};

/* The times of all packets, which are written at the end to the file that PACKETS names. */
static struct {
	struct packet_times *all;
	size_t n;
} kept;

enum { MAX_KEPT = 1 << 16 };

static inline void keep_packet(const struct message *m, int64_t t1, int64_t t2)
{
	if (kept.all && kept.n < MAX_KEPT)
		kept.all[kept.n++] = (struct packet_times){ m->number, m->arrived, t1, t2 };
}

static inline void write_packets(void)
{
	FILE *file = kept.all ? fopen(getenv("PACKETS"), "we") : NULL;

	if (kept.all &&
	    (!file || fwrite(kept.all, sizeof(*kept.all), kept.n, file) != kept.n || fclose(file)))
		die("packets");
}

static inline int64_t process_cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* resident_mib returns the resident memory of the process, with rings and buffers. ru_maxrss would
 * include the maximum of the parent process. */
static inline double resident_mib(void)
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
	       use.ru_nvcsw - meter.use.ru_nvcsw, use.ru_nivcsw - meter.use.ru_nivcsw,
	       resident_mib());
}

static inline void print_meter(void)
{
	double seconds = (now_ns() - meter.begin) / 1e9;

	printf("{\"received\":%lu,\"disorder\":%lu,\"told\":%lu,\"over100\":%lu,"
	       "\"unstamped\":%lu,\"seconds\":%.6f,\"cpu\":%.9f,",
	       meter.received, meter.disorder, meter.reported, meter.slow, meter.unstamped, seconds,
	       (process_cpu_ns() - meter.cpu) / 1e9 / seconds);
	print_cost();
	print_times(&meter.delays);
	print_bins(&meter.delays);
	printf(",\"to_program\":{");
	print_times(&meter.since_created);
	print_bins(&meter.since_created);
	printf("}}\n");
	fflush(stdout);
}

/* record_message_from records a message that the receiver's kernel part received at own_t1, and
 * this program at t2. It exits after the last one. */
static inline void record_message_from(const struct message *m, int64_t own_t1, int64_t t2)
{
	if (m->type == MESSAGE_DATA) {
		int64_t t1 = m->arrived;
		int64_t delay = t2 > t1 ? t2 - t1 : 0; /* the clocks of two CPUs may differ */

		meter.unstamped += !t1;
		histogram_add(&meter.delays, delay);
		histogram_add(&meter.since_created, t2 - (int64_t)m->created);
		meter.slow += delay > SLOW_NS;
		meter.received++;
		meter.disorder += m->number < meter.next;
		meter.next = m->number + 1;
		keep_packet(m, own_t1, t2);
	} else if (m->type == MESSAGE_BEGIN) {
		memset(&meter, 0, sizeof(meter));
		kept.n = 0;
		meter.begin = now_ns();
		meter.cpu = process_cpu_ns();
		getrusage(RUSAGE_SELF, &meter.use);
	} else if (meter.begin) { /* or it is a late one of the measurement before */
		/* end messages that were lost count as losses, too */
		meter.reported -= m->number < meter.reported ? m->number : meter.reported;
		write_packets();
		print_meter();
		exit(0);
	}
}

static inline void record_message(const struct message *m, int64_t t2)
{
	record_message_from(m, 0, t2);
}

/* set_idle_polling makes idle CPUs poll until this process exits. */
static inline void set_idle_polling(void)
{
	int fd = open("/dev/cpu_dma_latency", O_WRONLY);
	int32_t us = 0;

	if (fd < 0 || write(fd, &us, sizeof(us)) != sizeof(us))
		die("/dev/cpu_dma_latency");
}

/* setup_receiver sets CPU and scheduling class: `other`, the default; `eager`, a higher weight in
 * the default class; `ready`, eager with idle CPUs polling; or `fifo`. */
static inline void setup_receiver(const char *class, const char *cpu)
{
	struct sched_param first = { .sched_priority = FIFO_PRIORITY };

	pin_thread(atoi(cpu));
	if (getenv("PACKETS") && !(kept.all = calloc(MAX_KEPT, sizeof(*kept.all))))
		die("memory");
	if (mlockall(MCL_CURRENT | MCL_FUTURE))
		die("lock memory");
	if (!strcmp(class, "eager") || !strcmp(class, "ready"))
		raise_priority();
	if (!strcmp(class, "ready"))
		set_idle_polling();
	if (!strcmp(class, "fifo") && sched_setscheduler(0, SCHED_FIFO, &first))
		die("SCHED_FIFO");
}

static inline void print_ready(void)
{
	puts("ready");
	fflush(stdout);
}
