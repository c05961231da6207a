/* SPDX-License-Identifier: Apache-2.0 */
/* Wake sockets: AF_XDP sockets, one for each queue of the interface, that only wake this program
 * when a packet was put into the ring. A wake-up through the ring itself takes a self-interrupt of
 * the CPU (irq_work), which is slow on virtual machines. */
#pragma once

#include "source.h"

enum { WAKE_SOCKETS = 16 };

struct wake_sockets {
	struct xsk of[WAKE_SOCKETS]; /* by queue */
	int n;
	uint32_t ifindex;
	int armed;  /* sleeps since the received frames were last discarded */
	int missed; /* wake-ups by something else since a wake socket woke */
};

/* wake_sockets_open opens a socket for each of the first 16 queues, until one fails. address: MAC
 * address that the interface must have, as ifindex may be of another network namespace. patient:
 * wait up to 50 ms for queues whose previous socket the kernel has not yet released. Returns the
 * number of sockets. */
int wake_sockets_open(struct wake_sockets *w, uint32_t ifindex, const char *address, bool patient);
void wake_sockets_close(struct wake_sockets *w);
/* wake_sockets_arm makes room for wake-ups; call it before each sleep. */
void wake_sockets_arm(struct wake_sockets *w);
/* wake_sockets_check evaluates the end of a sleep: what woke the program (enum watched), and
 * whether packets are pending. Returns false if the sockets are useless: something else woke the
 * program, or nothing did, too many times in a row. */
bool wake_sockets_check(struct wake_sockets *w, int what, bool packets);
