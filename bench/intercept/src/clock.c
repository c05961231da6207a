// SPDX-License-Identifier: Apache-2.0
/* The limit: how late a thread that does nothing but examine the clock would see packets that came
 * at all times. So it shows what the machine takes for itself: interrupts, the hypervisor, other
 * threads. Of the packets that do come it reads those alone that begin and end a measurement, in
 * pauses that do not count and that the kernel wants of a real-time thread. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <sys/socket.h>

#include "meter.h"

enum { EVERY_NS = 100, AWAY_NS = 2000, LOOK_NS = 90000000, PAUSE_NS = 10000000 };

static int fd;

static void open_socket(int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };

	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0 || bind(fd, (void *)&at, sizeof(at)))
		die("listen");
}

static void pause_and_read(void)
{
	struct timespec t = { .tv_nsec = PAUSE_NS };
	struct message m;

	nanosleep(&t, NULL);
	for (ssize_t n; (n = recv(fd, &m, sizeof(m), MSG_DONTWAIT)) >= 0;)
		if (n == sizeof(m) && m.type != MESSAGE_DATA)
			account(&m, 0);
}

static void look(void)
{
	int64_t begin = now(), came = begin;

	for (int64_t t = begin; t < begin + LOOK_NS; t = now()) {
		bool away = t - came > AWAY_NS;

		for (; came <= t; came += EVERY_NS)
			record(&meter.delays, t - came);
		if (away)
			came = now(); /* to record so many took its time */
	}
}

/* clock spin other|eager|fifo CPU PORT */
int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	settle(argv[2], argv[3]);
	open_socket(atoi(argv[4]));
	ready();
	for (;;) {
		pause_and_read();
		look();
	}
}
