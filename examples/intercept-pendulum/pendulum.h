/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of plant, sensors and controller, in network byte order. Angle, speed and push are
 * fixed-point numbers with 16 fractional bits, so that the kernel can compute with them, too
 * (module.yaml, fallback). */
#pragma once

#include <arpa/inet.h>
#include <math.h>
#include <stdint.h>
#include <time.h>

#define PORT 5005 /* of the controller, UDP */

struct state { /* plant to controller; kind is "CTRL", which the class matches */
	char kind[4];
	uint32_t step;
	uint32_t angle, speed; /* rad, rad/s; 0 is upright */
};

struct log_message {  /* sensors to the same port of the controller */
	char kind[4]; /* "LOG " */
	uint32_t number;
	char text[56];
};

struct force { /* the answer; push: angular acceleration of the pivot, rad/s^2 */
	uint32_t step;
	uint32_t push;
};

static inline uint32_t to_fixed(double value)
{
	return htonl((uint32_t)(int32_t)lround(fmax(-32768, fmin(32767, value)) * 65536));
}

static inline double from_fixed(uint32_t value) { return (int32_t)ntohl(value) / 65536.0; }

/* Sleeps until the next step, ns (below 1 s) after the previous one. Missed steps are skipped, as a
 * sensor does not repeat old values. */
static inline void next_step(struct timespec *t, long ns)
{
	struct timespec now;

	t->tv_nsec += ns;
	if (t->tv_nsec >= 1000000000) {
		t->tv_nsec -= 1000000000;
		t->tv_sec++;
	}
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, t, NULL);
	clock_gettime(CLOCK_MONOTONIC, &now);
	if (now.tv_sec > t->tv_sec || now.tv_nsec > t->tv_nsec)
		*t = now;
}
