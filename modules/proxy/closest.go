// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"slices"
	"time"
)

// candidate is an instance from which the closest one is chosen.
type candidate struct {
	index    uint32
	distance uint32        // stated; 0: not stated
	rtt      time.Duration // of connecting to it; 0: not measured
}

const (
	// A rival takes over when it is closer by both: less is noise, and moving costs warm caches.
	rivalRatio = 0.75
	rivalGain  = 50 * time.Microsecond
	// One of so many new sessions goes to an instance whose measurement is missing or old.
	exploreShare = 32
	// A measurement is old after exploreAfter. An instance that does not answer is tried again after exploreFirst, then
	// after twice as long each time.
	exploreAfter = time.Minute
	exploreFirst = 2 * time.Second
	exploreFor   = time.Second
)

// closest ranks the instances of one virtual address, and remembers what it needs for that.
type closest struct {
	best   uint32 // index, 0: none yet
	probes map[uint32]*probe
}

// probe is what is known about measuring an instance.
type probe struct {
	rtt   time.Duration
	next  time.Time     // to be explored then
	pause time.Duration // until the next try if this one finds nothing
	until time.Time     // end of the try that is under way
}

// rank returns the run of slots for now. The smallest stated distance decides; among equals, or where none is stated,
// the round-trip time measured on connecting. Of those that are not measured yet all take turns until one is.
func (c *closest) rank(all []candidate, now time.Time) []uint32 {
	near := nearest(all)
	c.observe(near, now)
	best := c.choose(near)
	if best == 0 {
		c.best = 0
		return indices(near)
	}
	c.best = best
	explored, ok := c.explore(near, now)
	if !ok {
		return []uint32{best}
	}
	run := slices.Repeat([]uint32{best}, exploreShare)
	run[0] = explored
	return run
}

// nearest returns those of the smallest stated distance, or all if none is stated.
func nearest(all []candidate) []candidate {
	least := uint32(0)
	for _, c := range all {
		if c.distance != 0 && (least == 0 || c.distance < least) {
			least = c.distance
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(c candidate) bool { return c.distance != least })
}

func indices(all []candidate) []uint32 {
	out := make([]uint32, len(all))
	for i, c := range all {
		out[i] = c.index
	}
	return out
}

// observe takes note of new measurements, and forgets instances that are gone.
func (c *closest) observe(all []candidate, now time.Time) {
	before := c.probes
	c.probes = make(map[uint32]*probe, len(all))
	for _, a := range all {
		p := before[a.index]
		if p == nil {
			p = &probe{next: now, pause: exploreFirst}
		}
		if a.rtt != p.rtt {
			p.rtt, p.pause, p.next, p.until = a.rtt, exploreFirst, now.Add(exploreAfter), time.Time{}
		}
		c.probes[a.index] = p
	}
}

// choose returns the best measured one, or 0.
func (c *closest) choose(all []candidate) uint32 {
	var best, held candidate
	for _, a := range all {
		if a.rtt != 0 && (best.rtt == 0 || a.rtt < best.rtt) {
			best = a
		}
		if a.index == c.best {
			held = a
		}
	}
	clearly := float64(best.rtt) < rivalRatio*float64(held.rtt) && held.rtt-best.rtt > rivalGain
	if held.rtt != 0 && !clearly {
		return held.index
	}
	return best.index
}

// explore returns the instance that is to be measured now: the one whose turn came first.
func (c *closest) explore(all []candidate, now time.Time) (uint32, bool) {
	var first *probe
	index := uint32(0)
	for _, a := range all {
		p := c.probes[a.index]
		if a.index == c.best {
			continue
		}
		if now.Before(p.until) {
			return a.index, true
		}
		if !now.Before(p.next) && (first == nil || p.next.Before(first.next)) {
			first, index = p, a.index
		}
	}
	if first == nil {
		return 0, false
	}
	first.until, first.next = now.Add(exploreFor), now.Add(exploreFor+first.pause)
	first.pause = min(2*first.pause, exploreAfter)
	return index, true
}
