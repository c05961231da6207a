// SPDX-License-Identifier: Apache-2.0
/* The AF_XDP server: takes whole frames of one receive queue from the device, answers those with a request in place and
 * sends them back. Its map of sockets and the program that redirects into it are its starter's, who leaves the map's
 * descriptor as number 3. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_xdp.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <net/if.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "wire.h"
#include "cpu.h"

enum { MAP_FD = 3, FRAME = 2048, RING = 4096, FRAMES = RING, BATCH = 64, HEADERS = 14 + 20 + 8 };

struct ring {
	uint32_t *producer, *consumer, *flags;
	void *entries;
};

static int fd;
static bool coap;
static uint8_t *umem;
static struct ring fill, completion, rx, tx;

static void set_ring(int option)
{
	int size = RING;

	if (setsockopt(fd, SOL_XDP, option, &size, sizeof(size)))
		die("ring");
}

static struct ring map_ring(const struct xdp_ring_offset *o, off_t at, size_t entry)
{
	uint8_t *p = mmap(NULL, o->desc + RING * entry, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, at);

	if (p == MAP_FAILED)
		die("map ring");
	return (struct ring){ (void *)(p + o->producer), (void *)(p + o->consumer), (void *)(p + o->flags), p + o->desc };
}

static void open_umem(void)
{
	umem = mmap(NULL, FRAMES * FRAME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	struct xdp_umem_reg reg = { .addr = (uintptr_t)umem, .len = FRAMES * FRAME, .chunk_size = FRAME };

	if (umem == MAP_FAILED || setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &reg, sizeof(reg)))
		die("frames");
}

static void open_rings(void)
{
	struct xdp_mmap_offsets o;
	socklen_t size = sizeof(o);

	set_ring(XDP_UMEM_FILL_RING);
	set_ring(XDP_UMEM_COMPLETION_RING);
	set_ring(XDP_RX_RING);
	set_ring(XDP_TX_RING);
	if (getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &o, &size))
		die("ring offsets");
	fill = map_ring(&o.fr, XDP_UMEM_PGOFF_FILL_RING, sizeof(uint64_t));
	completion = map_ring(&o.cr, XDP_UMEM_PGOFF_COMPLETION_RING, sizeof(uint64_t));
	rx = map_ring(&o.rx, XDP_PGOFF_RX_RING, sizeof(struct xdp_desc));
	tx = map_ring(&o.tx, XDP_PGOFF_TX_RING, sizeof(struct xdp_desc));
}

static uint32_t load(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static void store(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

/* give returns a frame to the kernel for receiving. */
static void give(uint64_t frame)
{
	uint32_t at = *fill.producer;

	((uint64_t *)fill.entries)[at % RING] = frame & ~(uint64_t)(FRAME - 1);
	store(fill.producer, at + 1);
}

static void join_map(void)
{
	uint32_t key = 0, value = fd;
	union bpf_attr attr = { .map_fd = MAP_FD, .key = (uintptr_t)&key, .value = (uintptr_t)&value };

	if (syscall(SYS_bpf, BPF_MAP_UPDATE_ELEM, &attr, sizeof(attr)))
		die("map of sockets");
}

static void open_socket(const char *device)
{
	struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY };
	struct sockaddr_xdp at = { .sxdp_family = AF_XDP, .sxdp_ifindex = if_nametoindex(device),
		.sxdp_flags = XDP_COPY | XDP_USE_NEED_WAKEUP };

	setrlimit(RLIMIT_MEMLOCK, &all); /* what kernels before 5.11 charge maps and frames to */
	fd = socket(AF_XDP, SOCK_RAW, 0);
	if (fd < 0)
		die("AF_XDP");
	open_umem();
	open_rings();
	for (int tries = 0; bind(fd, (void *)&at, sizeof(at)); tries++) {
		if (errno != EBUSY || tries == 1000) /* the kernel takes its time to let go of one before */
			die("bind");
		usleep(1000);
	}
	for (int i = 0; i < FRAMES; i++)
		give((uint64_t)i * FRAME);
	join_map();
}

static uint16_t header_sum(const struct iphdr *ip)
{
	const uint16_t *w = (void *)ip;
	uint32_t sum = 0;

	for (int i = 0; i < 10; i++)
		sum += w[i];
	sum = (sum & 0xffff) + (sum >> 16);
	return ~(sum + (sum >> 16));
}

/* turn makes a frame with a request the reply and returns its length; 0 is none. IPv4 without options, as the program that
 * redirects has seen to; the reply goes without UDP checksum, which spares this server reading it. */
static uint32_t turn(uint8_t *frame, uint32_t n)
{
	struct ethhdr *eth = (void *)frame;
	struct iphdr *ip = (void *)(frame + 14);
	struct udphdr *udp = (void *)(frame + 34);
	uint8_t out[MAX_MESSAGE], mac[ETH_ALEN];
	size_t size = n < HEADERS ? 0 : ntohs(udp->len) - 8;

	size = n < HEADERS || size > n - HEADERS ? 0 : answer(coap, frame + HEADERS, size, out);
	if (!size)
		return 0;
	memcpy(mac, eth->h_dest, ETH_ALEN);
	memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	memcpy(eth->h_source, mac, ETH_ALEN);
	uint32_t address = ip->saddr;
	uint16_t port = udp->source;

	ip->saddr = ip->daddr;
	ip->daddr = address;
	ip->ttl = 64;
	ip->tot_len = htons(20 + 8 + size);
	ip->check = 0;
	ip->check = header_sum(ip);
	udp->source = udp->dest;
	udp->dest = port;
	udp->len = htons(8 + size);
	udp->check = 0;
	memcpy(frame + HEADERS, out, size);
	return HEADERS + size;
}

/* reclaim gives frames that have been sent back to the receiving side. */
static void reclaim(void)
{
	uint32_t at = *completion.consumer, end = load(completion.producer);

	for (; at != end; at++)
		give(((uint64_t *)completion.entries)[at % RING]);
	store(completion.consumer, at);
}

static int exchange(void)
{
	uint32_t at = *rx.consumer, end = load(rx.producer), out = *tx.producer;
	int replies = 0;

	if (end - at > BATCH)
		end = at + BATCH;
	for (; at != end; at++) {
		struct xdp_desc d = ((struct xdp_desc *)rx.entries)[at % RING];

		d.len = turn(umem + d.addr, d.len);
		if (d.len)
			((struct xdp_desc *)tx.entries)[(out + replies++) % RING] = d;
		else
			give(d.addr);
	}
	store(rx.consumer, at);
	store(tx.producer, out + replies);
	return replies;
}

static void serve(bool spin)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };

	for (;;) {
		int replies = exchange();

		/* In copy mode this call is what sends. */
		if (replies || load(tx.producer) != load(tx.consumer))
			sendto(fd, NULL, 0, MSG_DONTWAIT, NULL, 0);
		else if (!spin || load(fill.flags) & XDP_RING_NEED_WAKEUP)
			poll(&wait, 1, spin ? 0 : -1);
		reclaim();
	}
}

/* afxdp sleep|spin speed|coap DEVICE CPUS */
int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	hurry();
	coap = !strcmp(argv[2], "coap");
	pin(parse_cpus(argv[4]).list[0]);
	open_socket(argv[3]);
	puts("ready");
	fflush(stdout);
	serve(!strcmp(argv[1], "spin"));
}
