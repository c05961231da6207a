// SPDX-License-Identifier: Apache-2.0

package sdk_test

import (
	"slices"
	"testing"

	"github.com/kerb-edge/kerb/sdk"
)

// A value is in the bucket whose bounds enclose it, and a bucket is at most a fourth as wide as its lower bound.
func TestHistogramBuckets(t *testing.T) {
	for _, v := range []uint64{0, 1, 3, 4, 5, 7, 8, 100, 1000, 12345, 1 << 20, 1<<40 + 5} {
		h := make(sdk.Histogram, 160)
		h.Observe(v)
		b := slices.Index(h, 1)
		low, next := sdk.HistogramFloor(b), sdk.HistogramFloor(b+1)
		if v < low || v >= next || float64(next-low) > max(1, 0.25*float64(low)) {
			t.Errorf("%d is in bucket %d, from %d to %d", v, b, low, next)
		}
	}
	h := make(sdk.Histogram, 160)
	h.Observe(1 << 63)
	if h[159] != 1 {
		t.Errorf("the largest value is in bucket %d", slices.Index(h, 1))
	}
}

func TestHistogramQuantiles(t *testing.T) {
	h := make(sdk.Histogram, 160)
	if h.Quantile(0.5) != 0 || h.Quantile(1) != 0 {
		t.Error("quantiles of nothing")
	}
	for i := range uint64(1000) {
		h.Observe(i * 1000)
	}
	if h.Count() != 1000 {
		t.Errorf("%d values", h.Count())
	}
	for share, want := range map[float64]uint64{0.5: 499_000, 0.99: 989_000, 0.999: 998_000, 1: 999_000} {
		if got := h.Quantile(share); got < want || float64(got) > 1.25*float64(want) {
			t.Errorf("quantile %v: %d, want %d to a fourth", share, got, want)
		}
	}
}

func TestHistogramSince(t *testing.T) {
	h, before := sdk.Histogram{3, 2, 1, 5}, sdk.Histogram{1, 2, 0}
	if got, ok := h.Since(before); !ok || !slices.Equal(got, sdk.Histogram{2, 0, 1, 5}) {
		t.Errorf("%v, %v", got, ok)
	}
	for _, more := range []sdk.Histogram{{0, 3}, {0, 0, 0, 0, 1}} {
		if got, ok := h.Since(more); ok {
			t.Errorf("since %v there is %v", more, got)
		}
	}
	if !slices.Equal(h, sdk.Histogram{3, 2, 1, 5}) {
		t.Errorf("it became %v", h)
	}
}
