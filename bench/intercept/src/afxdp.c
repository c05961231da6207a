// SPDX-License-Identifier: Apache-2.0
/* The receiver with an AF_XDP socket. Descriptor 3 is the XSKMAP of the program that redirects to
 * it. */
#define _GNU_SOURCE
#include <poll.h>

#include "meter.h"
#include "xsk.h"

enum { MAP_FD = 3 };

static void receive_frames(void)
{
	uint32_t at = *rx.consumer, end = load_acquire(rx.producer);

	for (; at != end; at++) {
		struct xdp_desc d = ((struct xdp_desc *)rx.entries)[at % RING];
		const struct message *m = (void *)(umem + d.addr + HEADERS);

		if (d.len >= HEADERS + sizeof(*m))
			record_message(m, now_ns());
		fill_ring_put(d.addr);
		store_release(rx.consumer, at + 1);
	}
}

/* afxdp sleep|spin other|eager|fifo CPU DEVICE */
int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	setup_receiver(argv[2], argv[3]);
	xsk_open(argv[4], MAP_FD);
	print_ready();

	struct pollfd wait = { .fd = fd, .events = POLLIN };

	for (bool sleeps = !strcmp(argv[1], "sleep");; receive_frames())
		if (sleeps)
			poll(&wait, 1, -1);
}
