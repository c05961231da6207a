// SPDX-License-Identifier: Apache-2.0
/* Addresses, and reads and writes of whole messages, for client and server. */
#pragma once

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base.h"

/* Bytes per write of a file, and per read of a stream. */
enum { CHUNK = 64 << 10 };

/* A stream begins with its length in bytes, this header included; the server answers with the
 * number of bytes received. */
struct length {
	uint64_t bytes;
};

struct address {
	union {
		struct sockaddr any;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
		struct sockaddr_un un;
	};
	socklen_t size;
};

/* parse_address accepts "HOST PORT" and "unix PATH". */
static inline struct address parse_address(const char *host, const char *port)
{
	struct address a = { .size = sizeof(a.in) };

	if (!strcmp(host, "unix")) {
		a.un.sun_family = AF_UNIX;
		strncpy(a.un.sun_path, port, sizeof(a.un.sun_path) - 1);
		a.size = sizeof(a.un);
		return a;
	}
	a.in.sin_port = htons(atoi(port)); /* same offset in sockaddr_in6 */
	if (inet_pton(AF_INET, host, &a.in.sin_addr) == 1) {
		a.in.sin_family = AF_INET;
		return a;
	}
	a.size = sizeof(a.in6);
	a.in6.sin6_family = AF_INET6;
	if (inet_pton(AF_INET6, host, &a.in6.sin6_addr) != 1)
		die(host);
	return a;
}

/* set_nodelay switches Nagle's algorithm off, as request-response programs do. */
static inline void set_nodelay(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)); /* fails on AF_UNIX */
}

/* read_polled waits with poll(2), as programs with several connections do. */
static inline ssize_t read_polled(int fd, void *to, size_t n)
{
	struct pollfd p = { fd, POLLIN, 0 };

	return poll(&p, 1, -1) < 0 ? -1 : read(fd, to, n);
}

/* read_all returns n, or less at end of file or after an error. */
static inline size_t read_all(int fd, void *to, size_t n)
{
	size_t done = 0;

	while (done < n) {
		ssize_t got = read_polled(fd, (char *)to + done, n - done);

		if (got <= 0)
			break;
		done += got;
	}
	return done;
}

static inline size_t write_all(int fd, const void *from, size_t n)
{
	size_t done = 0;

	while (done < n) {
		ssize_t put = send(fd, (const char *)from + done, n - done, MSG_NOSIGNAL);

		if (put <= 0)
			break;
		done += put;
	}
	return done;
}
