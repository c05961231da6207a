/* SPDX-License-Identifier: Apache-2.0 */
/* Answers through UDP sockets, which are bound to the destination port of the packets. The source
 * address is the packets' destination address (IP_PKTINFO, IPV6_PKTINFO), which the kernel accepts
 * only if it is local. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "receiver.h"

enum { UDP_HEADER = 8, IP6_HEADER = 40 };

/* is_udp6 reports whether an IPv6 packet is UDP, after any extension headers. */
static bool is_udp6(const struct kerb_packet *p)
{
	uint32_t at = p->l3 + IP6_HEADER;
	uint8_t next = p->frame[p->l3 + 6];

	while (at < p->l4) {
		uint8_t kind = next;

		next = p->frame[at]; /* the transport header follows, so both bytes are captured */
		at += kind == IPPROTO_FRAGMENT ? 8 : (p->frame[at + 1] + 1u) * 8;
	}
	return at == p->l4 && next == IPPROTO_UDP;
}

int kerb_intercept_peer(const struct kerb_packet *p, struct kerb_peer *peer)
{
	const uint8_t *ip = p->frame + p->l3, *udp = p->frame + p->l4;
	bool v6 = p->flags & KERB_PACKET_IP6;
	size_t size = v6 ? 16 : 4;

	if (!(p->flags & KERB_PACKET_L4) || p->flags & KERB_PACKET_EGRESS ||
	    p->caplen < p->l4 + (uint32_t)UDP_HEADER || !(v6 ? is_udp6(p) : ip[9] == IPPROTO_UDP))
		return fail(EINVAL, "only UDP packets to the service can be answered");
	*peer = (struct kerb_peer){ .family = v6 ? 6 : 4 };
	memcpy(peer->address, ip + (v6 ? 8 : 12), size);
	memcpy(peer->own_address, ip + (v6 ? 8 : 12) + size, size);
	peer->port = (uint16_t)(udp[0] << 8 | udp[1]);
	peer->own_port = (uint16_t)(udp[2] << 8 | udp[3]);
	if (!peer->port || !peer->own_port)
		return fail(EINVAL, "a packet from or to port 0 cannot be answered");
	return 0;
}

/* drop_received makes a socket that only sends drop received packets, which would fill its
 * buffer. */
static int drop_received(int fd)
{
	struct sock_filter none = { BPF_RET | BPF_K, 0, 0, 0 };
	struct sock_fprog f = { 1, &none };

	return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &f, sizeof(f));
}

static int bind_port(int fd, bool v6, uint16_t port)
{
	struct sockaddr_in6 all6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	struct sockaddr_in all = { .sin_family = AF_INET, .sin_port = htons(port) };
	int one = 1;

	if (v6)
		return setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one)) ||
		       bind(fd, (void *)&all6, sizeof(all6));
	return bind(fd, (void *)&all, sizeof(all));
}

/* open_sender opens the socket of a port and closes that of the previous port. */
static int open_sender(struct sender *s, bool v6, uint16_t port)
{
	int fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), code;

	if (fd < 0 || drop_received(fd) || bind_port(fd, v6, port)) {
		code = errno;
		if (fd >= 0)
			close(fd);
		return fail(code, "bind UDP port %u for answers: %s%s", port, strerror(code),
			    code == EADDRINUSE ? ": give that socket to kerb_intercept_socket"
					       : "");
	}
	senders_close(s, 1);
	*s = (struct sender){ .fd = fd, .port = port, .six = v6 };
	return 0;
}

void senders_close(struct sender *s, int n)
{
	for (int i = 0; i < n; i++)
		if (s[i].fd >= 0)
			close(s[i].fd);
}

int kerb_intercept_socket(struct kerb_intercept *k, int fd)
{
	struct sockaddr_in6 at = { 0 }; /* the port of struct sockaddr_in has the same offset */
	struct sender s = { .fd = fd };
	socklen_t length = sizeof(at), size = sizeof(int);
	int only6 = 0;

	if (getsockname(fd, (void *)&at, &length))
		return fail(errno, "socket for answers: %s", strerror(errno));
	if (at.sin6_family != AF_INET && at.sin6_family != AF_INET6)
		return fail(EINVAL, "socket for answers: it is none of IPv4 or IPv6");
	s.port = ntohs(at.sin6_port);
	s.six = at.sin6_family == AF_INET6;
	if (s.six)
		getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only6, &size);
	for (int i = 0; i < 2; i++) { /* IPv4, IPv6 */
		if (i ? !s.six : only6)
			continue;
		k->own_senders[i] = s;
	}
	return 0;
}

/* in6_address returns an address for an AF_INET6 socket; IPv4 ones are mapped (RFC 4291,
 * 2.5.5.2). */
static struct in6_addr in6_address(const struct kerb_peer *peer, const uint8_t *address)
{
	struct in6_addr a = { .s6_addr = { [10] = 0xff, [11] = 0xff } };

	memcpy(peer->family == 6 ? a.s6_addr : a.s6_addr + 12, address, peer->family == 6 ? 16 : 4);
	return a;
}

/* send_from is sendto with the source address peer->own_address, and a launch time unless when is
 * NULL. */
static ssize_t send_from(const struct sender *s, const struct kerb_peer *peer, const void *data,
			 size_t size, const uint64_t *when)
{
	union {
		char space[CMSG_SPACE(sizeof(struct in6_pktinfo)) + CMSG_SPACE(sizeof(*when))];
		struct cmsghdr align;
	} control = { .space = { 0 } };
	struct iovec whole = { (void *)(uintptr_t)data, size };
	struct sockaddr_in6 to6 = { .sin6_family = AF_INET6, .sin6_port = htons(peer->port) };
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(peer->port) };
	struct msghdr m = { .msg_iov = &whole, .msg_iovlen = 1, .msg_control = &control };
	struct cmsghdr *c = &control.align;

	if (s->six) {
		struct in6_pktinfo from = { in6_address(peer, peer->own_address), 0 };

		to6.sin6_addr = in6_address(peer, peer->address);
		m.msg_name = &to6;
		m.msg_namelen = sizeof(to6);
		*c = (struct cmsghdr){ CMSG_LEN(sizeof(from)), IPPROTO_IPV6, IPV6_PKTINFO };
		memcpy(CMSG_DATA(c), &from, sizeof(from));
	} else {
		struct in_pktinfo from = { 0 };

		memcpy(&from.ipi_spec_dst, peer->own_address, 4);
		memcpy(&to.sin_addr, peer->address, 4);
		m.msg_name = &to;
		m.msg_namelen = sizeof(to);
		*c = (struct cmsghdr){ CMSG_LEN(sizeof(from)), IPPROTO_IP, IP_PKTINFO };
		memcpy(CMSG_DATA(c), &from, sizeof(from));
	}
	m.msg_controllen = CMSG_SPACE(c->cmsg_len - CMSG_LEN(0));
	if (when) {
		c = (void *)(control.space + m.msg_controllen);
		*c = (struct cmsghdr){ CMSG_LEN(sizeof(*when)), SOL_SOCKET, SCM_TXTIME };
		memcpy(CMSG_DATA(c), when, sizeof(*when));
		m.msg_controllen += CMSG_SPACE(sizeof(*when));
	}
	return sendmsg(s->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static int send_answer(struct kerb_intercept *k, const struct kerb_peer *peer, const void *data,
		       size_t size, const uint64_t *when)
{
	bool v6 = peer->family == 6;
	struct sender *s = &k->own_senders[v6];
	int code = 0;

	if (!peer->port || !peer->own_port)
		return fail(EINVAL, "an answer from or to port 0 cannot be sent");
	if (s->fd < 0 || s->port != peer->own_port)
		s = &k->senders[v6];
	if (s->fd < 0 || s->port != peer->own_port) {
		launch_collect(k, s);
		code = open_sender(s, v6, peer->own_port);
	}
	if (!code && when)
		code = launch_enable(k, s, *when);
	if (code)
		return code;
	if (send_from(s, peer, data, size, when) < 0)
		return fail(errno, "answer to port %u: %s", peer->port, strerror(errno));
	return 0;
}

int kerb_intercept_send(struct kerb_intercept *k, const struct kerb_peer *peer, const void *data,
			size_t size)
{
	return send_answer(k, peer, data, size, NULL);
}

int kerb_intercept_send_at(struct kerb_intercept *k, const struct kerb_peer *peer, const void *data,
			   size_t size, uint64_t when)
{
	return send_answer(k, peer, data, size, &when);
}

int kerb_intercept_reply(struct kerb_intercept *k, const struct kerb_packet *p, const void *data,
			 size_t size)
{
	struct kerb_peer peer;
	int code = kerb_intercept_peer(p, &peer);

	return code ? code : kerb_intercept_send(k, &peer, data, size);
}
