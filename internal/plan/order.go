// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"
	"sort"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// CycleError names modules whose before and after form a cycle.
type CycleError struct{ Modules []string }

func (e *CycleError) Error() string {
	return "order.before and order.after contradict each other among the modules " + strings.Join(e.Modules, ", ")
}

// Order sorts modules by their distance from the service, the nearest first: by before and after, then by priority,
// then by their packages' ranks, then by name. Names that are not deployed are ignored, so that an order can be set
// before the other module is deployed.
func Order(modules []v1.Module, rank func(module string) int) ([]v1.Module, error) {
	waiting := slices.Clone(modules)
	sort.Slice(waiting, func(i, j int) bool {
		a, b := &waiting[i], &waiting[j]
		left, right := a.Metadata.Name, b.Metadata.Name
		return cmp.Or(cmp.Compare(a.Spec.Order.Priority, b.Spec.Order.Priority), cmp.Compare(rank(left), rank(right)),
			cmp.Compare(left, right)) < 0
	})
	follows := predecessors(modules)
	var sorted []v1.Module
	for len(waiting) > 0 {
		i := slices.IndexFunc(waiting, func(m v1.Module) bool { return len(follows[m.Metadata.Name]) == 0 })
		if i < 0 {
			return nil, &CycleError{Modules: moduleNames(waiting)}
		}
		next := waiting[i]
		waiting = slices.Delete(waiting, i, i+1)
		sorted = append(sorted, next)
		for _, before := range follows {
			delete(before, next.Metadata.Name)
		}
	}
	return sorted, nil
}

// predecessors returns, for each module, the modules that must precede it.
func predecessors(modules []v1.Module) map[string]map[string]bool {
	out := map[string]map[string]bool{}
	for _, m := range modules {
		out[m.Metadata.Name] = map[string]bool{}
	}
	link := func(first, second string) {
		if out[first] != nil && out[second] != nil {
			out[second][first] = true
		}
	}
	for _, m := range modules {
		for _, other := range m.Spec.Order.Before {
			link(m.Metadata.Name, other)
		}
		for _, other := range m.Spec.Order.After {
			link(other, m.Metadata.Name)
		}
	}
	return out
}

func moduleNames(modules []v1.Module) []string {
	var out []string
	for _, m := range modules {
		out = append(out, m.Metadata.Name)
	}
	return out
}
