/* SPDX-License-Identifier: Apache-2.0 */
/* AF_XDP sockets: the driver, or the kernel in copy mode, writes frames into memory of this process
 * (Documentation/networking/af_xdp.rst). */
#define _GNU_SOURCE
#include "source.h"

#include <errno.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "connection.h"
#include "record.h"

#ifndef SO_PREFER_BUSY_POLL /* Linux 5.11 */
#define SO_PREFER_BUSY_POLL 69
#define SO_BUSY_POLL_BUDGET 70
#endif

enum { FRAME = 4096, FRAMES = 4096, BUSY_US = 20, BUSY_BUDGET = 64 };

static uint32_t load_acquire(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
static void store_release(uint32_t *p, uint32_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}

static int map_queue(const struct xsk *x, struct xsk_queue *q, const struct xdp_ring_offset *o,
		     off_t at, size_t entry)
{
	q->length = o->desc + x->n * entry;
	q->memory =
		mmap(NULL, q->length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, x->fd, at);
	if (q->memory == MAP_FAILED) {
		q->memory = NULL;
		return fail(errno, "AF_XDP: map a ring: %s", strerror(errno));
	}
	q->producer = (void *)((uint8_t *)q->memory + o->producer);
	q->consumer = (void *)((uint8_t *)q->memory + o->consumer);
	q->flags = (void *)((uint8_t *)q->memory + o->flags);
	q->entries = (uint8_t *)q->memory + o->desc;
	return 0;
}

static int umem_register(struct xsk *x)
{
	struct xdp_umem_reg reg = { .len = (uint64_t)x->n * FRAME, .chunk_size = FRAME };

	x->frames = mmap(NULL, reg.len, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (x->frames == MAP_FAILED) {
		x->frames = NULL;
		return fail(errno, "AF_XDP: memory for frames: %s", strerror(errno));
	}
	reg.addr = (uintptr_t)x->frames;
	if (setsockopt(x->fd, SOL_XDP, XDP_UMEM_REG, &reg, sizeof(reg)))
		return fail(errno, "AF_XDP: register %u KiB for frames: %s (ulimit -l?)",
			    x->n * FRAME >> 10, strerror(errno));
	return 0;
}

static int rings_create(struct xsk *x)
{
	int options[] = { XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING },
	    size = (int)x->n, code;
	struct xdp_mmap_offsets o;
	socklen_t length = sizeof(o);

	for (int i = 0; i < 3; i++)
		if (setsockopt(x->fd, SOL_XDP, options[i], &size, sizeof(size)))
			return fail(errno, "AF_XDP: make a ring: %s", strerror(errno));
	if (getsockopt(x->fd, SOL_XDP, XDP_MMAP_OFFSETS, &o, &length))
		return fail(errno, "AF_XDP: %s", strerror(errno));
	code = map_queue(x, &x->fill, &o.fr, XDP_UMEM_PGOFF_FILL_RING, sizeof(uint64_t));
	return code ? code
		    : map_queue(x, &x->rx, &o.rx, XDP_PGOFF_RX_RING, sizeof(struct xdp_desc));
}

static void fill_put(struct xsk *x, uint32_t at, uint64_t frame)
{
	((uint64_t *)x->fill.entries)[at & (x->n - 1)] = frame & ~(uint64_t)(FRAME - 1);
}

/* prefer_busy_poll makes the receiver run the driver, where supported (Linux 5.11). */
static void prefer_busy_poll(struct xsk *x)
{
	int on = 1, us = BUSY_US, budget = BUSY_BUDGET;

	x->busy = !setsockopt(x->fd, SOL_SOCKET, SO_PREFER_BUSY_POLL, &on, sizeof(on)) &&
		  !setsockopt(x->fd, SOL_SOCKET, SO_BUSY_POLL, &us, sizeof(us)) &&
		  !setsockopt(x->fd, SOL_SOCKET, SO_BUSY_POLL_BUDGET, &budget, sizeof(budget));
}

/* bind_queue binds the socket, with retries 1 ms apart while the queue is busy: the kernel releases
 * a closed socket asynchronously. */
static int bind_queue(struct xsk *x, bool copy, int *tries)
{
	struct sockaddr_xdp at = { .sxdp_family = AF_XDP,
				   .sxdp_ifindex = x->ifindex,
				   .sxdp_queue_id = x->queue,
				   .sxdp_flags = (uint16_t)(XDP_USE_NEED_WAKEUP |
							    (copy ? XDP_COPY : 0)) };

	while (bind(x->fd, (void *)&at, sizeof(at))) {
		if (errno != EBUSY || --*tries <= 0)
			return fail(errno, "AF_XDP: bind to queue %u of interface %u: %s%s",
				    x->queue, x->ifindex, strerror(errno),
				    errno == EBUSY
					    ? " (another program's socket has it, or one that "
					      "wakes a program: delivery: ringbuf does without)"
					    : "");
		usleep(1000);
	}
	return 0;
}

static int socket_create(struct xsk *x, bool copy, int *tries)
{
	struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY };
	int code;

	x->fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
	if (x->fd < 0)
		return fail(errno, "AF_XDP: %s (it needs CAP_NET_RAW)", strerror(errno));
	/* it limits UMEM before Linux 5.11; without the privilege, XDP_UMEM_REG fails */
	setrlimit(RLIMIT_MEMLOCK, &all);
	code = umem_register(x);
	if (!code)
		code = rings_create(x);
	if (!code) {
		for (uint32_t i = 0; i < x->n; i++)
			fill_put(x, i, (uint64_t)i * FRAME);
		store_release(x->fill.producer, x->n);
		code = bind_queue(x, copy, tries);
	}
	if (code)
		xsk_close(x);
	return code;
}

int xsk_open(struct xsk *x, const char *device, uint32_t queue, bool copy)
{
	struct xdp_options zero = { 0 };
	socklen_t length = sizeof(zero);
	int tries = 1000, code;

	*x = (struct xsk){ .fd = -1,
			   .n = FRAMES,
			   .ifindex = if_nametoindex(device),
			   .queue = queue,
			   .lost = UINT64_MAX };
	code = x->ifindex ? socket_create(x, copy, &tries)
			  : fail(ENODEV, "AF_XDP: there is no interface %s", device);
	if (!code && !getsockopt(x->fd, SOL_XDP, XDP_OPTIONS, &zero, &length) &&
	    zero.flags & XDP_OPTIONS_ZEROCOPY)
		prefer_busy_poll(x);
	return code;
}

int xsk_open_wake_socket(struct xsk *x, uint32_t ifindex, uint32_t queue, int *tries)
{
	*x = (struct xsk){ .fd = -1, .n = WAKE_FRAMES, .ifindex = ifindex, .queue = queue };
	/* copy mode: in zero-copy mode the driver would use the few frames of this socket only */
	return socket_create(x, true, tries);
}

void xsk_close(struct xsk *x)
{
	if (x->fd < 0)
		return;
	if (x->rx.memory)
		munmap(x->rx.memory, x->rx.length);
	if (x->fill.memory)
		munmap(x->fill.memory, x->fill.length);
	close(x->fd);
	if (x->frames)
		munmap(x->frames, (size_t)x->n * FRAME);
	x->fd = -1;
}

/* flags_of derives KERB_PACKET_* from the frame: struct icpt_meta has none. */
static uint32_t flags_of(const uint8_t *frame, uint32_t len, const struct icpt_meta *m)
{
	uint32_t flags = KERB_PACKET_STOLEN | (m->payload > m->l4 ? KERB_PACKET_L4 : 0);

	if (m->l3 >= len)
		return flags;
	return flags | (frame[m->l3] >> 4 == 6 ? KERB_PACKET_IP6 : KERB_PACKET_IP4);
}

/* dropped_since returns how many packets the socket had no room for since the last call. The data
 * plane does not count these as lost, but they leave gaps in seq. */
static uint64_t dropped_since(struct xsk *x)
{
	struct xdp_statistics s = { 0 };
	socklen_t length = sizeof(s);
	uint64_t before = x->dropped;

	getsockopt(x->fd, SOL_XDP, XDP_STATISTICS, &s, &length);
	x->dropped = s.rx_dropped + s.rx_ring_full;
	return x->dropped - before;
}

static struct kerb_packet packet_of(struct xsk *x, const struct xdp_desc *d)
{
	const uint8_t *frame = x->frames + d->addr;
	struct icpt_meta m;

	memcpy(&m, frame - sizeof(m), sizeof(m));
	uint64_t lost = x->lost != UINT64_MAX && m.lost > x->lost ? m.lost - x->lost : 0;

	if (m.seq != x->seq)
		lost += dropped_since(x);
	x->lost = m.lost;
	x->seq = m.seq + 1;
	return (struct kerb_packet){ .frame = frame,
				     .len = d->len,
				     .caplen = d->len,
				     .l3 = m.l3,
				     .l4 = m.l4,
				     .payload = m.payload,
				     .flags = flags_of(frame, d->len, &m),
				     .ifindex = x->ifindex,
				     .seq = m.seq,
				     .sent = m.time,
				     .lost = lost };
}

int xsk_fetch(struct xsk *x, struct kerb_packet *packets, int max)
{
	uint32_t at = *x->rx.consumer + x->held, end = load_acquire(x->rx.producer);
	int n = 0;

	for (; at != end && n < max; at++)
		packets[n++] =
			packet_of(x, &((const struct xdp_desc *)x->rx.entries)[at & (x->n - 1)]);
	x->held += (uint32_t)n;
	return n;
}

void xsk_release(struct xsk *x)
{
	uint32_t at = *x->rx.consumer, to = *x->fill.producer;

	if (!x->held)
		return;
	for (uint32_t i = 0; i < x->held; i++)
		fill_put(x, to + i,
			 ((const struct xdp_desc *)x->rx.entries)[(at + i) & (x->n - 1)].addr);
	store_release(x->fill.producer, to + x->held);
	store_release(x->rx.consumer, at + x->held);
	x->held = 0;
}

void xsk_discard(struct xsk *x)
{
	x->held = load_acquire(x->rx.producer) - *x->rx.consumer;
	xsk_release(x);
}

bool xsk_owns(const struct xsk *x, const uint8_t *frame)
{
	return x->fd >= 0 && frame >= x->frames && frame < x->frames + (size_t)x->n * FRAME;
}

bool xsk_pending(struct xsk *x)
{
	if (load_acquire(x->rx.producer) != *x->rx.consumer + x->held)
		return true;
	if (x->busy || load_acquire(x->fill.flags) & XDP_RING_NEED_WAKEUP)
		recvfrom(x->fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
	return load_acquire(x->rx.producer) != *x->rx.consumer + x->held;
}
