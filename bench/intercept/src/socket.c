// SPDX-License-Identifier: Apache-2.0
/* The receivers with a UDP socket. T3 is the time in the program after the receive call. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>

#include "meter.h"

enum { BATCH = 64, MAX_SIZE = 2048, BUFFER = 32 << 20, BUSY_POLL_US = 50, SPIN_NS = 50000 };

static int fd;
static uint8_t data[BATCH][MAX_SIZE];

static void open_socket(int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	int buffer = BUFFER;

	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0 || bind(fd, (void *)&at, sizeof(at)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof(buffer)))
		die("listen");
}

static void set_busy_poll(void)
{
	int us = BUSY_POLL_US;

	if (setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &us, sizeof(us)))
		die("SO_BUSY_POLL");
}

/* receive_one returns whether there was a message. */
static bool receive_one(int flags)
{
	struct message *m = (void *)data[0];
	ssize_t n = recv(fd, m, MAX_SIZE, flags);

	if (n >= (ssize_t)sizeof(*m))
		record_message(m, now_ns());
	return n >= 0;
}

static void receive_batches(void)
{
	struct mmsghdr in[BATCH] = { 0 };
	struct iovec iov[BATCH];

	for (int i = 0; i < BATCH; i++) {
		iov[i] = (struct iovec){ data[i], MAX_SIZE };
		in[i].msg_hdr = (struct msghdr){ .msg_iov = &iov[i], .msg_iovlen = 1 };
	}
	for (;;) {
		int n = recvmmsg(fd, in, BATCH, MSG_WAITFORONE, NULL);

		for (int i = 0; i < n; i++) {
			struct message *m = (void *)data[i];

			if (in[i].msg_len >= sizeof(*m))
				record_message(m, now_ns());
		}
	}
}

/* receive_adaptive spins about as long as sleeping and waking up take, then sleeps. */
static void receive_adaptive(void)
{
	for (int64_t last = now_ns();;) {
		if (receive_one(MSG_DONTWAIT) || (now_ns() - last > SPIN_NS && receive_one(0)))
			last = now_ns();
	}
}

/* socket block|busy|mmsg|spin|adaptive other|eager|ready|fifo CPU PORT */
int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	setup_receiver(argv[2], argv[3]);
	open_socket(atoi(argv[4]));
	print_ready();
	if (!strcmp(argv[1], "mmsg"))
		receive_batches();
	if (!strcmp(argv[1], "adaptive"))
		receive_adaptive();
	if (!strcmp(argv[1], "busy"))
		set_busy_poll();
	for (int flags = strcmp(argv[1], "spin") ? 0 : MSG_DONTWAIT;;)
		receive_one(flags);
}
