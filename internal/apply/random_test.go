// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/apply/fake"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/seed"
)

const interfaces = 4

// Whatever happened before, a reconciliation gets to the desired state, and the next plan is empty.
func TestAnyStateBecomesTheDesiredOne(t *testing.T) {
	random := seed.Rand(t)
	k := fake.New()
	for round := range 2000 {
		disturb(random, k)
		want := randomDesired(random, k)
		attempt(t, random, k, want)
		k.FailAt, k.KillAt = 0, 0
		k.Restart()
		r, err := converge(k, want, lenient())
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		checkRuns(t, k, want, r.Busy)
		checkSettled(t, k, want, r.Busy)
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
	}
}

// disturb has interfaces come and go, and other programs take and leave hooks.
func disturb(random *rand.Rand, k *fake.Kernel) {
	for i := 1; i <= interfaces; i++ {
		switch random.IntN(4) {
		case 0:
			k.Vanish(i)
		case 1:
			k.Vanish(i)
			k.Interfaces[i] = true // the index is used again
		default:
			k.Interfaces[i] = true
		}
	}
	clear(k.Foreign)
	if random.IntN(3) == 0 {
		k.Foreign[chain.Point{Ifindex: 1 + random.IntN(interfaces), Side: chain.OnXDP}] = true
	}
}

var sides = []chain.Side{chain.OnXDP, chain.OnTCIngress, chain.OnTCEgress}

// randomDesired has chains of up to three modules on the interfaces that exist.
func randomDesired(random *rand.Rand, k *fake.Kernel) plan.Desired {
	d := plan.Desired{MapSets: map[string]string{}, Values: map[string]string{}, Points: map[chain.Point]chain.Spec{}}
	for _, name := range []string{"a", "b", "c"} {
		if random.IntN(4) > 0 {
			d.MapSets[name] = fmt.Sprint(name, random.IntN(3))
			if name != "a" {
				d.Values[name] = fmt.Sprint("values", random.IntN(3))
			}
		}
	}
	for _, i := range slices.Sorted(maps.Keys(k.Interfaces)) {
		for _, side := range sides {
			var members []string
			for _, name := range slices.Sorted(maps.Keys(d.MapSets)) {
				if random.IntN(2) == 0 {
					members = append(members, d.MapSets[name])
				}
			}
			if len(members) > 0 {
				d.Points[chain.Point{Ifindex: i, Side: side}] = chainOf(side, members...)
			}
		}
	}
	return d
}

// attempt is a change that may fail or be killed at any call. If it fails and the agent lives on, it has no effect.
func attempt(t *testing.T, random *rand.Rand, k *fake.Kernel, want plan.Desired) {
	t.Helper()
	at := k.Calls + 1 + random.IntN(30)
	kill := random.IntN(2) == 0
	if kill {
		k.KillAt = at
	} else {
		k.FailAt = at
	}
	was := observe(t, k)
	_, err := converge(k, want, strict())
	undoFailed := errors.Is(err, chain.ErrBusy) && errors.Is(err, fake.ErrInjected)
	if err == nil || kill || undoFailed {
		return
	}
	if diff := cmp.Diff(withoutVanished(was), withoutVanished(observe(t, k))); diff != "" {
		t.Errorf("before (-), after %v (+):\n%s", err, diff)
	}
}

// withoutVanished leaves out points without an interface: an attempt may remove those, and cannot restore them.
func withoutVanished(s chain.State) chain.State {
	var points []chain.Attached
	for _, p := range s.Points {
		if p.Program != 0 {
			points = append(points, p)
		}
	}
	s.Points = points
	return s
}
