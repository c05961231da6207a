/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping until one of several descriptors is ready: an epoll instance that is kept, so that a
 * sleep is one system call whose cost does not grow with the number of descriptors. */
#pragma once

#include <stdint.h>

enum watched {
	WATCH_RING = 1,
	WATCH_CONNECTION = 2,
	WATCH_SOCKET = 4, /* AF_XDP socket that receives packets */
	WATCH_WAKE_SOCKET = 8,
	WATCH_CLOCK = 16,
	WATCH_BROKEN = 32, /* the ring has failed: it will not get any more records */
};

struct watch {
	int fd;	   /* epoll; -1: to be created before the next sleep */
	int clock; /* timerfd; -1: none */
};

/* watch_begin creates an empty epoll instance. Returns 0 or a negative errno. */
int watch_begin(struct watch *w);
/* watch_end closes it, so that it is created again before the next sleep: for when a descriptor was
 * replaced. */
void watch_end(struct watch *w);
/* watch_add adds a descriptor; -1 is ignored. Returns 0 or a negative errno. */
int watch_add(struct watch *w, int fd, enum watched what);
/* watch_clock adds a periodic timer, in ns, which costs less than a timeout for each sleep. */
int watch_clock(struct watch *w, uint64_t every);
/* watch_sleep sleeps. until: CLOCK_MONOTONIC, ns; UINT64_MAX: indefinitely. Returns the enum
 * watched that are ready, 0 after the timeout, or a negative errno: -EINTR also when the process
 * was stopped and continues. */
int watch_sleep(const struct watch *w, uint64_t now, uint64_t until);
