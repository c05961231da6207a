// SPDX-License-Identifier: Apache-2.0
/* The controller of the pendulum: push = 2 pole^2 angle + 2 pole speed, which places both poles of
 * the closed loop at -pole if there is no delay. It also processes the LOG messages to its port.
 *
 *	controller [-p POLE] [-l US] [-f FIFO] [-a]
 *	controller [-p POLE] [-l US] [-f FIFO] -m MODULE [-c CLASS] [-L CLASS]
 *		   [-w adaptive|spin|sleep]
 *
 * Without -m, all messages are received by one socket, in the order of their arrival. -a: first
 * reads all messages that are in the socket's buffer and answers the states among them, then
 * processes the LOG messages. With -m, states are received by a class of the module intercept, and
 * LOG messages by another class in a separate thread; the socket only sends answers. -l: CPU time
 * that a LOG message takes, us. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "kerb_intercept.h"
#include "pendulum.h"

enum { MESSAGE_MAX = 128, QUEUE_MAX = 1024 /* LOG messages that -a queues; more are discarded */ };

struct settings {
	double pole;
	const char *module, *class_name, *log_class;
	struct kerb_intercept_options options;
	int socket;
	long log_us;
	bool ahead;
};

/* force_compute computes the answer to a state. Returns false if the payload is not a state. */
static bool force_compute(const struct settings *s, const void *payload, size_t size,
			  struct force *f)
{
	struct state state;

	if (size < sizeof(state) || memcmp(payload, "CTRL", 4))
		return false;
	memcpy(&state, payload, sizeof(state));
	f->step = state.step;
	f->push = to_fixed(2 * s->pole *
			   (s->pole * from_fixed(state.angle) + from_fixed(state.speed)));
	return true;
}

static int64_t cpu_time(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* log_process uses as much CPU time as to parse, compress and store a message. */
static void log_process(const struct settings *s)
{
	for (int64_t begin = cpu_time(); cpu_time() - begin < s->log_us * 1000;)
		;
}

/* state_answer answers a state. Returns false if the message is not a state. */
static bool state_answer(const struct settings *s, const char *bytes, ssize_t n,
			 const struct sockaddr_in *to)
{
	struct force force;

	if (n < 0 || !force_compute(s, bytes, (size_t)n, &force))
		return false;
	sendto(s->socket, &force, sizeof(force), 0, (const void *)to, sizeof(*to));
	return true;
}

/* run_socket receives by the socket. `waiting`: queued LOG messages; without -a each is processed
 * at once. */
static int run_socket(const struct settings *s)
{
	for (int waiting = 0;;) {
		struct sockaddr_in from;
		socklen_t length = sizeof(from);
		char bytes[MESSAGE_MAX];
		ssize_t n = recvfrom(s->socket, bytes, sizeof(bytes), waiting ? MSG_DONTWAIT : 0,
				     (void *)&from, &length);

		if (n < 0 && errno != EAGAIN && errno != EINTR) {
			perror("controller");
			return 1;
		}
		if (n >= 0 && !state_answer(s, bytes, n, &from) && waiting < QUEUE_MAX)
			waiting++;
		if (waiting && (n < 0 || !s->ahead)) {
			log_process(s);
			waiting--;
		}
	}
}

static int print_error(void)
{
	fprintf(stderr, "controller: %s\n", kerb_intercept_error());
	return 1;
}

/* log_thread processes LOG messages, at the priority of the process. */
static void *log_thread(void *arg)
{
	const struct kerb_intercept_options options = { .wait = KERB_WAIT_SLEEP, .keep = true };
	const struct settings *s = arg;
	struct kerb_intercept *k;
	struct kerb_packet p;
	int n;

	if (kerb_intercept_open(&k, s->module, s->log_class, &options))
		exit(print_error());
	while ((n = kerb_intercept_receive(k, &p, 1, -1)) >= 0 || n == -EINTR) {
		if (n == 1)
			log_process(s);
	}
	exit(print_error());
}

static int run_kerb(struct settings *s)
{
	struct kerb_intercept *k;
	struct kerb_packet p;
	struct force force;
	pthread_t thread;
	int n;

	if (s->log_class && pthread_create(&thread, NULL, log_thread, s)) {
		perror("controller: thread");
		return 1;
	}
	if (kerb_intercept_open(&k, s->module, s->class_name, &s->options) ||
	    kerb_intercept_socket(k, s->socket))
		return print_error();
	while ((n = kerb_intercept_receive(k, &p, 1, -1)) >= 0 || n == -EINTR) {
		if (n == 1 && force_compute(s, p.frame + p.payload, p.caplen - p.payload, &force))
			kerb_intercept_reply(k, &p, &force, sizeof(force));
	}
	return print_error();
}

static enum kerb_wait wait_of(const char *name)
{
	return !strcmp(name, "spin")	? KERB_WAIT_SPIN
	       : !strcmp(name, "sleep") ? KERB_WAIT_SLEEP
					: KERB_WAIT_ADAPTIVE;
}

static bool parse(struct settings *s, int argc, char **argv)
{
	for (int option; (option = getopt(argc, argv, "p:m:c:L:w:f:l:a")) != -1;) {
		switch (option) {
		case 'p': s->pole = atof(optarg); break;
		case 'm': s->module = optarg; break;
		case 'c': s->class_name = optarg; break;
		case 'L': s->log_class = optarg; break;
		case 'w': s->options.wait = wait_of(optarg); break;
		case 'f': s->options.fifo = atoi(optarg); break;
		case 'l': s->log_us = atol(optarg); break;
		case 'a': s->ahead = true; break;
		default: return false;
		}
	}
	return true;
}

int main(int argc, char **argv)
{
	struct settings s = { .pole = 100,
			      .class_name = "ctrl",
			      .log_us = 200,
			      .socket = socket(AF_INET, SOCK_DGRAM, 0) };
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(PORT) };

	if (!parse(&s, argc, argv))
		return 2;
	if (bind(s.socket, (void *)&at, sizeof(at))) {
		perror("controller");
		return 1;
	}
	const struct sched_param priority = { .sched_priority = s.options.fifo };

	if (!s.module && s.options.fifo && sched_setscheduler(0, SCHED_FIFO, &priority)) {
		perror("controller: SCHED_FIFO");
		return 1;
	}
	puts("ready");
	fflush(stdout);
	return s.module ? run_kerb(&s) : run_socket(&s);
}
