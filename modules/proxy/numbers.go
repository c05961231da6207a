// SPDX-License-Identifier: Apache-2.0

package proxy

import "time"

// numbers deals out numbers below a limit. One that is given back rests, as blocks do.
type numbers struct {
	rest    time.Duration
	limit   uint32
	next    uint32 // all from here on have never been dealt out
	free    []uint32
	resting []restingBlock
}

// newNumbers begins with some taken already.
func newNumbers(first, limit uint32, rest time.Duration, taken map[uint32]bool) *numbers {
	n := &numbers{rest: rest, limit: limit, next: first}
	for t := range taken {
		n.next = max(n.next, t+1)
	}
	for i := first; i < n.next; i++ {
		if !taken[i] {
			n.free = append(n.free, i)
		}
	}
	return n
}

// take returns a number whose rest is over, or the next one that was never used. It returns false if all numbers are in
// use or resting.
func (n *numbers) take(now time.Time) (uint32, bool) {
	for len(n.resting) > 0 && !now.Before(n.resting[0].until) {
		n.free = append(n.free, n.resting[0].at)
		n.resting = n.resting[1:]
	}
	if len(n.free) > 0 {
		out := n.free[0]
		n.free = n.free[1:]
		return out, true
	}
	if n.next >= n.limit {
		return 0, false
	}
	n.next++
	return n.next - 1, true
}

func (n *numbers) release(i uint32, now time.Time) {
	n.resting = append(n.resting, restingBlock{i, now.Add(n.rest)})
}
