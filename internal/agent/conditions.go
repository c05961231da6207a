// SPDX-License-Identifier: Apache-2.0

package agent

import (
	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/status"
)

// Conditions are evaluated from the agent's state whenever they are read, and soon after that state has changed.
// The recorder holds the last ones, so that each has the time of its last transition.

// evaluate records the conditions of a resource whose state has changed.
func (a *Agent) evaluate(of status.Resource) {
	if of == status.Itself {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.now.RecordAgent()
		return
	}
	switch of.Kind {
	case v1.KindModule, v1.KindService: // without counters and programs, which views read of the kernel
		a.evaluateLocal(of)
	default:
		kind, err := resource.Find(of.Kind)
		if err != nil || a.viewsOf(kind)(of.Name) == nil {
			a.now.Recorder.Forget(of)
		}
	}
}

// evaluateLocal is for what only the agent knows.
func (a *Agent) evaluateLocal(of status.Resource) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m, ok := resource.Module.Get(a.now.Desired, of.Name); ok && of.Kind == v1.KindModule {
		a.now.RecordModule(m, a.now.Modules[of.Name], len(a.now.Instances(of.Name)))
	}
	if s, ok := resource.Service.Get(a.now.Desired, of.Name); ok && of.Kind == v1.KindService {
		a.now.RecordService(s, a.now.Services[of.Name])
	}
}

// markAll has all conditions evaluated that depend on chains and services. a.mu is held.
func (a *Agent) markAll() {
	all := []status.Resource{status.Itself}
	for _, kind := range []string{v1.KindModule, v1.KindService} {
		for name := range a.now.Desired[kind] {
			all = append(all, status.Resource{Kind: kind, Name: name})
		}
	}
	a.now.Recorder.Enqueue(all...)
}

// forgetConditions forgets those of resources that next has no more: one that is created again starts without. a.mu
// is held.
func (a *Agent) forgetConditions(next resource.Set) {
	for kind, all := range a.now.Desired {
		for name := range all {
			if _, stays := next[kind][name]; !stays {
				a.now.Recorder.Forget(status.Resource{Kind: kind, Name: name})
			}
		}
	}
}
