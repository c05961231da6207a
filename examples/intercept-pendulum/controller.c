// SPDX-License-Identifier: Apache-2.0
/* Keeps the pendulum upright: push = 2 pole^2 angle + 2 pole speed, which would put both poles to
 * -pole if there were no delay.
 *
 *	controller [-p POLE] [-m MODULE] [-c CLASS] [-w adaptive|spin|sleep] [-f FIFO]
 *
 * With -m, states come by the module intercept; else by an ordinary UDP socket. */
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

static void push_back(const struct settings *s, const void *payload, size_t size,
		      const struct sockaddr_in *to)
{
	struct state state;
	struct force force;

	if (size < sizeof(state))
		return;
	memcpy(&state, payload, sizeof(state));
	force = (struct force){ .step = state.step,
				.push = to_fixed(2 * s->pole *
						 (s->pole * from_fixed(state.angle) +
						  from_fixed(state.speed))) };
	sendto(s->socket, &force, sizeof(force), 0, (const void *)to, sizeof(*to));
}

static int by_socket(const struct settings *s)
{
	for (;;) {
		struct sockaddr_in from;
		socklen_t length = sizeof(from);
		char bytes[sizeof(struct state)];
		ssize_t n = recvfrom(s->socket, bytes, sizeof(bytes), 0, (void *)&from, &length);

		if (n < 0) {
			perror("controller");
			return 1;
		}
		push_back(s, bytes, (size_t)n, &from);
	}
}

/* sender is where an IPv4 UDP packet came from. */
static struct sockaddr_in sender(const struct kerb_packet *p)
{
	struct sockaddr_in from = { .sin_family = AF_INET };

	memcpy(&from.sin_addr, p->frame + p->l3 + 12, 4);
	memcpy(&from.sin_port, p->frame + p->l4, 2);
	return from;
}

static int by_kerb(const struct settings *s)
{
	struct kerb_intercept *k;
	struct kerb_packet p;
	int n;

	if (kerb_intercept_open(&k, s->module, s->class_name, &s->options))
		goto failed;
	while ((n = kerb_intercept_receive(k, &p, 1, -1)) >= 0 || n == -EINTR) {
		struct sockaddr_in from;

		if (n < 1 || !(p.flags & KERB_PACKET_IP4) || !(p.flags & KERB_PACKET_L4))
			continue;
		from = sender(&p);
		push_back(s, p.frame + p.payload, p.caplen - p.payload, &from);
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
