/* SPDX-License-Identifier: Apache-2.0 */
/* Sources of packets: the ring of a class (BPF ring buffer or kernel module), and AF_XDP. Both
 * return packets in place, without a copy, and release all of them at once. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kerb_intercept.h"

struct icpt_record;

struct ring {
	int fd;
	unsigned long *consumer; /* position up to which the kernel may overwrite */
	const unsigned long *producer;
	const uint8_t *data;	  /* mapped twice in a row, so that no record wraps */
	unsigned long mask, next; /* next: position after the last fetched record */
	unsigned long released;	  /* last value written to *consumer */
	uint64_t lost;		  /* of the last record; UINT64_MAX: none yet */
	size_t length;		  /* bytes mapped from producer on */
};

/* ring_map maps a ring of size bytes. It owns fd if it returns 0, not if a negative errno. */
int ring_map(struct ring *r, int fd, size_t size);
void ring_unmap(struct ring *r);
/* ring_fetch returns the packets that are pending, at most max; they stay in the ring until
 * ring_release. */
int ring_fetch(struct ring *r, struct kerb_packet *packets, int max);

static inline bool ring_pending(const struct ring *r)
{
	return __atomic_load_n(r->producer, __ATOMIC_ACQUIRE) != r->next;
}

/* ring_moved reports whether another program has changed the consumer position. */
static inline bool ring_moved(const struct ring *r)
{
	return __atomic_load_n(r->consumer, __ATOMIC_RELAXED) != r->released;
}

static inline void ring_release(struct ring *r)
{
	if (r->released == r->next && !ring_moved(r))
		return;
	__atomic_store_n(r->consumer, r->next, __ATOMIC_RELEASE);
	r->released = r->next;
}

struct xsk_queue {
	uint32_t *producer, *consumer, *flags, size;
	void *entries, *memory;
	size_t length;
};

struct xsk {
	int fd; /* -1: not in use */
	bool busy;		       /* busy polling: the receiver runs the driver */
	uint32_t n;		       /* number of frames, a power of two */
	uint32_t ifindex, queue, held; /* held: fetched frames that are not released yet */
	uint64_t lost;		       /* of the last packet; UINT64_MAX: none yet */
	uint64_t dropped;	       /* packets for which the socket had no room */
	uint64_t seq;		       /* expected of the next packet */
	uint8_t *frames;
	struct xsk_queue fill, rx;
};

/* xsk_open opens a socket for the packets of a queue. Returns 0 or a negative errno. */
int xsk_open(struct xsk *x, const char *device, uint32_t queue, bool copy);
enum { WAKE_FRAMES = 16 }; /* frames of a wake socket: wake-ups until they must be discarded */

/* xsk_open_wake_socket opens a wake socket (wake.h). *tries: how often to try while the queue is
 * busy, 1 ms apart; it is reduced by the tries that were made. Returns 0 or a negative errno. */
int xsk_open_wake_socket(struct xsk *x, uint32_t ifindex, uint32_t queue, int *tries);
/* xsk_discard releases all received frames unread, so that a wake socket can wake again. */
void xsk_discard(struct xsk *x);
void xsk_close(struct xsk *x);
int xsk_fetch(struct xsk *x, struct kerb_packet *packets, int max);
void xsk_release(struct xsk *x);
bool xsk_owns(const struct xsk *x, const uint8_t *frame);
/* xsk_pending reports whether packets wait, and runs the driver if that is up to the receiver. */
bool xsk_pending(struct xsk *x);
