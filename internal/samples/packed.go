// SPDX-License-Identifier: Apache-2.0

package samples

import (
	"encoding/binary"
	"slices"

	"github.com/kerb-edge/kerb/sdk"
)

// packed is a histogram without its empty buckets, which are most: for each other one, the number of empty buckets
// before it and its count, as varints. A histogram of 80 buckets takes 640 bytes, and packed rarely more than 100.
type packed []byte

func pack(h sdk.Histogram) packed {
	var buffer [1024]byte
	out, next := packed(buffer[:0]), 0
	for bucket, count := range h {
		if count > 0 {
			out = binary.AppendUvarint(binary.AppendUvarint(out, uint64(bucket-next)), count)
			next = bucket + 1
		}
	}
	return slices.Clone(out) // which is as long as it needs to be
}

// addTo adds the counts to a histogram, and returns it: longer, if it has too few buckets.
func (p packed) addTo(h sdk.Histogram) sdk.Histogram {
	for bucket := 0; len(p) > 0; bucket++ {
		empty, n := binary.Uvarint(p)
		count, m := binary.Uvarint(p[n:])
		p = p[n+m:]
		for bucket += int(empty); len(h) <= bucket; {
			h = append(h, 0)
		}
		h[bucket] += count
	}
	return h
}
