// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"slices"
	"sort"
)

// maxSequence is how long the sequence of weights may be; greater sums are scaled down to it.
const maxSequence = 4096

// sequence is the order in which instances take turns: in one pass each as often as its weight, evenly spread (as
// stride scheduling does it, Waldspurger 1995: the k-th turn of a weight w is due at (k + 1/2) / w of the pass).
func sequence(members []member) []uint32 {
	type due struct {
		turn, weight uint64 // due at turn / weight, in half passes
		index        uint32
	}
	var all []due
	for _, m := range scale(members) {
		for k := range uint64(m.weight) {
			all = append(all, due{2*k + 1, uint64(m.weight), m.index})
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].turn*all[j].weight < all[j].turn*all[i].weight })
	out := make([]uint32, len(all))
	for i, d := range all {
		out[i] = d.index
	}
	return out
}

// scale divides weights by what they have in common, and further if their sum is too great; each keeps at least 1.
func scale(members []member) []member {
	members = slices.Clone(members)
	common, sum := uint64(0), uint64(0)
	for _, m := range members {
		common, sum = gcd(uint64(m.weight), common), sum+uint64(m.weight)
	}
	limit := max(maxSequence, uint64(len(members)))
	for i := range members {
		w := uint64(members[i].weight)
		if sum/common <= limit {
			w /= common
		} else {
			w = max(1, w*limit/sum)
		}
		members[i].weight = uint32(w)
	}
	return members
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
