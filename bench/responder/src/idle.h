// SPDX-License-Identifier: Apache-2.0
/* The idle time of the CPUs, measured by a thread of class SCHED_IDLE on each of them. */
#pragma once

enum { GAP_NS = 250 };

struct idle_probe {
	pthread_t thread;
	int cpu;
	int64_t taken, interrupted;
};

static atomic_bool probing = true, counting;

static int64_t cpu_clock_ns(clockid_t clock)
{
	struct timespec t = { 0 };

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* busy_ns returns the CPU time of this thread, and of the server's process if there is one. */
static int64_t busy_ns(void)
{
	clockid_t clock;

	if (!server_pid || clock_getcpuclockid(server_pid, &clock))
		return cpu_clock_ns(CLOCK_THREAD_CPUTIME_ID);
	return cpu_clock_ns(CLOCK_THREAD_CPUTIME_ID) + cpu_clock_ns(clock);
}

/* run_idle_probe reads the clock while the CPU is otherwise idle. A gap between two readings is
 * time that another task, or an interrupt, took. CPU time of this thread within gaps is that of
 * interrupts and softirqs. */
static void *run_idle_probe(void *arg)
{
	struct idle_probe *s = arg;
	int64_t mine = 0, before = 0;

	pin_thread(s->cpu);
	if (sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){ 0 }))
		die("idle priority");
	while (!atomic_load_explicit(&counting, memory_order_relaxed) &&
	       atomic_load_explicit(&probing, memory_order_relaxed))
		;
	before = cpu_clock_ns(CLOCK_THREAD_CPUTIME_ID);
	for (int64_t last = now_ns(); atomic_load_explicit(&counting, memory_order_relaxed);) {
		int64_t t = now_ns();

		*(t - last > GAP_NS ? &s->taken : &mine) += t - last;
		last = t;
	}
	s->interrupted = cpu_clock_ns(CLOCK_THREAD_CPUTIME_ID) - before - mine;
	while (atomic_load_explicit(&probing, memory_order_relaxed))
		;
	return NULL;
}

static struct idle_probe *start_idle_probes(void)
{
	struct idle_probe *probes = allocate(all.n, sizeof(*probes));

	for (int i = 0; i < all.n; i++) {
		probes[i].cpu = all.list[i];
		pthread_create(&probes[i].thread, NULL, run_idle_probe, &probes[i]);
	}
	return probes;
}

/* stop_idle_probes prints CPU seconds: all time taken from the probes, and the part of it that
 * interrupts, server and client used. */
static void stop_idle_probes(struct idle_probe *probes, int64_t spent)
{
	int64_t taken = 0;

	atomic_store(&probing, false);
	for (int i = 0; i < all.n; i++) {
		pthread_join(probes[i].thread, NULL);
		taken += probes[i].taken;
		spent += probes[i].interrupted;
	}
	printf("{\"taken\":%.9f,\"spent\":%.9f,", taken / 1e9, spent / 1e9);
}
