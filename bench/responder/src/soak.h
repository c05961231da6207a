// SPDX-License-Identifier: Apache-2.0
/* A part of the client: the idle time of the CPUs, found by something idle on each of them. */
#pragma once

enum { GAP_NS = 250 };

struct soaker {
	pthread_t thread;
	int cpu;
	int64_t taken, interrupted;
};

static atomic_bool soaking = true, counting;

static int64_t used(clockid_t clock)
{
	struct timespec t = { 0 };

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* busy is the CPU time of this thread and of the server's process, if there is one. */
static int64_t busy(void)
{
	clockid_t clock;

	if (!server_pid || clock_getcpuclockid(server_pid, &clock))
		return used(CLOCK_THREAD_CPUTIME_ID);
	return used(CLOCK_THREAD_CPUTIME_ID) + used(clock);
}

/* soak reads the clock whenever the CPU is otherwise idle; a gap between two readings is another
 * task's time. What of the gaps is on this thread's account, too, is interrupts and what the kernel
 * did for packets after them. */
static void *soak(void *arg)
{
	struct soaker *s = arg;
	int64_t mine = 0, before = 0;

	pin(s->cpu);
	if (sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){ 0 }))
		die("idle priority");
	while (!atomic_load_explicit(&counting, memory_order_relaxed) &&
	       atomic_load_explicit(&soaking, memory_order_relaxed))
		;
	before = used(CLOCK_THREAD_CPUTIME_ID);
	for (int64_t last = now(); atomic_load_explicit(&counting, memory_order_relaxed);) {
		int64_t t = now();

		*(t - last > GAP_NS ? &s->taken : &mine) += t - last;
		last = t;
	}
	s->interrupted = used(CLOCK_THREAD_CPUTIME_ID) - before - mine;
	while (atomic_load_explicit(&soaking, memory_order_relaxed))
		;
	return NULL;
}

static struct soaker *start_soaking(void)
{
	struct soaker *soakers = allocate(all.n, sizeof(*soakers));

	for (int i = 0; i < all.n; i++) {
		soakers[i].cpu = all.list[i];
		pthread_create(&soakers[i].thread, NULL, soak, &soakers[i]);
	}
	return soakers;
}

/* stop_soaking prints the time that others had while it counted, and of that what was interrupts or
 * was spent by the server and the client, in s of one CPU. */
static void stop_soaking(struct soaker *soakers, int64_t spent)
{
	int64_t taken = 0;

	atomic_store(&soaking, false);
	for (int i = 0; i < all.n; i++) {
		pthread_join(soakers[i].thread, NULL);
		taken += soakers[i].taken;
		spent += soakers[i].interrupted;
	}
	printf("{\"taken\":%.9f,\"spent\":%.9f,", taken / 1e9, spent / 1e9);
}
