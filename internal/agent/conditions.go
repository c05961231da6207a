// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/internal/status"
)

// Conditions are evaluated from the agent's state whenever they are read, and soon after that state has changed.
// The recorder holds the last ones, so that each has the time of its last transition.

// agentItself is what the conditions of the node status belong to.
var agentItself = status.Resource{Kind: "Agent"}

// record gives the present conditions of a resource their transition times and the generation that they are about.
func (a *Agent) record(kind string, meta v1.ObjectMeta, now []v1.Condition) []v1.Condition {
	return a.recorder.Record(status.Resource{Kind: kind, Name: meta.Name}, meta.Generation, now)
}

func (a *Agent) recordNode() []v1.Condition {
	return a.recorder.Record(agentItself, 0, a.nodeConditions())
}

func (a *Agent) recordService(s v1.Service, state service.State) []v1.Condition {
	now := append([]v1.Condition{a.serviceReady(state)}, a.movedConditions(state)...)
	return a.record(v1.KindService, s.Metadata, now)
}

func (a *Agent) recordModule(m v1.Module, d *deploy.Module, instances int) []v1.Condition {
	return a.record(v1.KindModule, m.Metadata, a.moduleConditions(m, d, instances))
}

func (a *Agent) moduleConditions(m v1.Module, d *deploy.Module, instances int) []v1.Condition {
	name, missing := m.Metadata.Name, a.missing(m)
	out := []v1.Condition{a.moduleReady(d, instances, missing)}
	if d == nil {
		return out
	}
	if d.Plane != nil {
		out = append(out, controlCondition(d.Plane.State()))
		out = append(out, a.extraConditions(d)...)
	}
	if d.Sockets {
		out = append(out, a.placedCondition(d))
	}
	out = append(out, a.shadowConditions(name)...)
	out = append(out, a.linkConditions(d)...)
	out = append(out, a.remoteConditions(name)...)
	if d.Pkg != nil && d.Pkg.Replies {
		out = append(out, a.repliesCondition(name))
	}
	if d.Err == nil {
		out = append(out, d.Limits().Conditions(a.costOf(d))...)
	}
	out = append(out, a.verdictConditions(name)...)
	if missing != "" && instances > 0 { // else it is not Ready
		out = append(out, v1.Condition{Type: "AttachPoints", Status: "False", Reason: "NotFound", Message: missing})
	}
	return out
}

// shadowConditions are there only for modules that miss packets.
func (a *Agent) shadowConditions(name string) []v1.Condition {
	text, shadowed := plan.Shadowed(a.points, a.rankOf)[name]
	if !shadowed {
		return nil
	}
	return []v1.Condition{{Type: "SeesAllPackets", Status: "False", Reason: "Shadowed", Message: text}}
}

func (a *Agent) rankOf(module string, service bool) int {
	if d := a.modules[module]; d != nil && d.Rank != nil {
		return d.Rank(service)
	}
	return chain.DefaultRank
}

// linkConditions are there only for modules that name an interface which they cannot read.
func (a *Agent) linkConditions(d *deploy.Module) []v1.Condition {
	text := d.Unreadable(a.watcher.HostInterfaces())
	if text == "" {
		return nil
	}
	return []v1.Condition{{Type: "LinkTypeSupported", Status: "False", Reason: "LinkTypeMismatch", Message: text}}
}

// verdictConditions are there only for modules that have returned invalid verdicts.
func (a *Agent) verdictConditions(name string) []v1.Condition {
	l := a.live[name]
	if l == nil {
		return nil
	}
	counts, err := dataplane.Drops(l.maps)
	if err != nil || counts[kerbabi.DropBadVerdict] == 0 {
		return nil
	}
	text := fmt.Sprintf("it returned no valid verdict for %d packets, which were treated by its failurePolicy",
		counts[kerbabi.DropBadVerdict])
	return []v1.Condition{{Type: "ValidVerdicts", Status: "False", Reason: "InvalidVerdict", Message: text}}
}

// evaluate records the conditions of a resource whose state has changed.
func (a *Agent) evaluate(of status.Resource) {
	if of == agentItself {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.recordNode()
		return
	}
	switch of.Kind {
	case v1.KindModule, v1.KindService: // without counters and programs, which views read of the kernel
		a.evaluateLocal(of)
	default:
		kind, err := resource.Find(of.Kind)
		if err != nil || a.viewsOf(kind)(of.Name) == nil {
			a.recorder.Forget(of)
		}
	}
}

// evaluateLocal is for what only the agent knows.
func (a *Agent) evaluateLocal(of status.Resource) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m, ok := resource.Module.Get(a.desired, of.Name); ok && of.Kind == v1.KindModule {
		a.recordModule(m, a.modules[of.Name], len(a.moduleInstances(of.Name)))
	}
	if s, ok := resource.Service.Get(a.desired, of.Name); ok && of.Kind == v1.KindService {
		a.recordService(s, a.states[of.Name])
	}
}

// markAll has all conditions evaluated that depend on chains and services. a.mu is held.
func (a *Agent) markAll() {
	all := []status.Resource{agentItself}
	for _, kind := range []string{v1.KindModule, v1.KindService} {
		for name := range a.desired[kind] {
			all = append(all, status.Resource{Kind: kind, Name: name})
		}
	}
	a.recorder.Enqueue(all...)
}

// forgetConditions forgets those of resources that next has no more: one that is created again starts without. a.mu
// is held.
func (a *Agent) forgetConditions(next resource.Set) {
	for kind, all := range a.desired {
		for name := range all {
			if _, stays := next[kind][name]; !stays {
				a.recorder.Forget(status.Resource{Kind: kind, Name: name})
			}
		}
	}
}
