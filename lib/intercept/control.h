/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of control messages from the receiver to the data plane (BPF_MAP_TYPE_USER_RINGBUF). */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct controls { /* producer is NULL if there is no ring */
	const unsigned long *consumer;
	unsigned long *producer;
	uint8_t *data;
	size_t size;
};

/* controls_map maps the ring, and empties it if a previous program left something else than
 * messages in it. Before Linux 6.1 there are no such rings: fd is of another map then, and mapping
 * it fails. */
void controls_map(struct controls *c, int fd);
void controls_unmap(struct controls *c);
