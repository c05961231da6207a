// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/plan"
)

// NoteOrder records the chains whose order a reconciliation has changed, as long as they exist. It returns the new
// ones.
func (nd *Node) NoteOrder(r apply.Result, points plan.Placements) map[chain.Point]string {
	changed := reordered(r, points)
	maps.DeleteFunc(nd.Reordered, func(p chain.Point, _ string) bool { return len(points[p].Chain.Members) == 0 })
	if nd.Reordered == nil {
		nd.Reordered = map[chain.Point]string{}
	}
	maps.Copy(nd.Reordered, changed)
	return changed
}

// reordered describes the chains whose modules the executed steps have put in another order.
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

// sameOrder reports whether two chains have different modules, or the same ones in the same order. A module that cannot
// run has a position only if its package can be read.
func sameOrder(a, b chain.Spec) bool {
	was, is := memberNames(a), memberNames(b)
	return slices.Equal(was, is) || standsIn(a) || standsIn(b) ||
		!slices.Equal(slices.Sorted(slices.Values(was)), slices.Sorted(slices.Values(is)))
}

// standsIn reports whether the member replaces a module that cannot run.
func standsIn(spec chain.Spec) bool {
	return slices.ContainsFunc(spec.Members, func(m chain.Member) bool { return m.ID == dataplane.UnavailableID })
}

func memberNames(spec chain.Spec) (out []string) {
	for _, m := range spec.Members {
		out = append(out, m.Name)
	}
	return out
}

// maxReordered is the number of chains that the condition names.
const maxReordered = 10

// orderConditions returns a condition only after a start of the agent that has changed the order of modules, through an
// upgrade of the agent or of a package. Changes by the operator are not reconciliations.
func (nd *Node) orderConditions() []v1.Condition {
	if len(nd.Reordered) == 0 {
		return nil
	}
	var named []string
	for _, p := range chain.Sorted(nd.Reordered) {
		named = append(named, nd.Reordered[p])
	}
	list := strings.Join(named[:min(len(named), maxReordered)], "; ")
	if more := len(named) - maxReordered; more > 0 {
		list += fmt.Sprintf("; and %d more", more)
	}
	return []v1.Condition{{Type: "ChainOrderKept", Status: "False", Reason: "OrderChanged",
		Message: "since the start of the agent, chains run their modules in another order: " + list +
			". If it is not as intended, set order.priority or order.after of the modules; " +
			"a restart of the agent clears this condition"}}
}
