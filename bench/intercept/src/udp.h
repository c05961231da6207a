// SPDX-License-Identifier: Apache-2.0
/* The sockets of a controller. */
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <poll.h>
#include <sys/socket.h>

#include "base.h"

enum { SOCKET_BUFFER = 32 << 20 };

static inline int udp_open(int at_port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(at_port) };
	int s = socket(AF_INET, SOCK_DGRAM, 0), buffer = SOCKET_BUFFER, bound = -1;

	/* the kernel closes the sockets of an io_uring some time after its process has exited */
	for (int tries = 0; s >= 0 && tries < 500; tries++) {
		bound = bind(s, (void *)&at, sizeof(at));
		if (!bound || errno != EADDRINUSE)
			break;
		poll(NULL, 0, 10);
	}
	if (s < 0 || bound || setsockopt(s, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof(buffer)))
		die("listen");
	return s;
}

/* udp_open_send_only opens a socket that receives nothing. */
static inline int udp_open_send_only(int at_port)
{
	struct sock_filter none = BPF_STMT(BPF_RET | BPF_K, 0);
	struct sock_fprog filter = { 1, &none };
	int s = udp_open(at_port);

	if (setsockopt(s, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)))
		die("filter");
	return s;
}
