// SPDX-License-Identifier: Apache-2.0
/* The user-space servers:
 *
 *	plain	as published: a socket, recvfrom and sendto
 *	fifo	the same with real-time priority
 *	sleep, poll, spin
 *		batches, a socket and a thread per CPU; they sleep, busy-poll the device, or spin
 *		until a request arrives */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wire.h"
#include "cpu.h"

enum { BATCH = 64, BUFFER = 4 << 20, BUSY_POLL_US = 50 };

static enum protocol protocol;
static int port, wait_flag, family = AF_INET;
static bool busy_poll;

static int open_socket(void)
{
	/* the wildcard address; the port has the same offset as in sockaddr_in */
	struct sockaddr_in6 at = { .sin6_family = family, .sin6_port = htons(port) };
	int one = 1, fd = socket(family, SOCK_DGRAM, 0);

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)) ||
	    bind(fd, (void *)&at, sizeof(at)))
		die("listen");
	return fd;
}

static void serve_plain(void)
{
	int fd = open_socket();
	uint8_t in[MAX_MESSAGE], out[MAX_MESSAGE];
	struct sockaddr_in6 from;

	puts("ready");
	fflush(stdout);
	for (;;) {
		socklen_t size = sizeof(from);
		ssize_t n = recvfrom(fd, in, sizeof(in), 0, (void *)&from, &size);
		size_t reply = n < 0 ? 0 : answer_request(protocol, in, n, out);

		if (reply)
			sendto(fd, out, reply, 0, (void *)&from, size);
	}
}

struct batch {
	struct mmsghdr in[BATCH], out[BATCH];
	struct iovec in_iov[BATCH], out_iov[BATCH];
	struct sockaddr_in6 from[BATCH];
	uint8_t in_data[BATCH][MAX_MESSAGE], out_data[BATCH][MAX_MESSAGE];
};

static void set_buffers(int fd)
{
	int buffer = BUFFER, us = BUSY_POLL_US;

	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof(buffer)) ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof(buffer)) ||
	    (busy_poll && setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &us, sizeof(us))))
		die("setsockopt");
}

static void init_batch(struct batch *b)
{
	for (int i = 0; i < BATCH; i++) {
		b->in_iov[i] = (struct iovec){ b->in_data[i], MAX_MESSAGE };
		b->in[i].msg_hdr = (struct msghdr){ .msg_iov = &b->in_iov[i],
						    .msg_iovlen = 1,
						    .msg_name = &b->from[i] };
	}
}

/* answer_batch answers the requests that are there; those without answer leave no gap in the
 * batch. */
static void answer_batch(int fd, struct batch *b)
{
	int replies = 0;

	for (int i = 0; i < BATCH; i++)
		b->in[i].msg_hdr.msg_namelen = sizeof(b->from[i]);
	int n = recvmmsg(fd, b->in, BATCH, wait_flag, NULL);

	for (int i = 0; i < n; i++) {
		size_t size = answer_request(protocol, b->in_data[i], b->in[i].msg_len,
					     b->out_data[replies]);

		if (!size)
			continue;
		b->out_iov[replies] = (struct iovec){ b->out_data[replies], size };
		b->out[replies].msg_hdr =
			(struct msghdr){ .msg_iov = &b->out_iov[replies],
					 .msg_iovlen = 1,
					 .msg_name = &b->from[i],
					 .msg_namelen = b->in[i].msg_hdr.msg_namelen };
		replies++;
	}
	for (int sent = 0; sent < replies;) {
		int done = sendmmsg(fd, b->out + sent, replies - sent, 0);

		sent += done > 0 ? done
				 : 1; /* a reply that cannot be sent is lost, as with sendto */
	}
}

static pthread_barrier_t listening;

static void *serve_batches(void *cpu)
{
	struct batch *b = calloc(1, sizeof(*b));
	int fd = open_socket();

	pin_thread((int)(intptr_t)cpu);
	set_buffers(fd);
	init_batch(b);
	pthread_barrier_wait(&listening);
	for (;;)
		answer_batch(fd, b);
	return NULL;
}

static void serve_threads(struct cpus cpus)
{
	pthread_t t;

	pthread_barrier_init(&listening, NULL, cpus.n + 1);
	for (int i = 0; i < cpus.n; i++)
		pthread_create(&t, NULL, serve_batches, (void *)(intptr_t)cpus.list[i]);
	pthread_barrier_wait(&listening);
	puts("ready");
	fflush(stdout);
	pause();
}

/* server plain|fifo|sleep|poll|spin speed|coap|work PORT CPUS [6] */
int main(int argc, char **argv)
{
	if (argc != 5 && argc != 6)
		return 2;
	family = argc == 6 ? AF_INET6 : AF_INET;
	raise_priority();
	struct cpus cpus = parse_cpus(argv[4]);

	protocol = parse_protocol(argv[2]);
	port = atoi(argv[3]);
	wait_flag = strcmp(argv[1], "spin") ? MSG_WAITFORONE : MSG_DONTWAIT;
	busy_poll = !strcmp(argv[1], "poll");
	pin_thread(cpus.list[0]);
	if (!strcmp(argv[1], "fifo") &&
	    sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){ 1 }))
		die("real-time priority");
	if (!strcmp(argv[1], "plain") || !strcmp(argv[1], "fifo"))
		serve_plain();
	serve_threads(cpus);
}
