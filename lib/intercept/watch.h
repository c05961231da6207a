/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping until one of several descriptors has something: an epoll instance that stays, so that a
 * sleep is one system call whose cost does not grow with what is watched. */
#pragma once

#include <stdint.h>

enum watched {
	WATCH_RING = 1,
	WATCH_CONNECTION = 2,
	WATCH_SOCKET = 4, /* with packets */
	WATCH_BELL = 8,
	WATCH_CLOCK = 16,
	WATCH_BROKEN = 32, /* the ring will not have anything any more */
};

struct watch {
	int fd;	   /* -1: begin again */
	int clock; /* -1: none */
};

/* watch_begin watches nothing. 0, or a negative errno. */
int watch_begin(struct watch *w);
/* watch_end: before the next sleep, watching begins again; for when a descriptor has become
 * another. */
void watch_end(struct watch *w);
/* watch_add watches a descriptor; -1 is none. */
int watch_add(struct watch *w, int fd, enum watched what);
/* watch_clock ends a sleep from time to time, which costs less than a limit for each; ns. */
int watch_clock(struct watch *w, uint64_t every);
/* watch_sleep returns what there is, 0 when it is time, or a negative errno, -EINTR also when the
 * process was stopped and continues. until: CLOCK_MONOTONIC, ns; UINT64_MAX: indefinitely. */
int watch_sleep(const struct watch *w, uint64_t now, uint64_t until);
