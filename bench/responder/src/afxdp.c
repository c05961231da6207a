// SPDX-License-Identifier: Apache-2.0
/* The AF_XDP server: takes whole frames of one receive queue from the device, answers those with a
 * request in place and sends them back. Its map of sockets and the program that redirects into it
 * are its starter's, who leaves the map's descriptor as number 3. */
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

static uint16_t header_sum(const struct iphdr *ip)
{
	const uint16_t *w = (void *)ip;
	uint32_t sum = 0;

	for (int i = 0; i < 10; i++)
		sum += w[i];
	sum = (sum & 0xffff) + (sum >> 16);
	return ~(sum + (sum >> 16));
}

/* turn makes a frame with a request the reply and returns its length; 0 is none. IPv4 without
 * options, as the program that redirects has seen to; the reply goes without UDP checksum, which
 * spares this server reading it. */
static uint32_t turn(uint8_t *frame, uint32_t n)
{
	struct ethhdr *eth = (void *)frame;
	struct iphdr *ip = (void *)(frame + 14);
	struct udphdr *udp = (void *)(frame + 34);
	uint8_t out[MAX_MESSAGE], mac[ETH_ALEN];
	size_t size = n < HEADERS ? 0 : ntohs(udp->len) - 8;

	size = n < HEADERS || size > n - HEADERS ? 0 : answer(protocol, frame + HEADERS, size, out);
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

/* afxdp sleep|spin speed|coap|work DEVICE CPUS */
int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	hurry();
	protocol = parse_protocol(argv[2]);
	pin(parse_cpus(argv[4]).list[0]);
	xsk_open(argv[3], MAP_FD);
	puts("ready");
	fflush(stdout);
	serve(!strcmp(argv[1], "spin"));
}
