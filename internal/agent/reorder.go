// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/plan"
)

// noteOrder keeps which chains a reconciliation has given another order, as long as they are there.
func (a *Agent) noteOrder(r apply.Result, points plan.Placements) {
	changed := reordered(r, points)
	for _, text := range changed {
		a.log.Warn("a chain runs its modules in another order", "chain", text)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.now.Reordered, func(p chain.Point, _ string) bool { return len(points[p].Chain.Members) == 0 })
	if a.now.Reordered == nil {
		a.now.Reordered = map[chain.Point]string{}
	}
	maps.Copy(a.now.Reordered, changed)
}

// reordered describes the chains to which the steps that were taken give the modules that they have in another order.
func reordered(r apply.Result, points plan.Placements) map[chain.Point]string {
	out := map[chain.Point]string{}
	for _, s := range r.Steps {
		if s.Action != plan.Replace || r.Busy[s.Point] != nil || slices.Contains(r.Gone, s.Point) ||
			sameOrder(s.Old.Spec, s.Chain) {
			continue
		}
		at := points[s.Point]
		out[s.Point] = fmt.Sprintf("%s %s: %s (before: %s)", cmp.Or(at.Service, at.Link.Name), s.Chain.Direction,
			strings.Join(memberNames(s.Chain), ", "), strings.Join(memberNames(s.Old.Spec), ", "))
	}
	return out
}

// sameOrder reports whether two chains have other modules, or the same ones in the same order. One that cannot run has
// its place only where its package can be read.
func sameOrder(a, b chain.Spec) bool {
	was, is := memberNames(a), memberNames(b)
	return slices.Equal(was, is) || standsIn(a) || standsIn(b) ||
		!slices.Equal(slices.Sorted(slices.Values(was)), slices.Sorted(slices.Values(is)))
}

// standsIn reports whether a module of a chain cannot run.
func standsIn(spec chain.Spec) bool {
	return slices.ContainsFunc(spec.Members, func(m chain.Member) bool { return m.ID == dataplane.UnavailableID })
}

func memberNames(spec chain.Spec) (out []string) {
	for _, m := range spec.Members {
		out = append(out, m.Name)
	}
	return out
}
