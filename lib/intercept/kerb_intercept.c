/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "kerb_intercept.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "receiver.h"

#define MS 1000000ULL

/* A sleep that wake sockets are to end is checked this often, should one fail to wake. */
#define RECHECK_TIME (100 * MS)
#define QUIET_TIME   (1000 * MS) /* without a packet, after which idle CPUs may halt again */

/* p99 is then a wake-up that is a little late; 990 takes a quarter more CPU time */
enum { DEFAULT_AWAKE = 975 };

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

uint64_t kerb_intercept_now(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

static struct timespec timespec_of(uint64_t ns)
{
	return (struct timespec){ (time_t)(ns / 1000000000), (long)(ns % 1000000000) };
}

static int create(struct kerb_intercept **out, const char *class_name,
		 const struct kerb_intercept_options *o)
{
	struct kerb_intercept *k = calloc(1, sizeof(*k));
	int code;

	if (!k)
		return fail(ENOMEM, "out of memory");
	k->options = o ? *o : (struct kerb_intercept_options){ 0 };
	if (k->options.awake > 999) {
		free(k);
		return fail(EINVAL, "awake %u: at most 999 of 1000", o->awake);
	}
	k->conn = k->xsk.fd = k->watch.fd = k->idle.fd = -1;
	k->launch_clock = CLOCK_MONOTONIC;
	k->senders[0].fd = k->senders[1].fd = k->own_senders[0].fd = k->own_senders[1].fd = -1;
	snprintf(k->class_name, sizeof(k->class_name), "%s", class_name);
	code = k->options.idle_poll && k->options.wait != KERB_WAIT_SPIN ? idle_open(&k->idle) : 0;
	if (!code)
		code = thread_prepare(&k->options);
	if (code) {
		idle_close(&k->idle);
		free(k);
		return code;
	}
	k->schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	k->before = thread_sample(k->schedstat);
	k->running_at = kerb_intercept_now();
	wait_init(&k->wait,
		  &(struct wait_goals){ .mode = (enum wait_mode)k->options.wait,
					.reach = k->options.reach ? k->options.reach : MS,
					.patience = k->options.patience,
					.awake = k->options.awake ? k->options.awake
								  : DEFAULT_AWAKE },
		  thread_standing());
	*out = k;
	return 0;
}

int kerb_intercept_open(struct kerb_intercept **out, const char *module, const char *class_name,
			const struct kerb_intercept_options *o)
{
	struct kerb_intercept *k;
	int code = create(&k, class_name, o);

	if (code)
		return code;
	if (strlen(class_name) >= sizeof(k->class_name) || strpbrk(class_name, "\"\\"))
		code = fail(EINVAL, "%s is no name of a class", class_name);
	snprintf(k->path, sizeof(k->path), strchr(module, '/') ? "%s" : "/run/kerb/modules/%s.sock",
		 module);
	if (!code && k->options.device)
		code = xsk_open(&k->xsk, k->options.device, k->options.queue, k->options.copy);
	if (!code)
		code = session_join(k, k->options.takeover);
	if (code) {
		kerb_intercept_close(k);
		return code;
	}
	*out = k;
	return 0;
}

int kerb_intercept_open_device(struct kerb_intercept **out, int fd, size_t ring,
			       const struct kerb_intercept_options *o)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct kerb_intercept *k;
	int code = create(&k, "of the kernel module", o);

	if (code)
		return code;
	code = ring_map(&k->ring, fd, ring);
	if (!code && (code = session_map_state(k, fd, (off_t)(2 * page + 2 * ring)))) {
		k->ring.fd = -1; /* stays the caller's */
		ring_unmap(&k->ring);
	}
	if (code) {
		kerb_intercept_close(k);
		return code;
	}
	k->state->waiting = 0;
	*out = k;
	return 0;
}

void kerb_intercept_close(struct kerb_intercept *k)
{
	if (k->state) {
		kerb_intercept_release(k);
		munmap(k->state, ICPT_PAGE);
		ring_unmap(&k->ring);
		controls_unmap(&k->controls);
	}
	xsk_close(&k->xsk);
	wake_sockets_close(&k->wake_sockets);
	watch_end(&k->watch);
	idle_close(&k->idle);
	senders_close(k->senders, 2);
	if (k->conn >= 0)
		close(k->conn);
	if (k->schedstat >= 0)
		close(k->schedstat);
	free(k);
}

static bool pending(struct kerb_intercept *k)
{
	return ring_pending(&k->ring) || (k->xsk.fd >= 0 && xsk_pending(&k->xsk));
}

static int fetch(struct kerb_intercept *k, struct kerb_packet *packets, int max)
{
	int n = k->xsk.fd >= 0 ? xsk_fetch(&k->xsk, packets, max) : 0;
	uint64_t now;

	n += ring_fetch(&k->ring, packets + n, max - n);
	if (!n) {
		kerb_intercept_release(k); /* discarded records */
		return 0;
	}
	now = kerb_intercept_now();
	for (int i = 0; i < n; i++)
		packets[i].received = now;
	record_packets(k, packets, n);
	return n;
}

/* check_connection handles events of the connection: a new configuration, a restarted or removed
 * module, a class that was taken over. It does nothing until check_at. */
static int check_connection(struct kerb_intercept *k, uint64_t now)
{
	char line[MESSAGE_SIZE], event[NAME_SIZE];
	int fds[MESSAGE_FDS], n;
	ssize_t size;

	if (now < k->check_at)
		return 0;
	k->check_at = now + 10 * MS;
	if (k->taken)
		return fail(EPIPE, "another program has taken class %s over", k->class_name);
	if (k->conn < 0) {
		int code = *k->path ? session_join(k, false) : 0;

		k->taken = code == -EBUSY;
		k->check_at = now + 100 * MS;
		return 0;
	}
	size = message_receive(k->conn, line, MSG_DONTWAIT, fds, &n);
	if (size < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	close_fds(fds, n);
	json_string(line, "event", event, sizeof(event));
	k->taken = !strcmp(event, "taken");
	k->restarted = size <= 0;
	close(k->conn);
	k->conn = -1;
	watch_end(&k->watch);
	k->check_at = now; /* after the records that are still in the ring */
	return 0;
}

static void clear_waiting(struct kerb_intercept *k)
{
	__atomic_store_n(&k->state->waiting, ICPT_AWAKE, __ATOMIC_RELAXED);
}

static int arm(struct kerb_intercept *k, enum icpt_waiting how)
{
	kerb_intercept_release(k);
	__atomic_store_n(&k->state->waiting, (uint32_t)how, __ATOMIC_SEQ_CST);
	/* pairs with the data plane, which writes the record, then reads waiting */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (!pending(k))
		return 0;
	clear_waiting(k);
	return 1;
}

int kerb_intercept_arm(struct kerb_intercept *k)
{
	if (k->idle.fd >= 0)
		idle_set(&k->idle, kerb_intercept_now() < k->wait.last + QUIET_TIME);
	return arm(k, ICPT_BY_RING);
}

/* sample_sched samples this thread. It reads schedstat, which costs as much as a packet, only where
 * late packets are logged. */
static struct sched_sample sample_sched(const struct kerb_intercept *k)
{
	return thread_sample(k->state->deadline ? k->schedstat : -1);
}

static uint64_t min_time(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static int watch_all(struct kerb_intercept *k)
{
	int code = watch_begin(&k->watch);

	if (!code)
		code = watch_add(&k->watch, k->ring.fd, WATCH_RING);
	if (!code)
		code = watch_add(&k->watch, k->conn, WATCH_CONNECTION);
	if (!code)
		code = watch_add(&k->watch, k->xsk.fd, WATCH_SOCKET);
	for (int i = 0; !code && i < k->wake_sockets.n; i++)
		code = watch_add(&k->watch, k->wake_sockets.of[i].fd, WATCH_WAKE_SOCKET);
	if (!code && k->wake_sockets.n)
		code = watch_clock(&k->watch, RECHECK_TIME);
	if (code)
		watch_end(&k->watch);
	return code;
}

/* sleep_until sleeps until a time, or until a descriptor is ready. Returns 0 after the time, 1 if a
 * packet or another event ended the sleep, or a negative errno. */
static int sleep_until(struct kerb_intercept *k, uint64_t now, uint64_t until)
{
	int code = k->watch.fd < 0 ? watch_all(k) : 0;

	if (code)
		return code;
	/* a system call, which KERB_WAIT_SLEEP needs for late packets only */
	if (k->options.wait != KERB_WAIT_SLEEP || k->state->deadline)
		k->before = sample_sched(k);
	wake_sockets_arm(&k->wake_sockets);
	if (arm(k, k->wake_sockets.n ? ICPT_BY_SOCKET : ICPT_BY_RING))
		return 1;
	code = watch_sleep(&k->watch, now, until);
	clear_waiting(k);
	if (code < 0)
		return code;
	if (code & WATCH_BROKEN) /* only of the kernel module */
		return fail(ENODEV, "the interface of the class has gone");
	if (code & WATCH_CONNECTION)
		k->check_at = 0;
	if (k->wake_sockets.n &&
	    !wake_sockets_check(&k->wake_sockets, code, ring_pending(&k->ring))) {
		wake_sockets_close(&k->wake_sockets);
		watch_end(&k->watch);
	}
	return code > 0;
}

/* detect_preemption counts a preemption if this thread did not run for 0.5 ms and had an
 * involuntary context switch. */
static void detect_preemption(struct kerb_intercept *k, uint64_t now)
{
	struct sched_sample l;
	uint64_t away = now - k->running_at;

	k->running_at = now;
	if (away < MS / 2)
		return;
	l = sample_sched(k);
	if (l.involuntary != k->before.involuntary) {
		k->stats.held_up++;
		wait_preempted(&k->wait, now);
	}
	k->before = l;
}

/* rest_until leaves the CPU to other tasks, and measures how much CPU time they get: the time of
 * going to sleep and waking up counts as this thread's. */
static int rest_until(struct kerb_intercept *k, uint64_t now, const struct timespec *until)
{
	uint64_t ran = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	int code;

	k->before = sample_sched(k);
	code = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, until, NULL);
	if (code)
		return fail(code, "sleep: %s", strerror(code));
	k->stats.rested++;
	ran = clock_ns(CLOCK_THREAD_CPUTIME_ID) - ran;
	now = kerb_intercept_now() - now;
	wait_rested(&k->wait, now > ran ? now - ran : 0);
	return 0;
}

/* sleep_for executes a step other than STEP_SPIN. Returns 0 or a negative errno. */
static int sleep_for(struct kerb_intercept *k, struct wait_step step, uint64_t now, uint64_t until)
{
	uint64_t to = step.kind == STEP_SLEEP ? until : min_time(step.until, until),
		 check_at = k->conn < 0 && *k->path ? k->check_at : UINT64_MAX;
	struct timespec t = timespec_of(to);
	int code = 0;

	idle_set(&k->idle, now < k->wait.last + QUIET_TIME);
	if (k->idle.polls && !k->wake_sockets.n) /* wake sockets have a clock that ends the sleep */
		check_at = min_time(check_at, k->wait.last + QUIET_TIME);
	if (step.kind == STEP_REST) {
		code = rest_until(k, now, &t);
	} else {
		code = sleep_until(k, now, min_time(to, check_at));
		k->stats.slept++;
	}
	if (k->options.wait == KERB_WAIT_SLEEP) /* it keeps no estimates, and a packet waits */
		return code < 0 ? code : 0;
	k->running_at = kerb_intercept_now();
	wait_woke(&k->wait, code || step.kind == STEP_SLEEP || to != step.until ? 0 : to,
		  k->running_at);
	return code < 0 ? code : 0;
}

/* wait_for_packets returns 1 when packets are pending, 0 after the time, or a negative errno. */
static int wait_for_packets(struct kerb_intercept *k, uint64_t until)
{
	while (!pending(k)) {
		uint64_t now = kerb_intercept_now();
		struct wait_step step;
		int code;

		if (k->options.wait != KERB_WAIT_SLEEP)
			detect_preemption(k, now);
		code = check_connection(k, now);
		if (code || now >= until)
			return code;
		if (now > k->state->heartbeat + MS)
			k->state->heartbeat = now;
		step = wait_next(&k->wait, now);
		if (step.kind != STEP_SPIN) {
			code = sleep_for(k, step, now, until);
			if (code)
				return code;
			continue;
		}
		k->stats.spun++;
#if defined(__x86_64__) || defined(__i386__)
		__builtin_ia32_pause();
#elif defined(__aarch64__)
		__asm__ volatile("yield");
#endif
	}
	return 1;
}

/* is_taken reports whether another program has taken the class over, without consuming the message
 * on the connection. */
static bool is_taken(const struct kerb_intercept *k)
{
	char line[MESSAGE_SIZE], event[NAME_SIZE] = "";
	ssize_t size =
		k->conn < 0 ? 0 : recv(k->conn, line, MESSAGE_SIZE - 1, MSG_DONTWAIT | MSG_PEEK);

	line[size > 0 ? size : 0] = 0;
	json_string(line, "event", event, sizeof(event));
	return k->taken || !strcmp(event, "taken");
}

void kerb_intercept_release(struct kerb_intercept *k)
{
	if (k->xsk.fd >= 0)
		xsk_release(&k->xsk);
	if (!ring_moved(&k->ring) || !is_taken(k))
		ring_release(&k->ring);
}

int kerb_intercept_receive(struct kerb_intercept *k, struct kerb_packet *packets, int max,
			   int64_t timeout)
{
	uint64_t until = timeout < 0 ? UINT64_MAX : 0;

	if (max < 1)
		return fail(EINVAL, "room for %d packets", max);
	kerb_intercept_release(k);
	for (;;) {
		int n = fetch(k, packets, max);

		if (n)
			return n;
		if (!timeout) /* a record that is being written comes before the next ring */
			return pending(k) ? 0 : check_connection(k, kerb_intercept_now());
		if (!until)
			until = kerb_intercept_now() + (uint64_t)timeout;
		n = wait_for_packets(k, until);
		if (n <= 0)
			return n;
	}
}

int kerb_intercept_fd(const struct kerb_intercept *k)
{
	return k->xsk.fd >= 0 ? k->xsk.fd : k->ring.fd;
}

void kerb_intercept_stats(const struct kerb_intercept *k, struct kerb_intercept_stats *s)
{
	*s = k->stats;
	s->received = k->state->received;
	s->lost = k->state->missed;
	s->late = k->state->late;
	s->longest = k->state->longest;
	s->deadline = k->state->deadline;
}
