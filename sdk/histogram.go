// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"math"
	"slices"

	"github.com/kerb-edge/kerb/sdk/histogram"
)

// Histogram counts integers, such as times in ns, in four buckets per power of two, as kerb/histogram.h does in the
// data plane. It has at least 4 buckets; the last one counts all larger values. Powers of two are bucket boundaries, so
// that a histogram converts without loss to a Prometheus native histogram of schema 0.
type Histogram []uint64

// Observe counts a value.
func (h Histogram) Observe(v uint64) {
	h[histogram.Bucket(v, len(h))]++
}

// HistogramFloor returns the lower bound of a bucket.
func HistogramFloor(bucket int) uint64 {
	if bucket < 4 {
		return uint64(bucket)
	}
	e := bucket/4 + 1
	return (4 + uint64(bucket%4)) << (e - 2)
}

// Count returns the number of values.
func (h Histogram) Count() (n uint64) {
	for _, c := range h {
		n += c
	}
	return n
}

// Since returns the counts added since an earlier state of h, which may have fewer buckets. It returns false if a
// bucket of h has become smaller.
func (h Histogram) Since(before Histogram) (Histogram, bool) {
	out := slices.Clone(h)
	for b, n := range before {
		if b >= len(h) || h[b] < n {
			return nil, false
		}
		out[b] -= n
	}
	return out, true
}

// Quantile returns the upper bound of the bucket that contains the quantile of the given share, from 0 to 1; 0 without
// values. It is at most a fourth too high.
func (h Histogram) Quantile(share float64) uint64 {
	want, seen := uint64(math.Ceil(float64(h.Count())*share)), uint64(0)
	for b, n := range h {
		if seen += n; n > 0 && seen >= want {
			return HistogramFloor(b+1) - 1
		}
	}
	return 0
}
