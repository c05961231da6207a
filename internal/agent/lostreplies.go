// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/plan"
)

// lostReplies explains, by module, which replies of instances a module drops: see plan.Inputs.LostReplies.
func (a *Agent) lostReplies() map[string]string {
	in := plan.Inputs{Modules: map[string]*plan.Module{}}
	for name, d := range a.modules {
		in.Modules[name] = &d.Module
	}
	var virtual []v1.VirtualService
	for _, name := range a.virtual.Names() {
		view, _ := a.virtual.View(name)
		virtual = append(virtual, view)
	}
	return in.LostReplies(a.points, virtual)
}

func (a *Agent) replyWarnings() []string {
	return slices.Compact(slices.Sorted(maps.Values(a.lostReplies())))
}

// remoteConditions are there only for modules that make a service miss replies.
func (a *Agent) remoteConditions(name string) []v1.Condition {
	text, lost := a.lostReplies()[name]
	if !lost {
		return nil
	}
	return []v1.Condition{{Type: "RemoteInstances", Status: "False", Reason: "RepliesDropped", Message: text}}
}
