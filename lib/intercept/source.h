/* SPDX-License-Identifier: Apache-2.0 */
/* Where packets come from: the ring of a class (BPF ring buffer or kernel module), and AF_XDP. Both
 * give packets without copying them, and get them back all at once. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kerb_intercept.h"

struct icpt_record;

struct ring {
	int fd;
	unsigned long *consumer;	/* where the kernel may write again */
	const unsigned long *producer;
	const uint8_t *data;		/* twice in a row, so that no record is broken */
	unsigned long mask, next;	/* next: behind what was given out */
	unsigned long released;		/* what we have written to consumer last */
	uint64_t lost;			/* as of the last record; UINT64_MAX: there was none yet */
	size_t length;			/* mapped behind the consumer's page */
};

int ring_map(struct ring *r, int fd, size_t size);
void ring_unmap(struct ring *r);
/* ring_fetch gives out what there is, at most max packets. */
int ring_fetch(struct ring *r, struct kerb_packet *packets, int max);

static inline bool ring_pending(const struct ring *r)
{
	return __atomic_load_n(r->producer, __ATOMIC_ACQUIRE) != r->next;
}

/* ring_moved reports whether another program has written the consumer's position. */
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
	bool busy; /* the receiver drives the driver */
	uint32_t n; /* frames, a power of two */
	uint32_t ifindex, queue, held; /* held: frames that were given out */
	/* as of the last packet: found no room in the ring of the class; UINT64_MAX: there was none
	 * yet */
	uint64_t lost;
	uint64_t dropped; /* found none in the socket */
	uint64_t seq;	  /* of the next packet, where none is lost */
	uint8_t *frames;
	struct xsk_queue fill, rx;
};

int xsk_open(struct xsk *x, const char *device, uint32_t queue, bool copy);
enum { BELL_FRAMES = 16 }; /* a bell rings so often until it has to be silenced */

/* xsk_open_bell opens a socket that only wakes. Tries, of which it takes some, are 1 ms apart. */
int xsk_open_bell(struct xsk *x, uint32_t ifindex, uint32_t queue, int *tries);
/* xsk_silence has a bell ring again. */
void xsk_silence(struct xsk *x);
void xsk_close(struct xsk *x);
int xsk_fetch(struct xsk *x, struct kerb_packet *packets, int max);
void xsk_release(struct xsk *x);
bool xsk_owns(const struct xsk *x, const uint8_t *frame);
/* xsk_pending looks, and has the driver look if that is ours to do. */
bool xsk_pending(struct xsk *x);
