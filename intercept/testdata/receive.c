// SPDX-License-Identifier: Apache-2.0
//go:build ignore
/* receive SOCKET CLASS WAIT COUNT [control|idle_poll|poll]: opens a class, reports that, starts on
 * command, and writes what it receives. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kerb_intercept.h"

enum { BATCH = 7 };

static int refuse(void)
{
	printf("error %s\n", kerb_intercept_error());
	return 1;
}

static int send_controls(struct kerb_intercept *k)
{
	const uint8_t bytes[] = { 1, 2, 3 }, mask[] = { 0xff, 0xf0, 0x0f };

	return kerb_intercept_stop(k) || kerb_intercept_start(k) ||
	       kerb_intercept_action(k, KERB_COPY) || kerb_intercept_priority(k, 6) ||
	       kerb_intercept_max_bytes(k, 99) || kerb_intercept_deadline(k, 123456789) ||
	       kerb_intercept_ports(k, 1, 8000, 8010) ||
	       kerb_intercept_payload(k, 2, 9, bytes, mask, 3);
}

int main(int argc, char **argv)
{
	const char *extra = argc > 5 ? argv[5] : "";
	struct kerb_intercept_options options = { .wait = atoi(argv[3]),
						  .keep = true,
						  .idle_poll = !strcmp(extra, "idle_poll") };
	long n = 0, count = atol(argv[4]);
	int64_t timeout = strcmp(extra, "poll") ? -1 : 0;
	struct kerb_intercept_stats stats;
	struct kerb_packet p[BATCH];
	struct kerb_intercept *k;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (kerb_intercept_open(&k, argv[1], argv[2], &options))
		return refuse();
	if (!strcmp(extra, "control") && send_controls(k))
		return refuse();
	puts("ready");
	if (getchar() == EOF)
		return 1;
	while (n < count) {
		int got = kerb_intercept_receive(k, p, BATCH, timeout);

		if (got < 0 && got != -EINTR)
			return refuse();
		for (int i = 0; i < got; i++) {
			uint32_t sum = 0;

			for (uint32_t j = 0; j < p[i].caplen; j++)
				sum = sum * 31 + p[i].frame[j];
			printf("packet %lu %lu %u %u %u %u %u %u %x %u %u %d\n", p[i].seq,
			       p[i].lost, p[i].len, p[i].caplen, p[i].l3, p[i].l4, p[i].payload,
			       p[i].vlan, p[i].flags, p[i].ifindex, sum,
			       p[i].sent <= p[i].received);
		}
		n += got > 0 ? got : 0;
	}
	kerb_intercept_stats(k, &stats);
	printf("stats %lu %lu %lu\n", stats.received, stats.lost, stats.late);
	kerb_intercept_close(k);
	return 0;
}
