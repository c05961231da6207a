/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Histograms of integers, such as times in ns or lengths in bytes: an array of __u64 with four
 * buckets for each power of two. A value below 4 is its bucket; otherwise, with e = floor(log2(v)),
 * the bucket is (e - 1) * 4 + (v >> (e - 2) & 3). The last bucket has no upper bound. A bucket is
 * at most a fourth as wide as its lower bound. Control planes read it as sdk.Histogram. */
#ifndef KERB_HISTOGRAM_H
#define KERB_HISTOGRAM_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include <kerb/buckets.h>
#include <kerb/verifier.h>

/* Counts a value in an array with at least 4 buckets, a constant. The addition is not atomic: use a
 * per-CPU map. */
static __always_inline void kerb_histogram_count(__u64 *histogram, __u32 buckets, __u64 value)
{
	__u32 b = kerb_histogram_bucket(value, buckets);

	kerb_opaque(b); /* restores the bound, which the verifier has lost */
	if (b < buckets)
		histogram[b]++;
}

#endif
