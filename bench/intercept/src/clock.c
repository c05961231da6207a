// SPDX-License-Identifier: Apache-2.0
/* The lower limit: the delay with which a thread that only reads the clock would see packets that
 * arrive at any time. It shows the noise of the machine: interrupts, the hypervisor, other threads.
 * It reads only the packets that begin and end a measurement, in pauses that are not measured. The
 * kernel requires such pauses of a real-time thread (throttling). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <sys/socket.h>

#include "meter.h"

enum { INTERVAL_NS = 100, GAP_NS = 2000, SAMPLE_NS = 90000000, PAUSE_NS = 10000000 };

static int fd;

static void open_socket(int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };

	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0 || bind(fd, (void *)&at, sizeof(at)))
		die("listen");
}

static void read_markers(void)
{
	struct timespec t = { .tv_nsec = PAUSE_NS };
	struct message m;

	nanosleep(&t, NULL);
	for (ssize_t n; (n = recv(fd, &m, sizeof(m), MSG_DONTWAIT)) >= 0;)
		if (n == sizeof(m) && m.type != MESSAGE_DATA)
			record_message(&m, 0);
}

static void sample_clock(void)
{
	int64_t begin = now_ns(), arrival = begin;

	for (int64_t t = begin; t < begin + SAMPLE_NS; t = now_ns()) {
		bool interrupted = t - arrival > GAP_NS;

		for (; arrival <= t; arrival += INTERVAL_NS)
			histogram_add(&meter.delays, t - arrival);
		if (interrupted)
			arrival = now_ns(); /* recording them took time */
	}
}

/* clock spin other|eager|fifo CPU PORT */
int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	setup_receiver(argv[2], argv[3]);
	open_socket(atoi(argv[4]));
	print_ready();
	for (;;) {
		read_markers();
		sample_clock();
	}
}
