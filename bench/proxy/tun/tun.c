// SPDX-License-Identifier: Apache-2.0
/* Two user-space proxies on a TUN device, as references for `kerb bench proxy`. Both translate
 * addresses between one client and one server. Packets from the client to the server's virtual
 * address are forwarded to the server with the client's virtual address as source, so that the
 * answers return to the proxy.
 *
 *	tun DEVICE single|multi CLIENT CLIENT-VIRTUAL SERVER SERVER-VIRTUAL
 *
 * single: one thread, one packet of at most the MTU per system call. multi: a thread and a queue
 * per CPU; the virtio-net header offloads segmentation and checksums to the kernel, so that one
 * system call carries up to 64 KiB. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/virtio_net.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tun.h"

#ifndef TUN_F_USO4
#define TUN_F_USO4 0x20
#define TUN_F_USO6 0x40
#endif

struct rule {
	uint8_t src[16], dst[16], new_src[16], new_dst[16];
	uint64_t delta; /* of the checksum, from the change of addresses */
};

static struct rule rules[2];
static size_t addr_len; /* 4 or 16 */

static uint64_t sum16(const uint8_t *p, size_t len)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < len; i += 2)
		sum += (uint16_t)(p[i] | p[i + 1] << 8);
	return sum;
}

static uint16_t fold_sum(uint64_t sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* RFC 1624. A partial checksum, which the kernel completes, is not complemented. */
static void update_checksum(uint8_t *check, uint64_t delta, int partial)
{
	uint16_t old, new;

	memcpy(&old, check, 2);
	new = partial ? fold_sum(old + delta) : (uint16_t)~fold_sum((uint16_t)~old + delta);
	memcpy(check, &new, 2);
}

static int check_offset(uint8_t proto)
{
	return proto == IPPROTO_TCP	 ? 16
	       : proto == IPPROTO_UDP	 ? 6
	       : proto == IPPROTO_ICMPV6 ? 2
					 : -1;
}

/* translate rewrites a packet in place, or returns 0 if it matches no rule. */
static int translate(uint8_t *p, ssize_t len, int partial)
{
	size_t at = addr_len == 4 ? 12 : 8, head = addr_len == 4 ? (p[0] & 15) * 4u : 40;
	uint8_t proto = addr_len == 4 ? p[9] : p[6], zero[2] = {};
	int off = check_offset(proto);

	if (len < (ssize_t)head + off + 2 || p[0] >> 4 != (addr_len == 4 ? 4 : 6))
		return 0;
	for (struct rule *r = rules; r < rules + 2; r++) {
		if (memcmp(p + at, r->src, addr_len) || memcmp(p + at + addr_len, r->dst, addr_len))
			continue;
		memcpy(p + at, r->new_src, addr_len);
		memcpy(p + at + addr_len, r->new_dst, addr_len);
		if (addr_len == 4)
			update_checksum(p + 10, r->delta, 0);
		if (off >= 0 && (proto != IPPROTO_UDP || memcmp(p + head + off, zero, 2)))
			update_checksum(p + head + off, r->delta, partial);
		return 1;
	}
	return 0;
}

static void serve_single(int fd)
{
	static uint8_t packet[1 << 16];

	for (;;) {
		ssize_t len = read(fd, packet, sizeof(packet));

		if (len < 0)
			die("read");
		if (translate(packet, len, 0) && write(fd, packet, len) < 0 && errno != EINVAL &&
		    errno != ENOBUFS)
			die("write");
	}
}

static void *serve_queue(void *arg)
{
	int fd = (int)(intptr_t)arg;
	struct {
		struct virtio_net_hdr head;
		uint8_t packet[1 << 16];
	} __attribute__((packed)) *buffer = malloc(sizeof(*buffer));

	for (;;) {
		ssize_t len = read(fd, buffer, sizeof(*buffer));

		if (len < (ssize_t)sizeof(buffer->head))
			die("read");
		if (translate(buffer->packet, len - sizeof(buffer->head),
			      buffer->head.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) &&
		    write(fd, buffer, len) < 0 && errno != EINVAL && errno != ENOBUFS)
			die("write");
	}
	return 0;
}

static void parse_address(const char *text, uint8_t *to)
{
	if (inet_pton(strchr(text, ':') ? AF_INET6 : AF_INET, text, to) != 1) {
		fprintf(stderr, "tun: %s is no address\n", text);
		exit(1);
	}
}

static void make_rules(char **addr)
{
	for (int i = 0; i < 2; i++) {
		struct rule *r = &rules[i];

		parse_address(addr[i ? 2 : 0], r->src);	    /* client, server */
		parse_address(addr[i ? 1 : 3], r->dst);	    /* the other's virtual address */
		parse_address(addr[i ? 3 : 1], r->new_src); /* its own */
		parse_address(addr[i ? 0 : 2], r->new_dst); /* the other */
		r->delta = sum16(r->new_src, addr_len) + sum16(r->new_dst, addr_len) +
			   (uint16_t)~fold_sum(sum16(r->src, addr_len)) +
			   (uint16_t)~fold_sum(sum16(r->dst, addr_len));
	}
}

int main(int argc, char **argv)
{
	long queues = sysconf(_SC_NPROCESSORS_ONLN);
	pthread_t thread;

	if (argc != 7) {
		fprintf(stderr, "usage: tun DEVICE single|multi CLIENT CLIENT-VIRTUAL SERVER "
				"SERVER-VIRTUAL\n");
		return 2;
	}
	addr_len = strchr(argv[3], ':') ? 16 : 4;
	make_rules(argv + 3);
	if (!strcmp(argv[2], "single")) {
		int fd = tun_open_queue(argv[1], 0, 0);

		puts("ready");
		fflush(stdout);
		serve_single(fd);
	}
	for (long i = 0; i < queues; i++) {
		int fd = tun_open_queue(argv[1], IFF_VNET_HDR | IFF_MULTI_QUEUE,
					TUN_F_USO4 | TUN_F_USO6);

		if (pthread_create(&thread, 0, serve_queue, (void *)(intptr_t)fd))
			die("thread");
	}
	puts("ready");
	fflush(stdout);
	pthread_join(thread, 0);
	return 0;
}
