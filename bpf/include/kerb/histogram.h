/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Histograms of whole numbers, such as times in ns or lengths in bytes: an array of __u64 with four
 * buckets for each power of two. Below 4 a value is its bucket; else, with e = floor(log2(v)), the
 * bucket is (e - 1) * 4 + (v >> (e - 2) & 3). The last bucket has all that is larger. A bucket is
 * at most a fourth as wide as its lower bound. Control planes read it as sdk.Histogram. */
#ifndef KERB_HISTOGRAM_H
#define KERB_HISTOGRAM_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include <kerb/verifier.h>

/* floor(log2(n)), n > 0. */
static __always_inline __u32 kerb_log2(__u64 n)
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

static __always_inline __u32 kerb_histogram_bucket(__u64 value, __u32 buckets)
{
	__u32 e, b;

	if (value < 4)
		return value;
	e = kerb_log2(value);
	b = (e - 1) * 4 + (value >> (e - 2) & 3);
	return b < buckets ? b : buckets - 1;
}

/* Counts a value in an array of at least 4 buckets, a constant. The addition is not atomic: keep
 * the array in a per-CPU map. */
static __always_inline void kerb_histogram_count(__u64 *histogram, __u32 buckets, __u64 value)
{
	__u32 b = kerb_histogram_bucket(value, buckets);

	kerb_opaque(b); /* for the verifier, which has lost the bound */
	if (b < buckets)
		histogram[b]++;
}

#endif
