// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"slices"
	"sort"
)

// member is an instance as the policies see it.
type member struct {
	index    uint32 // in the map of instances
	identity uint64 // hash of its name: the same on every node and at all times
	weight   uint32 // at least 1
}

// maglevSizes are the tables there are: the largest primes below powers of two, so that a table fills the block of
// slots that it lies in. They are far apart, because a table of another size has nothing in common with the one before.
var maglevSizes = []uint32{251, 1021, 4093, 16381, 65521}

// Slots per instance. With maglevShare the shares of instances differ by about 1% (Eisenbud et al., Maglev, NSDI 2016,
// section 5.3). maglevScarce is for when slots run out, and for addresses with affinity: there the table is asked
// for clients that are not remembered only.
const (
	maglevShare  = 100
	maglevScarce = 10
)

// maglevSize is the size of the table for so many instances.
func maglevSize(instances, share int) uint32 {
	for _, size := range maglevSizes {
		if int(size) >= share*max(10, instances) {
			return size
		}
	}
	return maglevSizes[len(maglevSizes)-1]
}

// maglev fills a table: each instance in turn takes the next free slot of its own permutation of the slots, heavier
// ones more often. The order of members does not matter, so that all nodes come to the same table.
func maglev(members []member, size uint32) []uint32 {
	members = slices.Clone(members)
	sort.Slice(members, func(i, j int) bool { return members[i].identity < members[j].identity })
	turns := newTurns(members, size)
	table, taken := make([]uint32, size), make([]bool, size)
	for left, round := size, uint64(1); ; round++ {
		for i := range turns {
			t := &turns[i]
			if round*uint64(t.weight) < t.due {
				continue
			}
			t.due += turns[0].heaviest
			for taken[t.at] {
				if t.at += t.skip; t.at >= size {
					t.at -= size
				}
			}
			table[t.at], taken[t.at] = t.index, true
			if left--; left == 0 {
				return table
			}
		}
	}
}

// lastTable is the table made last: the addresses of a service mostly share one.
type lastTable struct {
	members []member
	slots   []uint32
}

func (l *lastTable) of(members []member, size uint32) []uint32 {
	if len(l.slots) != int(size) || !slices.Equal(members, l.members) {
		l.members, l.slots = members, maglev(members, size)
	}
	return l.slots
}

// turn is where an instance is in its permutation.
type turn struct {
	member
	at, skip uint32
	due      uint64 // weight that the rounds must have summed up to before it is its turn
	heaviest uint64 // weight, of all members
}

func newTurns(members []member, size uint32) []turn {
	heaviest := uint64(slices.MaxFunc(members, func(a, b member) int { return cmp.Compare(a.weight, b.weight) }).weight)
	out := make([]turn, len(members))
	for i, m := range members {
		out[i] = turn{member: m, due: heaviest, heaviest: heaviest,
			at: uint32(mix(m.identity) % uint64(size)), skip: uint32(mix(m.identity+1)%uint64(size-1)) + 1}
	}
	return out
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
