// SPDX-License-Identifier: Apache-2.0
/* Keeps the pendulum upright: push = 2 pole^2 angle + 2 pole speed, which would put both poles to
 * -pole if there were no delay. It also works on the LOG messages that come to its port.
 *
 *	controller [-p POLE] [-l US] [-f FIFO] [-a]
 *	controller [-p POLE] [-l US] [-f FIFO] -m MODULE [-c CLASS] [-L CLASS]
 *		   [-w adaptive|spin|sleep]
 *
 * Without -m, all messages go by one socket, in the order in which they come. -a: reads ahead what
 * the socket has, and answers the states in it before it works on the LOG messages.
 * With -m, states come by a class of the module intercept, and LOG messages by another one, to a
 * thread of their own; the socket is for answers. -l: CPU time that each LOG message takes. */
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

enum { LONGEST = 128, AHEAD = 1024 /* LOG messages that -a keeps; further ones are discarded */ };

struct settings {
	double pole;
	const char *module, *class_name, *log_class;
	struct kerb_intercept_options options;
	int socket;
	long log_us;
	bool ahead;
};

/* force_of is the answer to a state, or false if the packet is none. */
static bool force_of(const struct settings *s, const void *payload, size_t size, struct force *f)
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

/* work_on_log takes the CPU as long as it would to parse, compress and store a message. */
static void work_on_log(const struct settings *s)
{
	for (int64_t begin = cpu_time(); cpu_time() - begin < s->log_us * 1000;)
		;
}

/* answer returns false if the message is no state. */
static bool answer(const struct settings *s, const char *bytes, ssize_t n,
		   const struct sockaddr_in *to)
{
	struct force force;

	if (n < 0 || !force_of(s, bytes, (size_t)n, &force))
		return false;
	sendto(s->socket, &force, sizeof(force), 0, (const void *)to, sizeof(*to));
	return true;
}

/* by_socket has at most `ahead` LOG messages that wait: with 0 each is worked on as it comes. */
static int by_socket(const struct settings *s)
{
	for (int waiting = 0;;) {
		struct sockaddr_in from;
		socklen_t length = sizeof(from);
		char bytes[LONGEST];
		ssize_t n = recvfrom(s->socket, bytes, sizeof(bytes), waiting ? MSG_DONTWAIT : 0,
				     (void *)&from, &length);

		if (n < 0 && errno != EAGAIN && errno != EINTR) {
			perror("controller");
			return 1;
		}
		if (n >= 0 && !answer(s, bytes, n, &from) && waiting < AHEAD)
			waiting++;
		if (waiting && (n < 0 || !s->ahead)) {
			work_on_log(s);
			waiting--;
		}
	}
}

static int failed(void)
{
	fprintf(stderr, "controller: %s\n", kerb_intercept_error());
	return 1;
}

/* log_by_kerb is a thread at the process's own priority. */
static void *log_by_kerb(void *arg)
{
	const struct kerb_intercept_options options = { .wait = KERB_WAIT_SLEEP, .keep = true };
	const struct settings *s = arg;
	struct kerb_intercept *k;
	struct kerb_packet p;
	int n;

	if (kerb_intercept_open(&k, s->module, s->log_class, &options))
		exit(failed());
	while ((n = kerb_intercept_receive(k, &p, 1, -1)) >= 0 || n == -EINTR) {
		if (n == 1)
			work_on_log(s);
	}
	exit(failed());
}

static int by_kerb(struct settings *s)
{
	struct kerb_intercept *k;
	struct kerb_packet p;
	struct force force;
	pthread_t thread;
	int n;

	if (s->log_class && pthread_create(&thread, NULL, log_by_kerb, s)) {
		perror("controller: thread");
		return 1;
	}
	if (kerb_intercept_open(&k, s->module, s->class_name, &s->options) ||
	    kerb_intercept_socket(k, s->socket))
		return failed();
	while ((n = kerb_intercept_receive(k, &p, 1, -1)) >= 0 || n == -EINTR) {
		if (n == 1 && force_of(s, p.frame + p.payload, p.caplen - p.payload, &force))
			kerb_intercept_reply(k, &p, &force, sizeof(force));
	}
	return failed();
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
	return s.module ? by_kerb(&s) : by_socket(&s);
}
