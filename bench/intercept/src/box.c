// SPDX-License-Identifier: Apache-2.0
/* The controller with the interfaces of Linux: one socket, three with priorities, a packet socket
 * with a mapped ring, AF_XDP, io_uring. It sends instructions with sendto. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/io_uring.h>
#include <poll.h>

#include "controller.h"
#include "udp.h"
#include "xsk.h"

enum {
	MAP_FD = 3,
	HEADERS = 14 + 20 + 8,
	MAX_SIZE = 2048,
	BUSY_POLL_US = 50,
	BLOCK = 1 << 20,
	BLOCKS = 16,
	IN_FLIGHT = 64
};

static const char *device;
static int port, send_only;

static void send_instruction(int s, const struct message *m, const struct sockaddr_in *to)
{
	sendto(s, m, sizeof(*m), MSG_DONTWAIT, (void *)to, sizeof(*to)); /* an error is a loss */
}

/* receive_datagrams receives the messages of a socket and does not return. */
static void receive_datagrams(int s)
{
	uint8_t data[MAX_SIZE];
	struct message *m = (void *)data;

	print_ready();
	for (;;) {
		struct sockaddr_in from;
		socklen_t size = sizeof(from);

		if (recvfrom(s, data, sizeof(data), 0, (void *)&from, &size) >=
			    (ssize_t)sizeof(*m) &&
		    record_message(m))
			send_instruction(s, m, &from);
	}
}

static void *run_socket(void *kind)
{
	int s = udp_open(port);

	set_fifo_priority(*(int *)kind);
	receive_datagrams(s);
	return NULL;
}

static void *run_priority_sockets(void *kind)
{
	static const int priorities[KINDS] = { 6, 4, 0 };
	int k = *(int *)kind, s = udp_open(port + k), us = BUSY_POLL_US;

	if (setsockopt(s, SOL_SOCKET, SO_PRIORITY, &priorities[k], sizeof(int)))
		die("SO_PRIORITY");
	if (k == CTRL && setsockopt(s, SOL_SOCKET, SO_BUSY_POLL, &us, sizeof(us)))
		die("SO_BUSY_POLL");
	set_fifo_priority(k);
	receive_datagrams(s);
	return NULL;
}

/* handle_frame handles a frame of IPv4 without options, from its Ethernet header on. */
static void handle_frame(const uint8_t *f, uint32_t len)
{
	const struct message *m = (const void *)(f + HEADERS);
	struct sockaddr_in to = { .sin_family = AF_INET };

	if (len < HEADERS + sizeof(*m) || !record_message(m))
		return;
	memcpy(&to.sin_addr, f + 26, 4);
	memcpy(&to.sin_port, f + 34, 2);
	send_instruction(send_only, m, &to);
}

/* open_packet_socket filters: the ring gets the messages to the port, but not the flood. */
static int open_packet_socket(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 12),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ETH_P_IP, 0, 5),
		BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 23),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_UDP, 0, 3),
		BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 36),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, port, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, MAX_SIZE),
		BPF_STMT(BPF_RET | BPF_K, 0),
	};
	struct sock_fprog filter = { sizeof(code) / sizeof(*code), code };
	struct tpacket_req req = { BLOCK, BLOCKS, MAX_SIZE, BLOCK / MAX_SIZE * BLOCKS };
	int version = TPACKET_V2, s = socket(AF_PACKET, SOCK_RAW, 0);
	struct sockaddr_ll at = { .sll_family = AF_PACKET,
				  .sll_protocol = htons(ETH_P_IP),
				  .sll_ifindex = if_nametoindex(device) };

	if (s < 0 || setsockopt(s, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) ||
	    setsockopt(s, SOL_PACKET, PACKET_VERSION, &version, sizeof(version)) ||
	    setsockopt(s, SOL_PACKET, PACKET_RX_RING, &req, sizeof(req)) ||
	    bind(s, (void *)&at, sizeof(at)))
		die("packet socket");
	return s;
}

static void *run_packet_ring(void *kind)
{
	int s = open_packet_socket();
	uint8_t *ring = mmap(NULL, BLOCK * BLOCKS, PROT_READ | PROT_WRITE, MAP_SHARED, s, 0);
	struct pollfd wait = { .fd = s, .events = POLLIN };

	if (ring == MAP_FAILED)
		die("map packets");
	set_fifo_priority(*(int *)kind);
	print_ready();
	for (uint32_t i = 0;; i = (i + 1) % (BLOCK / MAX_SIZE * BLOCKS)) {
		struct tpacket2_hdr *h = (void *)(ring + (size_t)i * MAX_SIZE);

		while (!(__atomic_load_n(&h->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER))
			poll(&wait, 1, -1);
		handle_frame((uint8_t *)h + h->tp_mac, h->tp_snaplen);
		__atomic_store_n(&h->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
	}
}

static void *run_xsk(void *kind)
{
	struct pollfd wait = { .events = POLLIN };

	xsk_open(device, MAP_FD);
	wait.fd = fd;
	set_fifo_priority(*(int *)kind);
	print_ready();
	for (;; poll(&wait, 1, -1))
		for (uint32_t at = *rx.consumer; at != load_acquire(rx.producer); at++) {
			struct xdp_desc d = ((struct xdp_desc *)rx.entries)[at % RING];

			handle_frame(umem + d.addr, d.len);
			fill_ring_put(d.addr);
			store_release(rx.consumer, at + 1);
		}
}

/* The rings of io_uring, at the offsets that the kernel returns. */
static struct {
	int fd;
	uint32_t *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
} u;

static struct {
	struct msghdr head;
	struct iovec iov;
	struct sockaddr_in from;
	uint8_t data[MAX_SIZE];
} in[IN_FLIGHT];

static void uring_open(void)
{
	struct io_uring_params p = { 0 };
	uint8_t *ring;

	u.fd = syscall(SYS_io_uring_setup, 2 * IN_FLIGHT, &p);
	if (u.fd < 0 || !(p.features & IORING_FEAT_SINGLE_MMAP))
		die("io_uring");
	size_t sq = p.sq_off.array + p.sq_entries * sizeof(uint32_t);
	size_t cq = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);

	ring = mmap(NULL, sq > cq ? sq : cq, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
		    u.fd, IORING_OFF_SQ_RING);
	u.sqes = mmap(NULL, p.sq_entries * sizeof(*u.sqes), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_POPULATE, u.fd, IORING_OFF_SQES);
	if (ring == MAP_FAILED || u.sqes == MAP_FAILED)
		die("map io_uring");
	u.sq_tail = (void *)(ring + p.sq_off.tail);
	u.sq_mask = (void *)(ring + p.sq_off.ring_mask);
	u.sq_array = (void *)(ring + p.sq_off.array);
	u.cq_head = (void *)(ring + p.cq_off.head);
	u.cq_tail = (void *)(ring + p.cq_off.tail);
	u.cq_mask = (void *)(ring + p.cq_off.ring_mask);
	u.cqes = (void *)(ring + p.cq_off.cqes);
}

/* uring_queue_recv queues a receive of one message into buffer i. */
static void uring_queue_recv(int s, int i)
{
	uint32_t tail = *u.sq_tail, at = tail & *u.sq_mask;

	in[i].iov = (struct iovec){ in[i].data, MAX_SIZE };
	in[i].head = (struct msghdr){ .msg_name = &in[i].from,
				      .msg_namelen = sizeof(in[i].from),
				      .msg_iov = &in[i].iov,
				      .msg_iovlen = 1 };
	u.sqes[at] = (struct io_uring_sqe){ .opcode = IORING_OP_RECVMSG,
					    .fd = s,
					    .addr = (uintptr_t)&in[i].head,
					    .len = 1,
					    .user_data = i };
	u.sq_array[at] = at;
	store_release(u.sq_tail, tail + 1);
}

static void *run_uring(void *kind)
{
	int s = udp_open(port), queued = IN_FLIGHT;

	uring_open();
	for (int i = 0; i < IN_FLIGHT; i++)
		uring_queue_recv(s, i);
	set_fifo_priority(*(int *)kind);
	print_ready();
	for (;;) {
		if (syscall(SYS_io_uring_enter, u.fd, queued, 1, IORING_ENTER_GETEVENTS, NULL, 0) <
		    0)
			die("io_uring_enter");
		queued = 0;
		for (uint32_t at = *u.cq_head; at != load_acquire(u.cq_tail); at++) {
			const struct io_uring_cqe *c = &u.cqes[at & *u.cq_mask];
			int i = c->user_data;
			const struct message *m = (void *)in[i].data;

			if (c->res >= (int)sizeof(*m) && record_message(m))
				send_instruction(s, m, &in[i].from);
			store_release(u.cq_head, at + 1);
			uring_queue_recv(s, i);
			queued++;
		}
	}
}

/* box socket|sockets-priority|packet-mmap|afxdp|io_uring CPU PORT DEVICE */
int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void *(*receive)(void *);
		int threads;
		bool send_only;
	} receivers[] = { { "socket", run_socket, 1, false },
			  { "sockets-priority", run_priority_sockets, KINDS, false },
			  { "packet-mmap", run_packet_ring, 1, true },
			  { "afxdp", run_xsk, 1, true },
			  { "io_uring", run_uring, 1, false } };

	if (argc != 5)
		return 2;
	port = atoi(argv[3]);
	device = argv[4];
	for (unsigned int i = 0; i < sizeof(receivers) / sizeof(*receivers); i++)
		if (!strcmp(argv[1], receivers[i].name)) {
			send_only = receivers[i].send_only ? udp_open_send_only(port) : -1;
			run_threads(receivers[i].threads, receivers[i].receive, argv[2]);
		}
	return 2;
}
