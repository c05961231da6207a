// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"sync"
	"testing"

	"github.com/kerb-edge/kerb/internal/chain"
)

// Different points are attached, replaced and detached at once.
func TestPointsAtOnce(t *testing.T) {
	for name, noTCX := range map[string]bool{"tcx": false, "clsact": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{NoTCX: noTCX})
			var points []chain.Point
			for _, ifindex := range []int{w.a.OuterIndex(), w.b.OuterIndex()} {
				for _, side := range []chain.Side{chain.OnTCIngress, chain.OnTCEgress} {
					points = append(points, chain.Point{Ifindex: ifindex, Side: side})
				}
			}
			first, second := map[chain.Side]chain.Spec{}, map[chain.Side]chain.Spec{}
			for _, p := range points { // both chains of each side, once
				first[p.Side] = w.deploy(t, p, chain.Egress, testModule(t, "pass", "one", nil))
				second[p.Side] = w.deploy(t, p, chain.Egress, testModule(t, "pass", "two", nil))
			}
			at := func(what string, want map[chain.Side]chain.Spec, change func(chain.Point) error) {
				t.Helper()
				errs := make([]error, len(points))
				var all sync.WaitGroup
				for i, p := range points {
					all.Go(func() { errs[i] = change(p) })
				}
				all.Wait()
				state, err := w.Observe()
				if err := errors.Join(append(errs, err)...); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				runs := map[chain.Point]bool{}
				for _, a := range state.Points {
					for _, c := range state.Chains {
						runs[a.Point] = runs[a.Point] || c.ID == want[a.Point.Side].ID() && c.Program == a.Program
					}
				}
				for _, p := range points {
					if runs[p] != (want != nil) {
						t.Errorf("%s: %s runs its chain: %v", what, p, runs[p])
					}
				}
			}
			detach := func(p chain.Point) error { return w.Detach(p) }
			at("detached", nil, detach)
			at("attached", first, func(p chain.Point) error { return w.Attach(p, first[p.Side]) })
			at("replaced", second, func(p chain.Point) error { return w.Attach(p, second[p.Side]) })
			at("detached again", nil, detach)
		})
	}
}
