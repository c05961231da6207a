/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The bucket of an integer in a histogram, see kerb/histogram.h. This file does not depend on BPF:
 * the library lib/intercept uses it as well. In Go: sdk/histogram. */
#ifndef KERB_BUCKETS_H
#define KERB_BUCKETS_H

#include <linux/types.h>

/* floor(log2(n)), n > 0. BPF has no instruction for it. */
static inline __attribute__((always_inline)) __u32 kerb_log2(__u64 n)
{
	__u32 r = (n > 0xffffffff) << 5, s;

	n >>= r;
	s = (n > 0xffff) << 4;
	n >>= s;
	r |= s;
	s = (n > 0xff) << 3;
	n >>= s;
	r |= s;
	s = (n > 0xf) << 2;
	n >>= s;
	r |= s;
	s = (n > 0x3) << 1;
	n >>= s;
	r |= s;
	return r | (n >> 1);
}

static inline __attribute__((always_inline)) __u32 kerb_histogram_bucket(__u64 value, __u32 buckets)
{
	__u32 e, b;

	if (value < 4)
		return value;
	e = kerb_log2(value);
	b = (e - 1) * 4 + (value >> (e - 2) & 3);
	return b < buckets ? b : buckets - 1;
}

#endif
