// SPDX-License-Identifier: Apache-2.0
/* The speed limit over TCP: a server with epoll that sleeps, or spins, until a request arrives. As
 * `sockmap`, it also inserts every accepted connection into the sockmap of descriptor 3. Its
 * programs answer before this process is woken; the process receives only what they pass. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "wire.h"
#include "cpu.h"

enum { MAP_FD = 3, EVENTS = 64, BUFFER = 4096, CONNECTIONS = 4096 };

struct peer {
	uint32_t address, port; /* in network byte order */
};

/* Partial requests, by descriptor. */
static struct {
	size_t n;
	uint8_t data[BUFFER];
} pending[CONNECTIONS];

static void sockmap_insert(int fd, const struct sockaddr_in *from)
{
	struct peer key = { from->sin_addr.s_addr, htonl(ntohs(from->sin_port)) };
	uint64_t value = fd;
	union bpf_attr attr = { .map_fd = MAP_FD,
				.key = (uintptr_t)&key,
				.value = (uintptr_t)&value };

	if (syscall(SYS_bpf, BPF_MAP_UPDATE_ELEM, &attr, sizeof(attr)) && errno != EOPNOTSUPP)
		die("map of sockets"); /* EOPNOTSUPP: the peer has closed it already, and the
					  connection remains this server's */
}

static void accept_connection(int listener, int events, bool sockmap)
{
	struct sockaddr_in from;
	socklen_t size = sizeof(from);
	int one = 1, fd = accept4(listener, (void *)&from, &size, SOCK_NONBLOCK);

	if (fd < 0 || fd >= CONNECTIONS)
		die("accept");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	pending[fd].n = 0;
	if (sockmap)
		sockmap_insert(fd, &from);
	if (epoll_ctl(events, EPOLL_CTL_ADD, fd,
		      &(struct epoll_event){ .events = EPOLLIN, .data.fd = fd }))
		die("epoll");
}

static void answer_requests(int fd)
{
	uint8_t out[BUFFER], *in = pending[fd].data;
	size_t replies = 0, done = 0;
	ssize_t n = recv(fd, in + pending[fd].n, BUFFER - pending[fd].n, 0);

	if (n < 0 && errno == EAGAIN) /* the program has answered it meanwhile */
		return;
	if (n <= 0) {
		close(fd);
		return;
	}
	n += pending[fd].n;
	for (; n - done >= sizeof(struct speed); done += sizeof(struct speed))
		replies += answer_speed(in + done, sizeof(struct speed), out + replies);
	pending[fd].n = n - done;
	memmove(in, in + done, n - done);
	if (replies && send(fd, out, replies, MSG_NOSIGNAL) < 0)
		close(fd);
}

/* stream sleep|spin|sockmap PORT CPUS */
int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[2])) };
	struct epoll_event ready[EVENTS];
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), events = epoll_create1(0);

	raise_priority();
	pin_thread(parse_cpus(argv[3]).list[0]);
	if (setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
	    bind(listener, (void *)&at, sizeof(at)) || listen(listener, CONNECTIONS) ||
	    epoll_ctl(events, EPOLL_CTL_ADD, listener,
		      &(struct epoll_event){ .events = EPOLLIN, .data.fd = listener }))
		die("listen");
	puts("ready");
	fflush(stdout);
	for (;;) {
		int n = epoll_wait(events, ready, EVENTS, strcmp(argv[1], "spin") ? -1 : 0);

		for (int i = 0; i < n; i++) {
			if (ready[i].data.fd == listener)
				accept_connection(listener, events, !strcmp(argv[1], "sockmap"));
			else
				answer_requests(ready[i].data.fd);
		}
	}
}
