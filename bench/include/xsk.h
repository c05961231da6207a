// SPDX-License-Identifier: Apache-2.0
/* An AF_XDP socket in copy mode, with its four rings and its UMEM. */
#pragma once

#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base.h"

enum { FRAME = 2048, RING = 4096, FRAMES = RING };

struct ring {
	uint32_t *producer, *consumer, *flags;
	void *entries;
};

static int fd;
static uint8_t *umem;
static struct ring fill, completion, rx, tx;

static inline void set_ring_size(int option)
{
	int size = RING;

	if (setsockopt(fd, SOL_XDP, option, &size, sizeof(size)))
		die("ring");
}

static inline struct ring map_ring(const struct xdp_ring_offset *o, off_t at, size_t entry)
{
	uint8_t *p = mmap(NULL, o->desc + RING * entry, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_POPULATE, fd, at);

	if (p == MAP_FAILED)
		die("map ring");
	return (struct ring){ (void *)(p + o->producer), (void *)(p + o->consumer),
			      (void *)(p + o->flags), p + o->desc };
}

static inline void open_umem(void)
{
	umem = mmap(NULL, FRAMES * FRAME, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	struct xdp_umem_reg reg = { .addr = (uintptr_t)umem,
				    .len = FRAMES * FRAME,
				    .chunk_size = FRAME };

	if (umem == MAP_FAILED || setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &reg, sizeof(reg)))
		die("frames");
}

static inline void open_rings(void)
{
	struct xdp_mmap_offsets o;
	socklen_t size = sizeof(o);

	set_ring_size(XDP_UMEM_FILL_RING);
	set_ring_size(XDP_UMEM_COMPLETION_RING);
	set_ring_size(XDP_RX_RING);
	set_ring_size(XDP_TX_RING);
	if (getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &o, &size))
		die("ring offsets");
	fill = map_ring(&o.fr, XDP_UMEM_PGOFF_FILL_RING, sizeof(uint64_t));
	completion = map_ring(&o.cr, XDP_UMEM_PGOFF_COMPLETION_RING, sizeof(uint64_t));
	rx = map_ring(&o.rx, XDP_PGOFF_RX_RING, sizeof(struct xdp_desc));
	tx = map_ring(&o.tx, XDP_PGOFF_TX_RING, sizeof(struct xdp_desc));
}

static inline uint32_t load_acquire(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
static inline void store_release(uint32_t *p, uint32_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}

/* fill_ring_put returns a frame to the kernel for receiving. */
static inline void fill_ring_put(uint64_t frame)
{
	uint32_t at = *fill.producer;

	((uint64_t *)fill.entries)[at % RING] = frame & ~(uint64_t)(FRAME - 1);
	store_release(fill.producer, at + 1);
}

static inline void xskmap_insert(int map)
{
	uint32_t key = 0, value = fd;
	union bpf_attr attr = { .map_fd = map, .key = (uintptr_t)&key, .value = (uintptr_t)&value };

	if (syscall(SYS_bpf, BPF_MAP_UPDATE_ELEM, &attr, sizeof(attr)))
		die("map of sockets");
}

/* xsk_open binds a socket to the first queue of a device and stores it in an XSKMAP. */
static inline void xsk_open(const char *device, int map)
{
	struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY };
	struct sockaddr_xdp at = { .sxdp_family = AF_XDP, .sxdp_ifindex = if_nametoindex(device),
		.sxdp_flags = XDP_COPY | XDP_USE_NEED_WAKEUP };

	setrlimit(RLIMIT_MEMLOCK, &all); /* kernels before 5.11 charge maps and the UMEM to it */
	fd = socket(AF_XDP, SOCK_RAW, 0);
	if (fd < 0)
		die("AF_XDP");
	open_umem();
	open_rings();
	for (int tries = 0; bind(fd, (void *)&at, sizeof(at)); tries++) {
		/* the kernel releases the previous socket asynchronously */
		if (errno != EBUSY || tries == 1000)
			die("bind");
		usleep(1000);
	}
	for (int i = 0; i < FRAMES; i++)
		fill_ring_put((uint64_t)i * FRAME);
	xskmap_insert(map);
}
