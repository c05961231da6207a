// SPDX-License-Identifier: Apache-2.0

package status

import (
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/sets"
)

// SetUsers lists the modules that refer to each set, sorted.
func (nd *Node) SetUsers() map[string][]string {
	out := map[string][]string{}
	for module, d := range nd.Modules {
		if d == nil {
			continue
		}
		for _, r := range d.Dataplane.Settings.Sets {
			out[r.Set] = append(out[r.Set], module)
		}
	}
	for set, modules := range out {
		slices.Sort(modules)
		out[set] = slices.Compact(modules)
	}
	return out
}

// Sets returns the inputs of the sets in the kernel.
func (nd *Node) Sets() sets.State {
	return sets.State{Desired: nd.Desired, Modules: nd.Modules, Services: nd.Services}
}

// RecordSet records the conditions of a set.
func (nd *Node) RecordSet(s v1.Set, users map[string][]string) []v1.Condition {
	ready := v1.Condition{Type: "Ready", Status: "True", Reason: "NotUsed"}
	if len(users[s.Metadata.Name]) > 0 {
		ready.Reason = "InUse"
	}
	if err := nd.SetProblem(s.Metadata.Name); err != nil {
		ready.Status, ready.Reason, ready.Message = "False", "SyncFailed", err.Error()
	}
	return nd.Record(v1.KindSet, s.Metadata, []v1.Condition{ready})
}
