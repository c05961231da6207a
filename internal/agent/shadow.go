// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
)

// shadows tells of modules that miss packets, because a module that takes packets past the rest of the chain comes before
// them. By their rank such modules come last: only the operator's order brings them forward.
func (w world) shadows(points map[chain.Point]placement) map[string]string {
	out := map[string]string{}
	for _, p := range sortedPoints(points) {
		members := points[p].chain.Members
		for i, second := range members {
			for _, first := range members[:i] {
				if w.rankOf(first.Name) > w.rankOf(second.Name) {
					out[second.Name] = fmt.Sprintf("%[1]s runs before it on %[2]s and takes packets off the chain, so this module does not see them: set a lower order.priority",
						first.Name, cmp.Or(points[p].service, points[p].link.Name))
				}
			}
		}
	}
	return out
}

func (w world) rankOf(module string) int {
	if d := w.modules[module]; d != nil {
		return d.rank()
	}
	return 0
}

// warnings are for who asked for a change.
func (w world) warnings(points map[chain.Point]placement) (out []string) {
	shadows := w.shadows(points)
	for _, name := range slices.Sorted(maps.Keys(shadows)) {
		out = append(out, "Module "+name+": "+shadows[name])
	}
	for _, name := range slices.Sorted(maps.Keys(w.modules)) {
		if text := w.unread(w.modules[name]); text != "" {
			out = append(out, "Module "+name+": "+text)
		}
	}
	return out
}

// shadowConditions are there only for modules that miss packets.
func (a *Agent) shadowConditions(name string) []v1.Condition {
	text, shadowed := world{modules: a.modules}.shadows(a.points)[name]
	if !shadowed {
		return nil
	}
	return []v1.Condition{{Type: "SeesAllPackets", Status: "False", Reason: "Shadowed", Message: text}}
}
