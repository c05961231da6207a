// SPDX-License-Identifier: Apache-2.0
/* Errors and the clock, for all programs of the benchmarks. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline void die(const char *what)
{
	perror(what);
	exit(1);
}

static inline int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}
