// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func members(n int) []member {
	out := make([]member, n)
	for i := range out {
		out[i] = member{index: uint32(i + 1), identity: mix(uint64(i)), weight: 1}
	}
	return out
}

func count(run []uint32) map[uint32]int {
	out := map[uint32]int{}
	for _, i := range run {
		out[i]++
	}
	return out
}

// Shares follow the weights within the bounds of the paper for a table of 100 slots per instance.
func TestMaglevShares(t *testing.T) {
	for _, n := range []int{2, 3, 10, 100, 600} {
		size := maglevSize(n, maglevShare)
		counts := count(maglev(members(n), size))
		least, most := int(size), 0
		for i := 1; i <= n; i++ {
			least, most = min(least, counts[uint32(i)]), max(most, counts[uint32(i)])
		}
		if most-least > 1 {
			t.Errorf("%d instances of weight 1 in %d slots have from %d to %d", n, size, least, most)
		}
	}
	m := members(4)
	m[0].weight, m[1].weight, m[2].weight = 8, 4, 2
	size := uint32(4093)
	counts := count(maglev(m, size))
	for _, one := range m {
		want := float64(size) * float64(one.weight) / 15
		if got := float64(counts[one.index]); got < 0.98*want-1 || got > 1.02*want+1 {
			t.Errorf("weight %d has %v slots, want about %.0f", one.weight, got, want)
		}
	}
}

// disruption returns the fraction of slots that changed although neither the old nor the new owner was added or
// removed.
func disruption(a, b []uint32, moved uint32) float64 {
	n := 0
	for i := range a {
		if a[i] != b[i] && a[i] != moved && b[i] != moved {
			n++
		}
	}
	return float64(n) / float64(len(a))
}

func TestMaglevDisruption(t *testing.T) {
	const limit = 0.04 // stated in docs/proxy.md
	for _, n := range []int{3, 10, 30, 150, 600} {
		size := maglevSize(n, maglevShare)
		if size != maglevSize(n-1, maglevShare) {
			t.Fatalf("tables of %d and %d instances differ in size", n, n-1)
		}
		m := members(n)
		whole, worst := maglev(m, size), 0.0
		for gone := range min(n, 20) {
			worst = max(worst, disruption(whole, maglev(slices.Delete(slices.Clone(m), gone, gone+1), size), m[gone].index))
		}
		t.Logf("%d instances, %d slots: %.2f%%", n, size, 100*worst)
		if worst > limit {
			t.Errorf("%d instances: one that leaves moves %.1f%% of the others' slots", n, 100*worst)
		}
	}
}

// All nodes compute the same table for any order of instances.
func TestMaglevDependsOnIdentitiesOnly(t *testing.T) {
	m := members(7)
	shuffled := slices.Clone(m)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(m), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	if !slices.Equal(maglev(m, 1021), maglev(shuffled, 1021)) {
		t.Error("the table depends on the order of instances")
	}
}

func TestMaglevSizesArePrimesThatFillBlocks(t *testing.T) {
	for _, n := range maglevSizes {
		for d := uint32(2); d*d <= n; d++ {
			if n%d == 0 {
				t.Errorf("%d is no prime", n)
			}
		}
		if block := uint32(1) << orderOf(n); float64(n) < 0.98*float64(block) {
			t.Errorf("%d wastes a block of %d", n, block)
		}
	}
}

func TestSequence(t *testing.T) {
	m := members(3)
	m[0].weight, m[1].weight, m[2].weight = 500, 100, 100
	if diff := cmp.Diff([]uint32{1, 1, 1, 2, 3, 1, 1}, sequence(m)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]uint32{1, 2, 3}, sequence(members(3))); diff != "" {
		t.Error(diff)
	}
}

// For all weights, turns are exact (or almost, if they had to be scaled), every instance is chosen, and turns of one
// instance are spread.
func TestSequencesAreExactAndSmooth(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		m := members(1 + r.IntN(40))
		for i := range m {
			m[i].weight = 1 + uint32(r.IntN(100))
		}
		run := sequence(m)
		scaled := scale(m)
		if len(run) > maxSequence {
			t.Fatalf("%d slots", len(run))
		}
		counts := count(run)
		for i := range m {
			if counts[m[i].index] != int(scaled[i].weight) || scaled[i].weight == 0 {
				t.Fatalf("weight %d: %d turns of %d", m[i].weight, counts[m[i].index], len(run))
			}
		}
		for _, one := range scaled {
			checkSmooth(t, run, one)
		}
	}
}

// checkSmooth checks that each part of the sequence has a proportional number of an instance's turns.
func checkSmooth(t *testing.T, run []uint32, m member) {
	t.Helper()
	got := 0
	for i, index := range run {
		if index == m.index {
			got++
		}
		if due := float64(m.weight) * float64(i+1) / float64(len(run)); float64(got) > due+2 || float64(got) < due-2 {
			t.Fatalf("after %d of %d turns weight %d has had %d, due were %.1f", i+1, len(run), m.weight, got, due)
		}
	}
}

func TestScaleKeepsProportions(t *testing.T) {
	m := members(2)
	m[0].weight, m[1].weight = 1_000_000, 1
	scaled := scale(m)
	if scaled[0].weight < maxSequence-2 || scaled[0].weight > maxSequence || scaled[1].weight != 1 {
		t.Error(scaled)
	}
	if all := sequence(members(3 * maxSequence)); len(all) != 3*maxSequence {
		t.Errorf("%d of %d instances have a turn", len(all), 3*maxSequence)
	}
}

func TestClosest(t *testing.T) {
	now := time.Unix(0, 0)
	rank := func(c *closest, all ...candidate) map[uint32]int { return count(c.rank(all, now)) }
	c := &closest{}
	if got := rank(c, candidate{1, 5, 0}, candidate{2, 3, 0}, candidate{3, 0, time.Microsecond}); !cmp.Equal(got,
		map[uint32]int{2: 1}) {
		t.Errorf("the smallest stated distance does not win: %v", got)
	}
	c = &closest{}
	if got := rank(c, candidate{1, 0, 0}, candidate{2, 0, 0}); !cmp.Equal(got, map[uint32]int{1: 1, 2: 1}) {
		t.Errorf("those not measured do not take turns: %v", got)
	}
	if got := rank(c, candidate{1, 0, time.Millisecond}, candidate{2, 0, 0}); !cmp.Equal(got,
		map[uint32]int{1: exploreShare - 1, 2: 1}) {
		t.Errorf("the measured one is not preferred, or the other one not explored: %v", got)
	}
	if got := rank(c, candidate{1, 0, time.Millisecond}, candidate{2, 0, 900 * time.Microsecond}); !cmp.Equal(got,
		map[uint32]int{1: 1}) {
		t.Errorf("a rival takes over by noise: %v", got)
	}
	if got := rank(c, candidate{1, 0, time.Millisecond}, candidate{2, 0, 500 * time.Microsecond}); !cmp.Equal(got,
		map[uint32]int{2: 1}) {
		t.Errorf("a clearly closer rival does not take over: %v", got)
	}
	now = now.Add(exploreAfter)
	if got := rank(c, candidate{1, 0, time.Millisecond}, candidate{2, 0, 500 * time.Microsecond}); !cmp.Equal(got,
		map[uint32]int{2: exploreShare - 1, 1: 1}) {
		t.Errorf("an old measurement is not taken again: %v", got)
	}
	if got := rank(c, candidate{1, 0, 90 * time.Microsecond}); !cmp.Equal(got, map[uint32]int{1: 1}) {
		t.Errorf("the best one has left, and none replaces it: %v", got)
	}
}

// An instance that never answers gets fewer and fewer connections.
func TestClosestGivesUpOnTheSilent(t *testing.T) {
	c, now, tries := &closest{}, time.Unix(0, 0), 0
	all := []candidate{{1, 0, time.Millisecond}, {2, 0, 0}}
	for range 600 {
		if run := c.rank(all, now); slices.Contains(run, 2) {
			tries++
		}
		now = now.Add(time.Second)
	}
	if tries < 8 || tries > 30 {
		t.Errorf("explored in %d of 600 seconds", tries)
	}
}

func BenchmarkMaglev(b *testing.B) {
	for _, n := range []int{10, 100, 600} {
		m, size := members(n), maglevSize(n, maglevShare)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				maglev(m, size)
			}
		})
	}
}
