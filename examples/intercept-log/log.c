// SPDX-License-Identifier: Apache-2.0
/* intercept-log MODULE CLASS: prints a line for each packet of a class, and statistics at exit.
 *
 *	make -C lib/intercept
 *	cc -Ilib/intercept -o intercept-log examples/intercept-log/log.c
 *	lib/intercept/libkerb-intercept.a */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "kerb_intercept.h"

enum { BATCH = 64 };

static volatile sig_atomic_t stopped;

static void stop(int signal) { stopped = signal; }

/* addresses formats source and destination address of an IP packet. */
static void addresses(const struct kerb_packet *p, char *text, size_t size)
{
	bool six = p->flags & KERB_PACKET_IP6;
	size_t from = p->l3 + (six ? 8 : 12), n = six ? 16 : 4;
	char source[INET6_ADDRSTRLEN] = "?", destination[INET6_ADDRSTRLEN] = "?";

	if (from + 2 * n <= p->caplen) {
		inet_ntop(six ? AF_INET6 : AF_INET, p->frame + from, source, sizeof(source));
		inet_ntop(six ? AF_INET6 : AF_INET, p->frame + from + n, destination,
			  sizeof(destination));
	}
	snprintf(text, size, "%s > %s", source, destination);
}

static void write_packet(const struct kerb_packet *p)
{
	char text[2 * INET6_ADDRSTRLEN + 4];

	if (p->lost)
		printf("%" PRIu64 " packets were lost here\n", p->lost);
	addresses(p, text, sizeof(text));
	printf("%" PRIu64 ".%06" PRIu64 " #%" PRIu64 " %s %u bytes, %" PRIu64
	       " ns after the kernel\n",
	       p->sent / 1000000000, p->sent / 1000 % 1000000, p->seq, text, p->len,
	       p->received - p->sent);
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = stop };
	struct kerb_intercept_stats stats;
	struct kerb_packet packets[BATCH];
	struct kerb_intercept *k;
	int n = 0;

	if (argc != 3) {
		fputs("usage: intercept-log MODULE CLASS\n", stderr);
		return 2;
	}
	sigaction(SIGINT, &action, NULL); /* without SA_RESTART, so that receive returns -EINTR */
	sigaction(SIGTERM, &action, NULL);
	n = kerb_intercept_open(&k, argv[1], argv[2], NULL);
	if (n) {
		fprintf(stderr, "intercept-log: %s\n", kerb_intercept_error());
		return 1;
	}
	while (!stopped &&
	       ((n = kerb_intercept_receive(k, packets, BATCH, -1)) >= 0 || n == -EINTR)) {
		for (int i = 0; i < n; i++)
			write_packet(&packets[i]);
		fflush(stdout);
	}
	if (!stopped)
		fprintf(stderr, "intercept-log: %s\n", kerb_intercept_error());
	kerb_intercept_stats(k, &stats);
	fprintf(stderr,
		"%" PRIu64 " packets, %" PRIu64 " lost, %" PRIu64 " late, longest delay %.1f us\n",
		stats.received, stats.lost, stats.late, (double)stats.longest / 1e3);
	kerb_intercept_close(k);
	return !stopped;
}
