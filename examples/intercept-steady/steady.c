// SPDX-License-Identifier: Apache-2.0
/* intercept-steady MODULE CLASS [US]: answers each UDP packet of a class with its payload, exactly
 * US (2000) us after the data plane saw it, regardless of the delay of this program. The interface
 * needs a queueing discipline that supports launch times (SO_TXTIME):
 *
 *	tc qdisc replace dev eth0 root fq
 *	make -C lib/intercept
 *	cc -Ilib/intercept -o intercept-steady examples/intercept-steady/steady.c
 *	lib/intercept/libkerb-intercept.a */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "kerb_intercept.h"

enum { BATCH = 16 };

static volatile sig_atomic_t stopped;

static void stop(int signal)
{
	stopped = signal;
}

/* size returns the length of the payload, without the padding of a short frame. */
static size_t size(const struct kerb_packet *p)
{
	const uint8_t *udp = p->frame + p->l4;
	size_t length = (size_t)(udp[4] << 8 | udp[5]), there = p->caplen - p->l4;

	return (length < there ? length : there) - (p->payload - p->l4);
}

static void answer(struct kerb_intercept *k, const struct kerb_packet *p, uint64_t after)
{
	struct kerb_peer peer;

	/* once kerb_intercept_peer succeeds, the UDP header is complete, and its length at least
	 * 8 */
	if (kerb_intercept_peer(p, &peer) ||
	    kerb_intercept_send_at(k, &peer, p->frame + p->payload, size(p), p->sent + after))
		fprintf(stderr, "%s\n", kerb_intercept_error());
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = stop };
	struct kerb_intercept_launches launches;
	struct kerb_packet packets[BATCH];
	struct kerb_intercept *k;
	uint64_t after;
	int n = 0;

	if (argc < 3) {
		fputs("usage: intercept-steady MODULE CLASS [US]\n", stderr);
		return 2;
	}
	after = (argc > 3 ? strtoull(argv[3], NULL, 10) : 2000) * 1000;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	if (kerb_intercept_open(&k, argv[1], argv[2], NULL)) {
		fprintf(stderr, "%s\n", kerb_intercept_error());
		return 1;
	}
	while (!stopped && (n >= 0 || n == -EINTR)) {
		n = kerb_intercept_receive(k, packets, BATCH, -1);
		for (int i = 0; i < n; i++)
			answer(k, &packets[i], after);
	}
	kerb_intercept_launches(k, &launches);
	printf("%" PRIu64 " answers, %" PRIu64 " of them too late for their time\n", launches.timed,
	       launches.late);
	kerb_intercept_close(k);
	return 0;
}
