/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of control messages, from the receiver to the module's program. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct controls { /* the ring of control messages; none: producer is NULL */
	const unsigned long *consumer;
	unsigned long *producer;
	uint8_t *data;
	size_t size;
};

/* controls_map maps the ring, and empties it if a program that had the class before has left
 * something else in it. A kernel before 6.1 has no such ring, and hands over something else: there
 * are no control messages then. */
void controls_map(struct controls *c, int fd);
void controls_unmap(struct controls *c);
