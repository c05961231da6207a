// SPDX-License-Identifier: Apache-2.0
/* What all programs of the benches need. */
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

static inline int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}
