/* SPDX-License-Identifier: Apache-2.0 */
/* Bells: AF_XDP sockets that wake this program, one for each queue of the interface that packets come from, while packets come into the
 * ring. A ring's own wake-up takes an interrupt of the CPU to itself, which on virtual machines is slow. */
#pragma once

#include "source.h"

enum { BELLS = 16 };

struct bells {
	struct xsk of[BELLS];
	int n;
	uint32_t ifindex;
	int silent; /* what was missed since one has rung */
};

/* bells_open opens one for each queue, as far as there are; address: the interface's, else it is another one. patient: it waits up to
 * 100 ms for a queue that a program has just left. The number of bells. */
int bells_open(struct bells *b, uint32_t ifindex, const char *address, bool patient);
void bells_close(struct bells *b);
/* Whether a bell should have rung that did not: the ring woke, which is no harm, or nothing did. One may be about to ring. */
enum bell_missed { BELL_NONE_MISSED = 0, BELL_MISSED = 1, BELL_MISSED_FOR_LONG = 32 };

/* bells_heard has bells ring again. false: they are no good, as too many were missed in a row. */
bool bells_heard(struct bells *b, enum bell_missed missed);
