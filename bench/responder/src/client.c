// SPDX-License-Identifier: Apache-2.0
/* The client: `ask` runs threads that each send a request, wait for the answer and take the time;
 * `offer` sends at a rate, whatever comes back, and counts; `cost` offers too, but asleep between
 * batches, and has something idle on each CPU find out how much of it was taken; `strain` does that
 * while it asks; `part` ends each connection with its request. Further modes are in alongside.h,
 * cars.h and follow.h. Prints one JSON object. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wire.h"
#include "cpu.h"
#include "histogram.h"

enum { BATCH = 32, RECEIVE_BUFFER = 16 << 20, STACK = 64 << 10 };
enum {
	TIMEOUT_MS = 2000,
	DRAIN_NS = 30000000,
	COST_BATCH = 8,
	CROWD = 60,
	MOST_LOSSES = 3,
	WARM_NS = 5000000
};

static enum protocol protocol;
static bool tcp, curve;
static int server_pid;
static struct sockaddr_in6 server; /* or sockaddr_in, whose port is at the same place */
static struct cpus own, all;

static int open_socket_to(int port, int flags)
{
	struct timeval wait = { .tv_sec = TIMEOUT_MS / 1000 };
	struct sockaddr_in6 to = server;
	int one = 1, buffer = RECEIVE_BUFFER,
	    fd = socket(to.sin6_family, (tcp ? SOCK_STREAM : SOCK_DGRAM) | flags, 0);

	to.sin6_port = htons(port);
	if (fd < 0 || (tcp && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))) ||
	    connect(fd, (void *)&to, sizeof(to)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof(buffer)))
		die("connect");
	return fd;
}

static int open_socket(int flags) { return open_socket_to(ntohs(server.sin6_port), flags); }

/* parse_server reads an address of either family. */
static bool parse_server(const char *address, int port)
{
	struct sockaddr_in *v4 = (void *)&server;

	server.sin6_port = htons(port);
	server.sin6_family = AF_INET;
	if (inet_pton(AF_INET, address, &v4->sin_addr) == 1)
		return true;
	server.sin6_family = AF_INET6;
	return inet_pton(AF_INET6, address, &server.sin6_addr) == 1;
}

static void *allocate(size_t n, size_t size)
{
	void *p = calloc(n, size);

	if (!p)
		die("memory");
	return p;
}

struct totals {
	/* curved: limits between the highest and the lowest */
	uint64_t sent, answered, wrong, curved;
	int64_t begin, end;
};

static void print_totals(const struct totals *t)
{
	printf("\"sent\":%lu,\"answered\":%lu,\"wrong\":%lu,\"curved\":%lu,\"seconds\":%.9f}\n",
	       t->sent, t->answered, t->wrong, t->curved, (t->end - t->begin) / 1e9);
}

#include "soak.h"

/* ask */

struct asker {
	pthread_t thread;
	int cpu;
	enum protocol protocol;
	uint32_t number;
	struct totals totals;
	struct histogram times;
	struct heard *heard; /* if following */
};

#include "follow.h"

static pthread_barrier_t start;
static int64_t deadline_ns;
static uint64_t requests; /* of each thread; 0: until the deadline, which may be 0 otherwise */

static void say(int fd, uint32_t op)
{
	struct speed m = { op, 0 };

	if (send(fd, &m, sizeof(m), 0) < 0)
		die("send");
}

/* crowd has cars enter or leave, so that the limit is one of the curve. */
static void crowd(uint32_t op)
{
	int fd = open_socket(0);
	struct speed m;

	for (int i = 0; i < CROWD; i++) {
		say(fd, op);
		if (op == GET_SPEED_LIMIT && recv(fd, &m, sizeof(m), 0) < 0)
			die("crowd");
	}
	close(fd);
}

/* ask_once returns -1 after a time without an answer; the socket is then done with, since the
 * answer may come late. */
static int ask_once(int fd, struct asker *a, bool timed)
{
	uint8_t out[MAX_MESSAGE], in[MAX_MESSAGE];
	size_t size = ask(a->protocol, a->number++, out);
	int64_t before = now();

	if (send(fd, out, size, MSG_NOSIGNAL) < 0)
		return -1;
	/* over TCP all is of one size */
	ssize_t n = recv(fd, in, tcp ? size : sizeof(in), tcp ? MSG_WAITALL : 0);
	int64_t after = now();

	if (n < 0)
		return -1;
	if (timed)
		record(&a->times, after - before);
	a->totals.answered += timed;
	a->totals.wrong += following ? !note_number(a->heard, in, n, before, after) :
				       !right(a->protocol, in, n);
	if (curve) {
		a->totals.curved += timed && curved(in, n);
		say(fd, OUT_OF_RANGE);
	}
	return 0;
}

static void *run_asker(void *arg)
{
	struct asker *a = arg;
	int fd = open_socket(0), losses = 0;

	pin(a->cpu);
	ask_once(fd, a, false); /* neighbour, route, caches */
	pthread_barrier_wait(&start);
	a->totals.begin = now();
	while (losses < MOST_LOSSES && (!requests || a->totals.sent < requests) &&
	       !atomic_load_explicit(&followed, memory_order_relaxed) &&
	       (!deadline_ns || now() - a->totals.begin < deadline_ns)) {
		a->totals.sent++;
		if (ask_once(fd, a, true)) {
			losses++;
			close(fd);
			fd = open_socket(0);
		}
		sched_yield(); /* so that the threads' turns change between requests, not within */
	}
	a->totals.end = now();
	close(fd);
	return NULL;
}

static void add(struct totals *to, const struct totals *from)
{
	to->sent += from->sent;
	to->answered += from->answered;
	to->wrong += from->wrong;
	to->curved += from->curved;
	if (!to->begin || from->begin < to->begin)
		to->begin = from->begin;
	if (from->end > to->end)
		to->end = from->end;
}

/* print_thread_means prints for each thread what a request took, as Weinhold 2023 has it: the time
 * from its first request to its last answer, divided by its requests. In us. */
static void print_thread_means(const struct asker *askers, int threads)
{
	printf("\"threadMeans\":[");
	for (int i = 0; i < threads; i++) {
		const struct totals *t = &askers[i].totals;

		printf("%s%.3f", i ? "," : "", t->sent ? (t->end - t->begin) / 1e3 / t->sent : 0);
	}
	printf("],");
}

static void run_askers(int threads, bool strain)
{
	struct asker *askers = allocate(threads, sizeof(*askers));
	struct histogram *sum = allocate(1, sizeof(*sum));
	struct totals totals = { 0 };
	pthread_attr_t attr;

	struct soaker *soakers = strain ? start_soaking() : NULL;

	if (curve)
		crowd(GET_SPEED_LIMIT);
	pthread_barrier_init(&start, NULL, threads + 1);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK);
	for (int i = 0; i < threads; i++) {
		askers[i].cpu = own.list[i % own.n];
		askers[i].protocol = protocol;
		askers[i].number = i << 20;
		askers[i].heard = following ? allocate(NUMBERS, sizeof(struct heard)) : NULL;
		if (pthread_create(&askers[i].thread, &attr, run_asker, &askers[i]))
			die("thread");
	}
	pthread_barrier_wait(&start);
	atomic_store(&counting, strain);
	for (int i = 0; i < threads; i++) {
		pthread_join(askers[i].thread, NULL);
		merge(sum, &askers[i].times);
		add(&totals, &askers[i].totals);
		if (i && following)
			merge_heard(askers[0].heard, askers[i].heard);
	}
	atomic_store(&counting, false);
	if (curve)
		crowd(OUT_OF_RANGE);
	strain ? stop_soaking(soakers, 0) : (void)putchar('{');
	print_times(sum);
	print_thread_means(askers, threads);
	if (following)
		print_heard(askers[0].heard, totals.begin);
	print_totals(&totals);
}

/* offer */

struct offerer {
	pthread_t thread;
	int cpu, flows, *fds;
	double rate;
	uint32_t number;
	struct totals totals;
	struct mmsghdr in[BATCH], out[BATCH];
	struct iovec in_iov[BATCH], out_iov[BATCH];
	uint8_t in_data[BATCH][MAX_MESSAGE], out_data[BATCH][MAX_MESSAGE];
};

static void prepare(struct offerer *o)
{
	o->fds = allocate(o->flows, sizeof(int));
	for (int i = 0; i < o->flows; i++)
		o->fds[i] = open_socket(SOCK_NONBLOCK);
	for (int i = 0; i < BATCH; i++) {
		o->in_iov[i] = (struct iovec){ o->in_data[i], MAX_MESSAGE };
		o->out_iov[i] = (struct iovec){ o->out_data[i], ask(protocol, 0, o->out_data[i]) };
		o->in[i].msg_hdr = (struct msghdr){ .msg_iov = &o->in_iov[i], .msg_iovlen = 1 };
		o->out[i].msg_hdr = (struct msghdr){ .msg_iov = &o->out_iov[i], .msg_iovlen = 1 };
	}
}

static void send_batch(struct offerer *o, int fd, int n)
{
	for (int i = 0; i < n && protocol == COAP; i++)
		ask(protocol, o->number++, o->out_data[i]);
	int done = sendmmsg(fd, o->out, n, 0);

	o->totals.sent += done > 0 ? done : 0;
}

static int receive(struct offerer *o, int fd)
{
	int n = recvmmsg(fd, o->in, BATCH, MSG_DONTWAIT, NULL);

	for (int i = 0; i < n; i++)
		o->totals.wrong += !right(protocol, o->in_data[i], o->in[i].msg_len);
	o->totals.answered += n > 0 ? n : 0;
	return n;
}

/* drain receives answers until none has come for a time; the remaining requests count as lost. */
static void drain(struct offerer *o, int64_t wait)
{
	for (int64_t last = now(); o->totals.answered < o->totals.sent && now() - last < wait;)
		for (int i = 0; i < o->flows; i++)
			if (receive(o, o->fds[i]) > 0)
				last = now();
}

/* run_offerer sends what is due, of one flow after the other, and looks for answers in between. */
static void *run_offerer(void *arg)
{
	struct offerer *o = arg;
	int out = 0, in = 0;

	pin(o->cpu);
	prepare(o);
	pthread_barrier_wait(&start);
	o->totals.begin = now();
	for (int64_t t; (t = now() - o->totals.begin) < deadline_ns;) {
		int64_t due = o->rate * t / 1e9 - o->totals.sent;

		if (due > 0) {
			send_batch(o, o->fds[out], due < BATCH ? due : BATCH);
			out = (out + 1) % o->flows;
		}
		receive(o, o->fds[in]);
		in = (in + 1) % o->flows;
	}
	o->totals.end = now();
	drain(o, DRAIN_NS);
	return NULL;
}

static void run_offerers(int flows, double rate)
{
	int threads = flows < own.n ? flows : own.n;
	struct offerer *offerers = allocate(threads, sizeof(*offerers));
	struct totals totals = { 0 };

	pthread_barrier_init(&start, NULL, threads);
	for (int i = 0; i < threads; i++) {
		offerers[i].cpu = own.list[i];
		offerers[i].flows = flows / threads;
		offerers[i].rate = rate / threads;
		pthread_create(&offerers[i].thread, NULL, run_offerer, &offerers[i]);
	}
	for (int i = 0; i < threads; i++) {
		pthread_join(offerers[i].thread, NULL);
		add(&totals, &offerers[i].totals);
	}
	putchar('{');
	print_totals(&totals);
}

/* cost */

static void sleep_until(int64_t ns)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

/* send_asleep sends a batch on one flow after the other, and sleeps in between. */
static void send_asleep(struct offerer *o, int batch)
{
	int64_t gap = batch * 1e9 / o->rate;
	int flow = 0;

	prctl(PR_SET_TIMERSLACK, 1);
	o->totals.begin = now();
	for (int64_t due = o->totals.begin; due < o->totals.begin + deadline_ns; due += gap) {
		sleep_until(due);
		receive(o, o->fds[flow]);
		send_batch(o, o->fds[flow], batch);
		flow = (flow + 1) % o->flows;
	}
	o->totals.end = now();
}

static void run_cost(int flows, double rate)
{
	struct offerer o = { .cpu = own.list[0], .flows = flows, .rate = rate };
	struct soaker *soakers = start_soaking();

	pin(o.cpu);
	prepare(&o);
	sleep_until(now() + WARM_NS);
	atomic_store(&counting, true);
	int64_t spent = busy();

	send_asleep(&o, COST_BATCH);
	spent = busy() - spent;
	atomic_store(&counting, false);
	drain(&o, DRAIN_NS);
	stop_soaking(soakers, spent);
	print_totals(&o.totals);
}

/* part */

/* run_parting has connections, open for a moment, each send one request and at once say that it was
 * the last (shutdown). */
static void run_parting(int connections)
{
	uint8_t out[MAX_MESSAGE], in[MAX_MESSAGE];
	size_t size = ask(protocol, 0, out);
	struct totals totals = { .begin = now() };

	for (; totals.sent < (uint64_t)connections; totals.sent++) {
		int fd = open_socket(0);

		sleep_until(now() + WARM_NS);
		if (send(fd, out, size, MSG_NOSIGNAL) < 0 || shutdown(fd, SHUT_WR))
			die("send");
		totals.answered += recv(fd, in, size, MSG_WAITALL) == (ssize_t)size;
		close(fd);
	}
	totals.end = now();
	putchar('{');
	print_totals(&totals);
}

#include "alongside.h"
#include "cars.h"

/* client ask|strain|offer|cost|part|follow|alongside|cars speed|curve|coap|work/STEPS|tcp ADDRESS
 * PORT CLIENT-CPUS ALL-CPUS THREADS-OR-FLOWS|SEED DURATION-MS REQUESTS-PER-THREAD|RATE
 * PID-OF-SERVER [PORT-OF-BYSTANDER] */
int main(int argc, char **argv)
{
	if (argc != 11 && argc != 12)
		return 2;
	hurry();
	protocol = parse_protocol(argv[2]);
	prepare_work(argv[2]);
	tcp = !strcmp(argv[2], "tcp");
	curve = !strcmp(argv[2], "curve");
	if (!parse_server(argv[3], atoi(argv[4])))
		return 2;
	own = parse_cpus(argv[5]);
	all = parse_cpus(argv[6]);
	deadline_ns = atof(argv[8]) * 1e6;
	requests = atoll(argv[9]);
	server_pid = atoi(argv[10]);
	bystander_port = argc > 11 ? atoi(argv[11]) : 0;
	following = !strcmp(argv[1], "follow");
	if (!strcmp(argv[1], "ask") || !strcmp(argv[1], "strain") || following)
		run_askers(atoi(argv[7]), !strcmp(argv[1], "strain"));
	else if (!strcmp(argv[1], "part"))
		run_parting(atoi(argv[7]));
	else if (!strcmp(argv[1], "alongside"))
		run_offering(atoi(argv[7]), atof(argv[9]));
	else if (!strcmp(argv[1], "cars"))
		run_cars(atoi(argv[7]), atof(argv[9]));
	else if (!strcmp(argv[1], "offer"))
		run_offerers(atoi(argv[7]), atof(argv[9]));
	else
		run_cost(atoi(argv[7]), atof(argv[9]));
}
