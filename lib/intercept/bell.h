/* SPDX-License-Identifier: Apache-2.0 */
/* Bells: AF_XDP sockets that wake this program, one for each queue of the interface that packets
 * come from, while packets come into the ring. A ring's own wake-up takes an interrupt of the CPU
 * to itself, which on virtual machines is slow. */
#pragma once

#include "source.h"

enum { BELLS = 16 };

struct bells {
	struct xsk of[BELLS];
	int n;
	uint32_t ifindex;
	int armed;  /* times that one may have rung since all were silenced */
	int silent; /* what was missed since one has rung */
};

/* bells_open opens one for each queue, as far as there are; address: the interface's, else it is
 * another one. patient: it waits up to 50 ms for queues that a program has just left. The number of
 * bells. */
int bells_open(struct bells *b, uint32_t ifindex, const char *address, bool patient);
void bells_close(struct bells *b);
/* bells_arm has bells ring again: before each sleep that they may end. */
void bells_arm(struct bells *b);
/* bells_heard learns what has ended such a sleep (enum watched), and whether packets wait. false:
 * they are no good, as others woke, or none did, too often in a row. */
bool bells_heard(struct bells *b, int what, bool packets);
