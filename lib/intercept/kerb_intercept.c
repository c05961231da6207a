/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "kerb_intercept.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "bell.h"
#include "connection.h"
#include "idle.h"
#include "record.h"
#include "source.h"
#include "thread.h"
#include "wait.h"
#include "watch.h"

#define MS 1000000ULL

/* how often who sleeps for bells looks by itself: should none ring when one should, it is not for
 * long */
#define LOOK_TIME  (100 * MS)
#define QUIET_TIME (1000 * MS) /* idle CPUs are left alone when no packet has come for so long */

/* p99 is that of a wake-up that is a little late; 990 takes a quarter more CPU time */
enum { AWAKE = 975 };

_Static_assert(sizeof(struct icpt_state) <= ICPT_PAGE, "the consumer's state fits its page");

struct controls { /* the ring of control messages; none: producer is NULL */
	const unsigned long *consumer;
	unsigned long *producer;
	uint8_t *data;
	size_t size;
};

struct kerb_intercept {
	struct kerb_intercept_options options;
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)], class_name[NAME];

	int conn; /* to the control plane, -1: none at the moment, or the kernel module's */
	bool taken, restarted;
	uint64_t attend, generation; /* attend: when to look after the connection again */
	struct ring ring;
	struct xsk xsk;
	struct bells bells;
	struct watch watch; /* over all of these */
	struct idle idle;
	struct controls controls;
	struct icpt_state *state;

	struct wait wait;
	uint64_t seen; /* when we knew last that we were running */
	struct look before; /* when the record before was looked for */
	int schedstat;
	struct kerb_intercept_stats stats;
};

static uint64_t clock_of(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

uint64_t kerb_intercept_now(void) { return clock_of(CLOCK_MONOTONIC); }

static struct timespec timespec_of(uint64_t ns)
{
	return (struct timespec){ (time_t)(ns / 1000000000), (long)(ns % 1000000000) };
}

/* ask opens the class on a connection and leaves the answer in line. */
static int ask(const struct kerb_intercept *k, int conn, bool takeover, char *line, int *fds)
{
	char why[LINE];
	int n, code;
	ssize_t size;

	snprintf(line, LINE, "{\"open\": \"%s\", \"takeover\": %s, \"pid\": %d}", k->class_name,
		 takeover ? "true" : "false", (int)getpid());
	code = say(conn, line, -1);
	if (code)
		return fail(-code, "open class %s: %s", k->class_name, strerror(-code));
	size = hear(conn, line, 0, fds, &n);
	if (size <= 0)
		return fail(size ? errno : EPIPE, "open class %s: %s", k->class_name,
			    size ? strerror(errno) : "the module went away");
	if (n == DESCRIPTORS)
		return 0;
	close_all(fds, n);
	text(line, "error", why, sizeof(why));
	return fail(
		strstr(why, "has a consumer") ? EBUSY : EPROTO, "%s",
		*why ? why
		     : "the module's answer is none: Kerb's and this library's versions differ");
}

/* The class's page and the ring of control messages. */

static void unmap_controls(struct controls *c)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	if (!c->producer)
		return;
	munmap((void *)c->consumer, page);
	munmap(c->producer, page + 2 * c->size);
	c->producer = NULL;
}

/* sound reports whether what waits are messages: a program that had the class before may have left
 * anything. */
static bool sound(const struct controls *c)
{
	const uint32_t want[2] = { sizeof(struct icpt_control), 0 };
	unsigned long at = __atomic_load_n(c->consumer, __ATOMIC_ACQUIRE), end = *c->producer;

	if (at % 8 || end - at > c->size)
		return false;
	for (; at != end && end - at <= c->size; at += sizeof(want) + sizeof(struct icpt_control))
		if (memcmp(c->data + (at & (c->size - 1)), want, sizeof(want)))
			return false;
	return at == end;
}

/* A kernel before 6.1 has no such ring, and hands over something else: there are no control
 * messages then. */
static void map_controls(struct controls *c, int fd)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *consumer = mmap(NULL, page, PROT_READ, MAP_SHARED, fd, 0), *producer;

	*c = (struct controls){ .size = ICPT_CONTROLS > page ? ICPT_CONTROLS : page };
	if (consumer == MAP_FAILED)
		return;
	producer =
		mmap(NULL, page + 2 * c->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)page);
	if (producer == MAP_FAILED) {
		munmap(consumer, page);
		return;
	}
	c->consumer = consumer;
	c->producer = producer;
	c->data = (uint8_t *)producer + page;
	if (!sound(c))
		__atomic_store_n(c->producer, __atomic_load_n(c->consumer, __ATOMIC_ACQUIRE),
				 __ATOMIC_RELEASE);
}

static int map_state(struct kerb_intercept *k, int fd, off_t at)
{
	void *page = mmap(NULL, ICPT_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);

	if (page == MAP_FAILED)
		return fail(errno, "map the state of class %s: %s", k->class_name, strerror(errno));
	k->state = page;
	return 0;
}

/* go_on takes this receiver's numbers along into a new page. */
static void go_on(struct icpt_state *to, const struct icpt_state *from)
{
	size_t at = offsetof(struct icpt_state, received);

	memcpy((uint8_t *)to + at, (const uint8_t *)from + at, sizeof(*to) - at);
}

/* enter maps what the control plane has handed over and leaves what was before. */
static int enter(struct kerb_intercept *k, const char *answer, const int *fds)
{
	struct kerb_intercept old = *k;
	bool again = k->state != NULL;
	int code = ring_map(&k->ring, fds[0], number(answer, "ring"));

	if (code) {
		k->ring = old.ring;
		close_all(fds, DESCRIPTORS);
		return code;
	}
	code = map_state(k, fds[1], 0);
	if (!code)
		map_controls(&k->controls, fds[2]);
	close_all(fds + 1, 2);
	if (code) {
		ring_unmap(&k->ring);
		k->ring = old.ring;
		return code;
	}
	k->generation = k->state->generation;
	k->state->waiting = 0;
	k->state->pid = (uint32_t)syscall(SYS_gettid);
	if (again) {
		go_on(k->state, old.state);
		ring_unmap(&old.ring);
		munmap(old.state, ICPT_PAGE);
		unmap_controls(&old.controls);
		k->ring.lost = 0;
	}
	return 0;
}

/* give_socket has the class's packets go to an AF_XDP socket, or ring it. */
static int give_socket(int conn, const struct xsk *x, bool bell)
{
	char line[LINE], why[LINE];
	int fds[DESCRIPTORS], n, code;

	snprintf(line, sizeof(line), "{\"xsk\": {\"ifindex\": %u, \"queue\": %u, \"bell\": %s}}",
		 x->ifindex, x->queue, bell ? "true" : "false");
	code = say(conn, line, x->fd);
	if (code)
		return fail(-code, "AF_XDP: hand over the socket: %s", strerror(-code));
	if (hear(conn, line, 0, fds, &n) <= 0)
		return fail(EPIPE, "AF_XDP: the module went away");
	close_all(fds, n);
	text(line, "error", why, sizeof(why));
	return *why ? fail(EPROTO, "AF_XDP: %s", why) : 0;
}

/* hang_bells has the kernel part wake this receiver by sockets, if the module offers that and it
 * may have such. */
static void hang_bells(struct kerb_intercept *k, int conn, const char *answer, bool patient)
{
	uint32_t ifindex = (uint32_t)number(answer, "bell");
	char address[NAME];

	text(answer, "mac", address, sizeof(address));
	if (!ifindex || k->xsk.fd >= 0 || k->options.wait == KERB_WAIT_SPIN ||
	    !bells_open(&k->bells, ifindex, address, patient)) {
		bells_close(&k->bells);
		return;
	}
	for (int i = 0; i < k->bells.n; i++)
		if (give_socket(conn, &k->bells.of[i], true))
			bells_close(&k->bells);
}

/* join connects and opens the class; a receiver that has it already continues with what is there
 * now. */
static int join(struct kerb_intercept *k, bool takeover)
{
	int conn = dial(k->path), fds[DESCRIPTORS], code;
	bool first = !k->state; /* no thread waits for packets yet */
	char answer[LINE];

	if (conn < 0)
		return conn;
	code = ask(k, conn, takeover, answer, fds);
	if (!code && k->restarted && k->generation == number(answer, "generation"))
		close_all(fds, DESCRIPTORS); /* what we have still is what there is */
	else if (!code)
		code = enter(k, answer, fds);
	if (!code && k->xsk.fd >= 0)
		code = give_socket(conn, &k->xsk, false);
	watch_end(&k->watch);
	if (code) {
		close(conn);
		return code;
	}
	hang_bells(k, conn, answer, first);
	k->conn = conn;
	k->restarted = false;
	return 0;
}

static int fresh(struct kerb_intercept **out, const char *class_name,
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
	snprintf(k->class_name, sizeof(k->class_name), "%s", class_name);
	code = k->options.idle_poll && k->options.wait != KERB_WAIT_SPIN ? idle_open(&k->idle) : 0;
	if (!code)
		code = prepare_thread(&k->options);
	if (code) {
		idle_close(&k->idle);
		free(k);
		return code;
	}
	k->schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	k->before = look_at_thread(k->schedstat);
	k->seen = kerb_intercept_now();
	wait_init(&k->wait,
		  &(struct wait_goals){ .mode = (enum wait_mode)k->options.wait,
					.reach = k->options.reach ? k->options.reach : MS,
					.patience = k->options.patience,
					.awake = k->options.awake ? k->options.awake : AWAKE },
		  thread_standing());
	*out = k;
	return 0;
}

int kerb_intercept_open(struct kerb_intercept **out, const char *module, const char *class_name,
			const struct kerb_intercept_options *o)
{
	struct kerb_intercept *k;
	int code = fresh(&k, class_name, o);

	if (code)
		return code;
	if (strlen(class_name) >= sizeof(k->class_name) || strpbrk(class_name, "\"\\"))
		code = fail(EINVAL, "%s is no name of a class", class_name);
	snprintf(k->path, sizeof(k->path), strchr(module, '/') ? "%s" : "/run/kerb/modules/%s.sock",
		 module);
	if (!code && k->options.device)
		code = xsk_open(&k->xsk, k->options.device, k->options.queue, k->options.copy);
	if (!code)
		code = join(k, k->options.takeover);
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
	int code = fresh(&k, "of the kernel module", o);

	if (code)
		return code;
	code = ring_map(&k->ring, fd, ring);
	if (!code && (code = map_state(k, fd, (off_t)(2 * page + 2 * ring))))
		ring_unmap(&k->ring);
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
		unmap_controls(&k->controls);
	}
	xsk_close(&k->xsk);
	bells_close(&k->bells);
	watch_end(&k->watch);
	idle_close(&k->idle);
	if (k->conn >= 0)
		close(k->conn);
	if (k->schedstat >= 0)
		close(k->schedstat);
	free(k);
}

/* The log. */

static unsigned bucket(uint64_t ns)
{
	unsigned e, b;

	if (ns < 4)
		return (unsigned)ns;
	e = 63 - (unsigned)__builtin_clzll(ns);
	b = (e - 1) * 4 + (unsigned)(ns >> (e - 2) & 3);
	return b < ICPT_BUCKETS ? b : ICPT_BUCKETS - 1;
}

/* record_late records the state of the system, once per batch of packets: it takes microseconds. */
static void record_late(struct kerb_intercept *k, const struct kerb_packet *p, int queued)
{
	const struct icpt_record *r =
		xsk_owns(&k->xsk, p->frame) ? NULL : (const struct icpt_record *)p->frame - 1;
	struct icpt_late *l = &k->state->last[k->state->lates % ICPT_LATES];
	struct look now = look_at_thread(k->schedstat);
	unsigned cpu = 0;

	getcpu(&cpu, NULL);
	*l = (struct icpt_late){ .seq = p->seq,
				 .t1 = p->sent,
				 .t2 = p->received,
				 .waited = k->before.waited ? now.waited - k->before.waited : 0,
				 .cpu2 = cpu,
				 .queued = (uint32_t)queued,
				 .voluntary = (uint32_t)(now.voluntary - k->before.voluntary),
				 .involuntary =
					 (uint32_t)(now.involuntary - k->before.involuntary) };
	if (r) {
		l->cpu1 = r->cpu;
		l->pid1 = r->pid;
		name_of_thread(r->pid, l->comm1, sizeof(l->comm1));
	}
	k->before = now;
	__atomic_store_n(&k->state->lates, k->state->lates + 1, __ATOMIC_RELEASE);
}

static void log_packets(struct kerb_intercept *k, const struct kerb_packet *packets, int n)
{
	struct icpt_state *s = k->state;
	uint64_t deadline = s->deadline;
	bool noted = false;

	for (int i = 0; i < n; i++) {
		const struct kerb_packet *p = &packets[i];
		uint64_t delay = p->received > p->sent ? p->received - p->sent : 0;

		wait_arrived(&k->wait, p->sent);
		s->delay[bucket(delay)]++;
		if (delay > s->longest)
			s->longest = delay;
		s->missed += p->lost;
		if (!deadline || delay <= deadline)
			continue;
		s->late++;
		if (!noted)
			record_late(k, p, n - i - 1);
		noted = true;
	}
	s->received += (uint64_t)n;
}

/* Receiving. */

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
		kerb_intercept_release(k); /* records that are none */
		return 0;
	}
	now = kerb_intercept_now();
	for (int i = 0; i < n; i++)
		packets[i].received = now;
	log_packets(k, packets, n);
	return n;
}

/* attend looks after the connection: a new configuration, a restarted or removed module, a class
 * taken over. */
static int attend(struct kerb_intercept *k, uint64_t now)
{
	char line[LINE], event[NAME];
	int fds[DESCRIPTORS], n;
	ssize_t size;

	k->attend = now + 10 * MS;
	if (k->taken)
		return fail(EPIPE, "another program has taken class %s over", k->class_name);
	if (k->conn < 0) {
		int code = *k->path ? join(k, false) : 0;

		k->taken = code == -EBUSY;
		k->attend = now + 100 * MS;
		return 0;
	}
	size = hear(k->conn, line, MSG_DONTWAIT, fds, &n);
	if (size < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	close_all(fds, n);
	text(line, "event", event, sizeof(event));
	k->taken = !strcmp(event, "taken");
	k->restarted = size <= 0;
	close(k->conn);
	k->conn = -1;
	watch_end(&k->watch);
	k->attend = now; /* first what is in the ring still */
	return 0;
}

static void settle(struct kerb_intercept *k)
{
	__atomic_store_n(&k->state->waiting, ICPT_AWAKE, __ATOMIC_RELAXED);
}

static int arm(struct kerb_intercept *k, enum icpt_waiting how)
{
	kerb_intercept_release(k);
	__atomic_store_n(&k->state->waiting, (uint32_t)how, __ATOMIC_SEQ_CST);
	/* the kernel delivers, then looks; we say, then look */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (!pending(k))
		return 0;
	settle(k);
	return 1;
}

int kerb_intercept_arm(struct kerb_intercept *k)
{
	if (k->idle.fd >= 0)
		idle_set(&k->idle, kerb_intercept_now() < k->wait.last + QUIET_TIME);
	return arm(k, ICPT_BY_RING);
}

/* examine this thread; how long it waited only where late packets are reported: that is as
 * expensive as a packet. */
static struct look look(const struct kerb_intercept *k)
{
	return look_at_thread(k->state->deadline ? k->schedstat : -1);
}

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

static int watch(struct kerb_intercept *k)
{
	int code = watch_begin(&k->watch);

	if (!code)
		code = watch_add(&k->watch, k->ring.fd, WATCH_RING);
	if (!code)
		code = watch_add(&k->watch, k->conn, WATCH_CONNECTION);
	if (!code)
		code = watch_add(&k->watch, k->xsk.fd, WATCH_SOCKET);
	for (int i = 0; !code && i < k->bells.n; i++)
		code = watch_add(&k->watch, k->bells.of[i].fd, WATCH_BELL);
	if (!code && k->bells.n)
		code = watch_clock(&k->watch, LOOK_TIME);
	if (code)
		watch_end(&k->watch);
	return code;
}

/* doze sleeps until a time, which is 0, or until something else ends it, such as a packet, which is
 * 1. */
static int doze(struct kerb_intercept *k, uint64_t now, uint64_t until)
{
	int code = k->watch.fd < 0 ? watch(k) : 0;

	if (code)
		return code;
	/* a system call: a sleeper need not know who held it up */
	if (k->options.wait != KERB_WAIT_SLEEP || k->state->deadline)
		k->before = look(k);
	bells_arm(&k->bells);
	if (arm(k, k->bells.n ? ICPT_BY_BELL : ICPT_BY_RING))
		return 1;
	code = watch_sleep(&k->watch, now, until);
	settle(k);
	if (code < 0)
		return code;
	if (code & WATCH_BROKEN) /* of the kernel module */
		return fail(ENODEV, "the interface of the class has gone");
	if (code & WATCH_CONNECTION)
		k->attend = 0;
	if (k->bells.n && !bells_heard(&k->bells, code, ring_pending(&k->ring))) {
		bells_close(&k->bells);
		watch_end(&k->watch);
	}
	return code > 0;
}

/* notice finds out whether others had the CPU: we were away for long, and not by ourselves. */
static void notice(struct kerb_intercept *k, uint64_t now)
{
	struct look l;
	uint64_t away = now - k->seen;

	k->seen = now;
	if (away < MS / 2)
		return;
	l = look(k);
	if (l.involuntary != k->before.involuntary) {
		k->stats.held_up++;
		wait_preempted(&k->wait, now);
	}
	k->before = l;
}

/* rest leaves the CPU to others, and measures what they have of it: going to sleep and waking up is
 * of this thread's time. */
static int rest(struct kerb_intercept *k, uint64_t now, const struct timespec *until)
{
	uint64_t ran = clock_of(CLOCK_THREAD_CPUTIME_ID);
	int code;

	k->before = look(k);
	code = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, until, NULL);
	if (code)
		return fail(code, "sleep: %s", strerror(code));
	k->stats.rested++;
	ran = clock_of(CLOCK_THREAD_CPUTIME_ID) - ran;
	now = kerb_intercept_now() - now;
	wait_rested(&k->wait, now > ran ? now - ran : 0);
	return 0;
}

/* sleep_for carries out a step other than spinning. */
static int sleep_for(struct kerb_intercept *k, struct wait_step step, uint64_t now, uint64_t until)
{
	uint64_t to = step.kind == STEP_SLEEP ? until : earlier(step.until, until),
		 attend = k->conn < 0 && *k->path ? k->attend : UINT64_MAX;
	struct timespec t = timespec_of(to);
	int code = 0;

	idle_set(&k->idle, now < k->wait.last + QUIET_TIME);
	if (k->idle.polls && !k->bells.n) /* of bells, there is a clock */
		attend = earlier(attend, k->wait.last + QUIET_TIME);
	if (step.kind == STEP_REST) {
		code = rest(k, now, &t);
	} else {
		code = doze(k, now, earlier(to, attend));
		k->stats.slept++;
	}
	if (k->options.wait == KERB_WAIT_SLEEP) /* it learns nothing, and a packet waits */
		return code < 0 ? code : 0;
	k->seen = kerb_intercept_now();
	wait_woke(&k->wait, code || step.kind == STEP_SLEEP || to != step.until ? 0 : to, k->seen);
	return code < 0 ? code : 0;
}

/* await returns 1 when there is something in a ring, 0 when it is time. */
static int await(struct kerb_intercept *k, uint64_t until)
{
	while (!pending(k)) {
		uint64_t now = kerb_intercept_now();
		struct wait_step step;
		int code;

		if (k->options.wait != KERB_WAIT_SLEEP)
			notice(k, now);
		if (now >= until)
			return 0;
		code = now >= k->attend ? attend(k, now) : 0;
		if (code)
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

/* is_taken reports whether the ring has become another program's, without taking the word off the
 * connection. */
static bool is_taken(const struct kerb_intercept *k)
{
	char line[LINE], event[NAME] = "";
	ssize_t size = k->conn < 0 ? 0 : recv(k->conn, line, LINE - 1, MSG_DONTWAIT | MSG_PEEK);

	line[size > 0 ? size : 0] = 0;
	text(line, "event", event, sizeof(event));
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

		if (n || !timeout)
			return n;
		if (!until)
			until = kerb_intercept_now() + (uint64_t)timeout;
		n = await(k, until);
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

/* Control messages. */

static int control(struct kerb_intercept *k, const struct icpt_control *m)
{
	struct controls *c = &k->controls;
	uint32_t head[2] = { sizeof(*m), 0 };
	unsigned long at, room;

	if (!c->producer)
		return fail(ENOTSUP, "control messages need Linux 6.1, and a class of the module");
	at = *c->producer;
	room = c->size - (at - __atomic_load_n(c->consumer, __ATOMIC_ACQUIRE));
	if (room < sizeof(head) + sizeof(*m))
		return fail(EAGAIN,
			    "no room for a control message: they are taken when packets come");
	memcpy(c->data + (at & (c->size - 1)), head, sizeof(head));
	memcpy(c->data + (at & (c->size - 1)) + sizeof(head), m, sizeof(*m));
	__atomic_store_n(c->producer, at + sizeof(head) + sizeof(*m), __ATOMIC_RELEASE);
	__atomic_store_n(&k->state->doorbell, 1, __ATOMIC_SEQ_CST);
	return 0;
}

static int set(struct kerb_intercept *k, enum icpt_op op, uint32_t index, uint64_t value)
{
	return control(k, &(struct icpt_control){ .op = op, .index = index, .value = value });
}

int kerb_intercept_start(struct kerb_intercept *k) { return set(k, ICPT_OP_START, 0, 0); }
int kerb_intercept_stop(struct kerb_intercept *k) { return set(k, ICPT_OP_STOP, 0, 0); }
int kerb_intercept_action(struct kerb_intercept *k, enum kerb_action action)
{
	return set(k, ICPT_OP_ACTION, 0, action);
}
int kerb_intercept_priority(struct kerb_intercept *k, uint32_t priority)
{
	return set(k, ICPT_OP_PRIORITY, 0, priority);
}
int kerb_intercept_max_bytes(struct kerb_intercept *k, uint32_t bytes)
{
	return set(k, ICPT_OP_MAX_BYTES, 0, bytes);
}
int kerb_intercept_deadline(struct kerb_intercept *k, uint64_t ns)
{
	return set(k, ICPT_OP_DEADLINE, 0, ns);
}

int kerb_intercept_ports(struct kerb_intercept *k, uint32_t index, uint16_t first, uint16_t last)
{
	return set(k, ICPT_OP_PORTS, index, (uint64_t)first << 16 | last);
}

int kerb_intercept_payload(struct kerb_intercept *k, uint32_t index, uint16_t offset,
			   const uint8_t *bytes, const uint8_t *mask, size_t n)
{
	struct icpt_control c = { .op = ICPT_OP_PAYLOAD,
				  .index = index,
				  .value = (uint64_t)offset << 16 | n };

	if (n > sizeof(c.bytes))
		return fail(EINVAL, "%zu bytes of payload: a condition has at most %zu", n,
			    sizeof(c.bytes));
	memcpy(c.bytes, bytes, n);
	memcpy(c.mask, mask, n);
	return control(k, &c);
}
