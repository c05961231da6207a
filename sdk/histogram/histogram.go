// SPDX-License-Identifier: Apache-2.0

// Package histogram defines the buckets of sdk.Histogram, for programs that import nothing else of the SDK. The C
// implementation is kerb/buckets.h.
package histogram

import "math/bits"

// Bucket returns the bucket of a value in a histogram with at least 4 buckets, four per power of two. The last bucket
// counts all larger values.
func Bucket(v uint64, buckets int) int {
	if v >= 4 {
		e := bits.Len64(v) - 1
		v = uint64(e-1)*4 + v>>(e-2)&3
	}
	return int(min(v, uint64(buckets-1)))
}
