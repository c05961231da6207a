// SPDX-License-Identifier: Apache-2.0
/* A user-space tunnel on a TUN device, as a reference for `kerb bench tunnel`: packets of the
 * device are sent to the peer in UDP, and received ones are written to the device.
 *
 *	tun DEVICE LOCAL PEER PORT MTU
 *
 * A queue and two threads per CPU. Segmentation and checksums are offloaded to the kernel: a large
 * packet is read from the device whole (virtio-net header), sent by one system call as datagrams of
 * MTU bytes (UDP_SEGMENT, Linux 4.18), and received by one (UDP_GRO, 5.0) if the network in between
 * kept the datagrams together. Otherwise they are lost, and TCP retransmits. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/virtio_net.h>
#include <netinet/udp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tun.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

#define MAX_PACKET 65507

struct queue {
	int device, socket;
};

static int mtu;

static socklen_t parse_address(const char *text, int port, struct sockaddr_storage *to)
{
	struct sockaddr_in *a4 = (void *)to;
	struct sockaddr_in6 *a6 = (void *)to;

	memset(to, 0, sizeof(*to));
	if (inet_pton(AF_INET, text, &a4->sin_addr) == 1) {
		a4->sin_family = AF_INET;
		a4->sin_port = htons(port);
		return sizeof(*a4);
	}
	if (inet_pton(AF_INET6, text, &a6->sin6_addr) != 1) {
		fprintf(stderr, "tun: %s is no address\n", text);
		exit(1);
	}
	a6->sin6_family = AF_INET6;
	a6->sin6_port = htons(port);
	return sizeof(*a6);
}

/* A port per queue: queue i sends to queue i of the peer. */
static int open_socket(const char *local, const char *peer, int port)
{
	struct sockaddr_storage a, b;
	socklen_t len = parse_address(local, port, &a);
	int fd = socket(a.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0), one = 1, size = 8 << 20;

	parse_address(peer, port, &b);
	if (fd < 0 || bind(fd, (void *)&a, len) || connect(fd, (void *)&b, len))
		die("socket");
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size));
	setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
	if (setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof(one)) ||
	    setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &mtu, sizeof(mtu)))
		die("UDP offloads");
	return fd;
}

/* is_loss reports whether an error means a lost packet: no peer yet, or a full buffer. */
static int is_loss(void)
{
	return errno == ECONNREFUSED || errno == ENOBUFS || errno == EINVAL || errno == EMSGSIZE ||
	       errno == EINTR;
}

static void *forward_to_peer(void *arg)
{
	struct queue *q = arg;
	char *packet = malloc(MAX_PACKET);

	for (;;) {
		ssize_t len = read(q->device, packet, MAX_PACKET);

		if (len < 0 && errno != EINTR)
			die("read");
		if (len > 0 && send(q->socket, packet, len, 0) < 0 && !is_loss())
			die("send");
	}
	return 0;
}

static void *forward_to_device(void *arg)
{
	struct queue *q = arg;
	char *packet = malloc(1 << 16);

	for (;;) {
		ssize_t len = recv(q->socket, packet, 1 << 16, 0);

		if (len < 0 && !is_loss())
			die("receive");
		if (len > 0 && write(q->device, packet, len) < 0 && !is_loss() && errno != EIO)
			die("write");
	}
	return 0;
}

int main(int argc, char **argv)
{
	long queues = sysconf(_SC_NPROCESSORS_ONLN);
	pthread_t thread;

	if (argc != 6) {
		fprintf(stderr, "usage: tun DEVICE LOCAL PEER PORT MTU\n");
		return 2;
	}
	mtu = atoi(argv[5]) + sizeof(struct virtio_net_hdr);
	for (long i = 0; i < queues; i++) {
		struct queue *q = malloc(sizeof(*q));

		q->device = tun_open_queue(argv[1], IFF_VNET_HDR | IFF_MULTI_QUEUE, 0);
		q->socket = open_socket(argv[2], argv[3], atoi(argv[4]) + i);
		if (pthread_create(&thread, 0, forward_to_peer, q) ||
		    pthread_create(&thread, 0, forward_to_device, q))
			die("thread");
	}
	puts("ready");
	fflush(stdout);
	pthread_join(thread, 0);
	return 0;
}
