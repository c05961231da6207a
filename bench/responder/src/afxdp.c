// SPDX-License-Identifier: Apache-2.0
/* The AF_XDP server: receives the frames of one queue, rewrites those with a request in place into
 * the reply, and sends them. The parent process owns the XSKMAP (descriptor 3) and the program that
 * redirects into it. */
#define _GNU_SOURCE
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wire.h"
#include "cpu.h"
#include "xsk.h"

enum { MAP_FD = 3, BATCH = 64, HEADERS = 14 + 20 + 8 };

static enum protocol protocol;

static uint16_t ipv4_checksum(const struct iphdr *ip)
{
	const uint16_t *w = (void *)ip;
	uint32_t sum = 0;

	for (int i = 0; i < 10; i++)
		sum += w[i];
	sum = (sum & 0xffff) + (sum >> 16);
	return ~(sum + (sum >> 16));
}

/* write_reply rewrites a frame with a request into the reply and returns its length, or 0 for none.
 * The program that redirects passes IPv4 without options only. The reply has no UDP checksum, so
 * that the server need not compute it. */
static uint32_t write_reply(uint8_t *frame, uint32_t n)
{
	struct ethhdr *eth = (void *)frame;
	struct iphdr *ip = (void *)(frame + 14);
	struct udphdr *udp = (void *)(frame + 34);
	uint8_t out[MAX_MESSAGE], mac[ETH_ALEN];
	size_t size = n < HEADERS ? 0 : ntohs(udp->len) - 8;

	size = n < HEADERS || size > n - HEADERS
		       ? 0
		       : answer_request(protocol, frame + HEADERS, size, out);
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
	ip->check = ipv4_checksum(ip);
	udp->source = udp->dest;
	udp->dest = port;
	udp->len = htons(8 + size);
	udp->check = 0;
	memcpy(frame + HEADERS, out, size);
	return HEADERS + size;
}

/* reclaim_frames returns sent frames to the fill ring. */
static void reclaim_frames(void)
{
	uint32_t at = *completion.consumer, end = load_acquire(completion.producer);

	for (; at != end; at++)
		fill_ring_put(((uint64_t *)completion.entries)[at % RING]);
	store_release(completion.consumer, at);
}

static int answer_frames(void)
{
	uint32_t at = *rx.consumer, end = load_acquire(rx.producer), out = *tx.producer;
	int replies = 0;

	if (end - at > BATCH)
		end = at + BATCH;
	for (; at != end; at++) {
		struct xdp_desc d = ((struct xdp_desc *)rx.entries)[at % RING];

		d.len = write_reply(umem + d.addr, d.len);
		if (d.len)
			((struct xdp_desc *)tx.entries)[(out + replies++) % RING] = d;
		else
			fill_ring_put(d.addr);
	}
	store_release(rx.consumer, at);
	store_release(tx.producer, out + replies);
	return replies;
}

static void serve_frames(bool spin)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };

	for (;;) {
		int replies = answer_frames();

		/* In copy mode, this call sends the frames. */
		if (replies || load_acquire(tx.producer) != load_acquire(tx.consumer))
			sendto(fd, NULL, 0, MSG_DONTWAIT, NULL, 0);
		else if (!spin || load_acquire(fill.flags) & XDP_RING_NEED_WAKEUP)
			poll(&wait, 1, spin ? 0 : -1);
		reclaim_frames();
	}
}

/* afxdp sleep|spin speed|coap|work DEVICE CPUS */
int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	raise_priority();
	protocol = parse_protocol(argv[2]);
	pin_thread(parse_cpus(argv[4]).list[0]);
	xsk_open(argv[3], MAP_FD);
	puts("ready");
	fflush(stdout);
	serve_frames(!strcmp(argv[1], "spin"));
}
