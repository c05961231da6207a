// SPDX-License-Identifier: Apache-2.0
/* Keeps the pendulum upright: push = 2 pole^2 angle + 2 pole speed, which would put both poles to
 * -pole if there were no delay.
 *
 *	controller [-p POLE] [-m MODULE] [-c CLASS] [-w adaptive|spin|sleep] [-f FIFO]
 *
 * With -m, states come by the module intercept, and a socket is for answers; else both go by the
 * socket. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kerb_intercept.h"
#include "pendulum.h"

struct settings {
	double pole;
	const char *module, *class_name;
	struct kerb_intercept_options options;
	int socket;
};

/* force_of is the answer to a state, or false if the packet is none. */
static bool force_of(const struct settings *s, const void *payload, size_t size, struct force *f)
{
	struct state state;

	if (size < sizeof(state))
		return false;
	memcpy(&state, payload, sizeof(state));
	f->step = state.step;
	f->push = to_fixed(2 * s->pole *
			   (s->pole * from_fixed(state.angle) + from_fixed(state.speed)));
	return true;
}

static int by_socket(const struct settings *s)
{
	for (;;) {
		struct sockaddr_in from;
		socklen_t length = sizeof(from);
		char bytes[sizeof(struct state)];
		struct force force;
		ssize_t n = recvfrom(s->socket, bytes, sizeof(bytes), 0, (void *)&from, &length);

		if (n < 0) {
			perror("controller");
			return 1;
		}
		if (force_of(s, bytes, (size_t)n, &force))
			sendto(s->socket, &force, sizeof(force), 0, (void *)&from, length);
	}
}

static int by_kerb(const struct settings *s)
{
	struct kerb_intercept *k;
	struct kerb_packet p;
	struct force force;
	int n;

	if (kerb_intercept_open(&k, s->module, s->class_name, &s->options) ||
	    kerb_intercept_socket(k, s->socket))
		goto failed;
	while ((n = kerb_intercept_receive(k, &p, 1, -1)) >= 0 || n == -EINTR) {
		if (n == 1 && force_of(s, p.frame + p.payload, p.caplen - p.payload, &force))
			kerb_intercept_reply(k, &p, &force, sizeof(force));
	}
failed:
	fprintf(stderr, "controller: %s\n", kerb_intercept_error());
	return 1;
}

static enum kerb_wait wait_of(const char *name)
{
	return !strcmp(name, "spin")	? KERB_WAIT_SPIN
	       : !strcmp(name, "sleep") ? KERB_WAIT_SLEEP
					: KERB_WAIT_ADAPTIVE;
}

int main(int argc, char **argv)
{
	struct settings s = { .pole = 100,
			      .class_name = "ctrl",
			      .socket = socket(AF_INET, SOCK_DGRAM, 0) };
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(PORT) };

	for (int option; (option = getopt(argc, argv, "p:m:c:w:f:")) != -1;) {
		switch (option) {
		case 'p': s.pole = atof(optarg); break;
		case 'm': s.module = optarg; break;
		case 'c': s.class_name = optarg; break;
		case 'w': s.options.wait = wait_of(optarg); break;
		case 'f': s.options.fifo = atoi(optarg); break;
		default: return 2;
		}
	}
	if (bind(s.socket, (void *)&at, sizeof(at))) {
		perror("controller");
		return 1;
	}
	puts("ready");
	fflush(stdout);
	return s.module ? by_kerb(&s) : by_socket(&s);
}
