// SPDX-License-Identifier: Apache-2.0
/* The client. Modes:
 *
 *	ask	closed loop: each thread sends a request, waits for the answer and records the time
 *	offer	open loop: sends at a fixed rate, whatever the answers, and counts
 *	cost	as offer, but sleeps between batches, and measures the idle time of each CPU
 *	strain	as ask, and measures the idle time of each CPU
 *	part	half-closes each connection right after its request
 *
 * Others are in alongside.h, cars.h and follow.h. Prints one JSON object. */
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
	CROWD_CARS = 60,
	MAX_LOSSES = 3,
	WARM_NS = 5000000
};

static enum protocol protocol;
static bool tcp, curve;
static int server_pid;
static struct sockaddr_in6 server; /* or sockaddr_in, whose port has the same offset */
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
	/* on_curve: answers with a limit between the lowest and the highest */
	uint64_t sent, answered, wrong, on_curve;
	int64_t begin, end;
};

static void print_totals(const struct totals *t)
{
	printf("\"sent\":%lu,\"answered\":%lu,\"wrong\":%lu,\"curved\":%lu,\"seconds\":%.9f}\n",
	       t->sent, t->answered, t->wrong, t->on_curve, (t->end - t->begin) / 1e9);
}

#include "idle.h"

/* write_request */

struct requester {
	pthread_t thread;
	int cpu;
	enum protocol protocol;
	uint32_t number;
	struct totals totals;
	struct histogram times;
	struct observation *observations; /* in mode follow */
};

#include "follow.h"

static pthread_barrier_t start;
static int64_t deadline_ns;
static uint64_t
	requests; /* per thread; 0 for no limit but deadline_ns, which may be 0 if this is set */

static void send_op(int fd, uint32_t op)
{
	struct speed m = { op, 0 };

	if (send(fd, &m, sizeof(m), 0) < 0)
		die("send");
}

/* send_crowd makes cars enter or leave, so that the limit is on the curve. */
static void send_crowd(uint32_t op)
{
	int fd = open_socket(0);
	struct speed m;

	for (int i = 0; i < CROWD_CARS; i++) {
		send_op(fd, op);
		if (op == GET_SPEED_LIMIT && recv(fd, &m, sizeof(m), 0) < 0)
			die("crowd");
	}
	close(fd);
}

/* request_once returns -1 after a timeout. The caller then closes the socket, since the answer may
 * arrive late. */
static int request_once(int fd, struct requester *a, bool timed)
{
	uint8_t out[MAX_MESSAGE], in[MAX_MESSAGE];
	size_t size = write_request(a->protocol, a->number++, out);
	int64_t before = now_ns();

	if (send(fd, out, size, MSG_NOSIGNAL) < 0)
		return -1;
	/* over TCP, requests and answers have the same size */
	ssize_t n = recv(fd, in, tcp ? size : sizeof(in), tcp ? MSG_WAITALL : 0);
	int64_t after = now_ns();

	if (n < 0)
		return -1;
	if (timed)
		histogram_add(&a->times, after - before);
	a->totals.answered += timed;
	a->totals.wrong += following ? !record_number(a->observations, in, n, before, after)
				     : !valid_answer(a->protocol, in, n);
	if (curve) {
		a->totals.on_curve += timed && on_curve(in, n);
		send_op(fd, OUT_OF_RANGE);
	}
	return 0;
}

static void *run_requester(void *arg)
{
	struct requester *a = arg;
	int fd = open_socket(0), losses = 0;

	pin_thread(a->cpu);
	request_once(fd, a, false); /* neighbour, route, caches */
	pthread_barrier_wait(&start);
	a->totals.begin = now_ns();
	while (losses < MAX_LOSSES && (!requests || a->totals.sent < requests) &&
	       !atomic_load_explicit(&follow_done, memory_order_relaxed) &&
	       (!deadline_ns || now_ns() - a->totals.begin < deadline_ns)) {
		a->totals.sent++;
		if (request_once(fd, a, true)) {
			losses++;
			close(fd);
			fd = open_socket(0);
		}
		sched_yield(); /* the scheduler switches threads between requests, not within */
	}
	a->totals.end = now_ns();
	close(fd);
	return NULL;
}

static void add_totals(struct totals *to, const struct totals *from)
{
	to->sent += from->sent;
	to->answered += from->answered;
	to->wrong += from->wrong;
	to->on_curve += from->on_curve;
	if (!to->begin || from->begin < to->begin)
		to->begin = from->begin;
	if (from->end > to->end)
		to->end = from->end;
}

/* print_thread_means prints the mean time of a request for each thread in us, as Weinhold 2023
 * defines it: from its first request to its last answer, divided by its requests. */
static void print_thread_means(const struct requester *requesters, int threads)
{
	printf("\"threadMeans\":[");
	for (int i = 0; i < threads; i++) {
		const struct totals *t = &requesters[i].totals;

		printf("%s%.3f", i ? "," : "", t->sent ? (t->end - t->begin) / 1e3 / t->sent : 0);
	}
	printf("],");
}

static void run_requesters(int threads, bool probe_idle)
{
	struct requester *requesters = allocate(threads, sizeof(*requesters));
	struct histogram *sum = allocate(1, sizeof(*sum));
	struct totals totals = { 0 };
	pthread_attr_t attr;

	struct idle_probe *probes = probe_idle ? start_idle_probes() : NULL;

	if (curve)
		send_crowd(GET_SPEED_LIMIT);
	pthread_barrier_init(&start, NULL, threads + 1);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK);
	for (int i = 0; i < threads; i++) {
		requesters[i].cpu = own.list[i % own.n];
		requesters[i].protocol = protocol;
		requesters[i].number = i << 20;
		requesters[i].observations =
			following ? allocate(NUMBERS, sizeof(struct observation)) : NULL;
		if (pthread_create(&requesters[i].thread, &attr, run_requester, &requesters[i]))
			die("thread");
	}
	pthread_barrier_wait(&start);
	atomic_store(&counting, probe_idle);
	for (int i = 0; i < threads; i++) {
		pthread_join(requesters[i].thread, NULL);
		histogram_merge(sum, &requesters[i].times);
		add_totals(&totals, &requesters[i].totals);
		if (i && following)
			merge_observations(requesters[0].observations, requesters[i].observations);
	}
	atomic_store(&counting, false);
	if (curve)
		send_crowd(OUT_OF_RANGE);
	probe_idle ? stop_idle_probes(probes, 0) : (void)putchar('{');
	print_times(sum);
	print_thread_means(requesters, threads);
	if (following)
		print_observations(requesters[0].observations, totals.begin);
	print_totals(&totals);
}

/* offer */

struct load_sender {
	pthread_t thread;
	int cpu, flows, *fds;
	double rate;
	uint32_t number;
	struct totals totals;
	struct mmsghdr in[BATCH], out[BATCH];
	struct iovec in_iov[BATCH], out_iov[BATCH];
	uint8_t in_data[BATCH][MAX_MESSAGE], out_data[BATCH][MAX_MESSAGE];
};

static void open_flows(struct load_sender *o)
{
	o->fds = allocate(o->flows, sizeof(int));
	for (int i = 0; i < o->flows; i++)
		o->fds[i] = open_socket(SOCK_NONBLOCK);
	for (int i = 0; i < BATCH; i++) {
		o->in_iov[i] = (struct iovec){ o->in_data[i], MAX_MESSAGE };
		o->out_iov[i] = (struct iovec){ o->out_data[i],
						write_request(protocol, 0, o->out_data[i]) };
		o->in[i].msg_hdr = (struct msghdr){ .msg_iov = &o->in_iov[i], .msg_iovlen = 1 };
		o->out[i].msg_hdr = (struct msghdr){ .msg_iov = &o->out_iov[i], .msg_iovlen = 1 };
	}
}

static void send_batch(struct load_sender *o, int fd, int n)
{
	for (int i = 0; i < n && protocol == COAP; i++)
		write_request(protocol, o->number++, o->out_data[i]);
	int done = sendmmsg(fd, o->out, n, 0);

	o->totals.sent += done > 0 ? done : 0;
}

static int receive_answers(struct load_sender *o, int fd)
{
	int n = recvmmsg(fd, o->in, BATCH, MSG_DONTWAIT, NULL);

	for (int i = 0; i < n; i++)
		o->totals.wrong += !valid_answer(protocol, o->in_data[i], o->in[i].msg_len);
	o->totals.answered += n > 0 ? n : 0;
	return n;
}

/* drain_answers receives until there is an answer for each request, or none arrives for a time, in
 * ns. The remaining requests count as lost. */
static void drain_answers(struct load_sender *o, int64_t wait)
{
	for (int64_t last = now_ns();
	     o->totals.answered < o->totals.sent && now_ns() - last < wait;)
		for (int i = 0; i < o->flows; i++)
			if (receive_answers(o, o->fds[i]) > 0)
				last = now_ns();
}

/* run_load_sender sends the requests that are due, on one flow after the other, and receives
 * answers in between. */
static void *run_load_sender(void *arg)
{
	struct load_sender *o = arg;
	int out = 0, in = 0;

	pin_thread(o->cpu);
	open_flows(o);
	pthread_barrier_wait(&start);
	o->totals.begin = now_ns();
	for (int64_t t; (t = now_ns() - o->totals.begin) < deadline_ns;) {
		int64_t due = o->rate * t / 1e9 - o->totals.sent;

		if (due > 0) {
			send_batch(o, o->fds[out], due < BATCH ? due : BATCH);
			out = (out + 1) % o->flows;
		}
		receive_answers(o, o->fds[in]);
		in = (in + 1) % o->flows;
	}
	o->totals.end = now_ns();
	drain_answers(o, DRAIN_NS);
	return NULL;
}

static void run_load_senders(int flows, double rate)
{
	int threads = flows < own.n ? flows : own.n;
	struct load_sender *senders = allocate(threads, sizeof(*senders));
	struct totals totals = { 0 };

	pthread_barrier_init(&start, NULL, threads);
	for (int i = 0; i < threads; i++) {
		senders[i].cpu = own.list[i];
		senders[i].flows = flows / threads;
		senders[i].rate = rate / threads;
		pthread_create(&senders[i].thread, NULL, run_load_sender, &senders[i]);
	}
	for (int i = 0; i < threads; i++) {
		pthread_join(senders[i].thread, NULL);
		add_totals(&totals, &senders[i].totals);
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

/* send_paced sends one batch per flow, in turn, and sleeps in between. */
static void send_paced(struct load_sender *o, int batch)
{
	int64_t gap = batch * 1e9 / o->rate;
	int flow = 0;

	prctl(PR_SET_TIMERSLACK, 1);
	o->totals.begin = now_ns();
	for (int64_t due = o->totals.begin; due < o->totals.begin + deadline_ns; due += gap) {
		sleep_until(due);
		receive_answers(o, o->fds[flow]);
		send_batch(o, o->fds[flow], batch);
		flow = (flow + 1) % o->flows;
	}
	o->totals.end = now_ns();
}

static void run_cost(int flows, double rate)
{
	struct load_sender o = { .cpu = own.list[0], .flows = flows, .rate = rate };
	struct idle_probe *probes = start_idle_probes();

	pin_thread(o.cpu);
	open_flows(&o);
	sleep_until(now_ns() + WARM_NS);
	atomic_store(&counting, true);
	int64_t spent = busy_ns();

	send_paced(&o, COST_BATCH);
	spent = busy_ns() - spent;
	atomic_store(&counting, false);
	drain_answers(&o, DRAIN_NS);
	stop_idle_probes(probes, spent);
	print_totals(&o.totals);
}

/* part */

/* run_half_close sends one request on each connection, shortly after it was opened, followed at
 * once by shutdown(SHUT_WR). */
static void run_half_close(int connections)
{
	uint8_t out[MAX_MESSAGE], in[MAX_MESSAGE];
	size_t size = write_request(protocol, 0, out);
	struct totals totals = { .begin = now_ns() };

	for (; totals.sent < (uint64_t)connections; totals.sent++) {
		int fd = open_socket(0);

		sleep_until(now_ns() + WARM_NS);
		if (send(fd, out, size, MSG_NOSIGNAL) < 0 || shutdown(fd, SHUT_WR))
			die("send");
		totals.answered += recv(fd, in, size, MSG_WAITALL) == (ssize_t)size;
		close(fd);
	}
	totals.end = now_ns();
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
	raise_priority();
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
		run_requesters(atoi(argv[7]), !strcmp(argv[1], "strain"));
	else if (!strcmp(argv[1], "part"))
		run_half_close(atoi(argv[7]));
	else if (!strcmp(argv[1], "alongside"))
		run_alongside(atoi(argv[7]), atof(argv[9]));
	else if (!strcmp(argv[1], "cars"))
		run_cars(atoi(argv[7]), atof(argv[9]));
	else if (!strcmp(argv[1], "offer"))
		run_load_senders(atoi(argv[7]), atof(argv[9]));
	else
		run_cost(atoi(argv[7]), atof(argv[9]));
}
