// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"math/bits"
	"slices"
	"time"
)

// blocks deals out runs of an array in blocks of powers of two (Knowlton 1965, "buddies"). A run that is given back
// rests for a while before it is dealt out again: a packet that has just read where it lies may still be reading it.
type blocks struct {
	rest    time.Duration
	free    [33]map[uint32]bool // by binary logarithm of their size: where they begin
	taken   map[uint32]int      // beginning to logarithm of the size
	resting []restingBlock      // first come first
	used    uint32              // elements in taken and resting blocks
	rested  uint32              // those of them in resting blocks
}

type restingBlock struct {
	at    uint32
	until time.Time
}

// newBlocks returns an allocator of size slots. Free blocks are powers of two, aligned to their size, as in a buddy
// allocator; released blocks rest for rest before they are given out again.
func newBlocks(size uint32, rest time.Duration) *blocks {
	b := &blocks{rest: rest, taken: map[uint32]int{}}
	for order := range b.free {
		b.free[order] = map[uint32]bool{}
	}
	for at := uint32(0); at < size; {
		order := bits.Len32(size-at) - 1
		if at != 0 {
			order = min(order, bits.TrailingZeros32(at))
		}
		b.free[order][at] = true
		at += 1 << order
	}
	return b
}

// has reports whether take would find a place for a run of n elements.
func (b *blocks) has(n uint32, now time.Time) bool {
	b.wake(now)
	return slices.ContainsFunc(b.free[orderOf(n):], func(places map[uint32]bool) bool { return len(places) > 0 })
}

// take returns where a run of n elements may lie.
func (b *blocks) take(n uint32, now time.Time) (at uint32, ok bool) {
	b.wake(now)
	order := orderOf(n)
	for from := order; from < len(b.free); from++ {
		for at := range b.free[from] {
			b.split(at, from, at, order)
			return at, true
		}
	}
	return 0, false
}

// adopt takes the run at a known place, as its owner of before a restart has left it.
func (b *blocks) adopt(at, n uint32) bool {
	order := orderOf(n)
	if n == 0 || at&(1<<order-1) != 0 {
		return false
	}
	for from := order; from < len(b.free); from++ {
		if whole := at &^ (1<<from - 1); b.free[from][whole] {
			b.split(whole, from, at, order)
			return true
		}
	}
	return false
}

// split divides a free block until the one at the wanted place is left, and takes it.
func (b *blocks) split(whole uint32, from int, at uint32, order int) {
	delete(b.free[from], whole)
	for from > order {
		from--
		half := uint32(1) << from
		if at&half != 0 {
			b.free[from][whole] = true
			whole += half
		} else {
			b.free[from][whole+half] = true
		}
	}
	b.taken[at] = order
	b.used += 1 << order
}

// release gives a run back.
func (b *blocks) release(at uint32, now time.Time) {
	if order, ok := b.taken[at]; ok {
		b.resting = append(b.resting, restingBlock{at, now.Add(b.rest)})
		b.rested += 1 << order
	}
}

// wake makes free what has rested.
func (b *blocks) wake(now time.Time) {
	for len(b.resting) > 0 && !now.Before(b.resting[0].until) {
		at := b.resting[0].at
		b.resting = b.resting[1:]
		order := b.taken[at]
		delete(b.taken, at)
		b.used, b.rested = b.used-1<<order, b.rested-1<<order
		b.join(at, order)
	}
}

// join frees a block, together with its neighbour if that is free as well.
func (b *blocks) join(at uint32, order int) {
	for buddy := at ^ 1<<order; b.free[order][buddy]; buddy = at ^ 1<<order {
		delete(b.free[order], buddy)
		at &= buddy
		order++
	}
	b.free[order][at] = true
}

func orderOf(n uint32) int { return bits.Len32(max(n, 1) - 1) }
