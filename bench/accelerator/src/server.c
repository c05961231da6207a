// SPDX-License-Identifier: Apache-2.0
/* The server: echoes messages of one size or discards streams, with a thread per connection, or
 * echoes on many connections with one thread and epoll. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/epoll.h>

#include "wire.h"

enum { BACKLOG = 4096, EVENTS = 256 };

static size_t size; /* of a message */

static void *serve_echo(void *arg)
{
	int fd = (int)(intptr_t)arg;
	char *message = malloc(size);

	set_nodelay(fd);
	while (read_all(fd, message, size) == size && write_all(fd, message, size) == size)
		;
	free(message);
	close(fd);
	return NULL;
}

static void *serve_stream(void *arg)
{
	int fd = (int)(intptr_t)arg;
	char *chunk = malloc(CHUNK);
	struct length announced, received = { 0 };
	ssize_t n;

	if (read_all(fd, &announced, sizeof(announced)) == sizeof(announced)) {
		for (received.bytes = sizeof(announced);
		     received.bytes < announced.bytes && (n = read_polled(fd, chunk, CHUNK)) > 0;
		     received.bytes += n)
			;
		write_all(fd, &received, sizeof(received));
	}
	free(chunk);
	close(fd);
	return NULL;
}

static void serve_threads(int listener, void *(*serve)(void *))
{
	for (;;) {
		int fd = accept(listener, NULL, NULL);
		pthread_t t;

		if (fd < 0)
			die("accept");
		if (pthread_create(&t, NULL, serve, (void *)(intptr_t)fd))
			die("thread");
		pthread_detach(t);
	}
}

static void epoll_add(int events, int fd)
{
	if (fd < 0 || epoll_ctl(events, EPOLL_CTL_ADD, fd,
				&(struct epoll_event){ .events = EPOLLIN, .data.fd = fd }))
		die("epoll");
}

static void serve_epoll(int listener)
{
	struct epoll_event ready[EVENTS];
	int events = epoll_create1(0);
	char *message = malloc(size);

	epoll_add(events, listener);
	for (;;) {
		int n = epoll_wait(events, ready, EVENTS, -1);

		for (int i = 0; i < n; i++) {
			int fd = ready[i].data.fd;

			if (fd == listener)
				epoll_add(events, accept(listener, NULL, NULL));
			else if (read_all(fd, message, size) != size ||
				 write_all(fd, message, size) != size)
				close(fd);
		}
	}
}

/* server echo|many|swallow SIZE unix|HOST PATH|PORT */
int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	struct address at = parse_address(argv[3], argv[4]);
	int one = 1, listener = socket(at.any.sa_family, SOCK_STREAM, 0);

	size = strtoul(argv[2], NULL, 10);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, &at.any, at.size) || listen(listener, BACKLOG))
		die("listen");
	if (!strcmp(argv[1], "many"))
		serve_epoll(listener);
	serve_threads(listener, strcmp(argv[1], "echo") ? serve_stream : serve_echo);
}
