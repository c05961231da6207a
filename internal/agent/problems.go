// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/kerbabi"
)

// problems lists what is wrong: every condition that is False, of the agent, modules, services and virtual services, and what
// counters and labels show.
func (a *Agent) problems() []v1.NodeProblem {
	var out []v1.NodeProblem
	add := func(kind, name string, conditions []v1.Condition) {
		for _, c := range conditions {
			if c.Status == "False" {
				out = append(out, v1.NodeProblem{Kind: kind, Name: name, Type: c.Type, Reason: c.Reason, Message: c.Message, Since: c.Since})
			}
		}
	}
	for _, c := range a.nodeConditions() {
		switch {
		case c.Type == "ControlPlanes": // a condition of each module, too
		case c.Type == "StoreLost": // is True when it is wrong
			c.Status = "False"
			fallthrough
		default:
			add("Agent", "", []v1.Condition{c})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(a.desired.Modules)) {
		m := a.moduleWithStatus(name)
		add(v1.KindModule, name, m.Status.Conditions)
		add(v1.KindModule, name, a.moduleProblems(m))
	}
	for _, name := range slices.Sorted(maps.Keys(a.desired.Services)) {
		add(v1.KindService, name, append(a.movedConditions(a.states[name]), a.serviceReady(a.states[name])))
	}
	for _, name := range a.virtual.Names() {
		if s, ok := a.virtual.View(name); ok && s.Status != nil {
			add(v1.KindVirtualService, name, s.Status.Conditions)
		}
	}
	return out
}

// moduleProblems are those that no condition of a module shows.
func (a *Agent) moduleProblems(m v1.Module) (out []v1.Condition) {
	since := a.metrics.since()
	for _, d := range m.Status.Drops {
		if d.Reason == kerbabi.DropBadVerdict.String() {
			out = append(out, v1.Condition{Type: "ValidVerdicts", Status: "False", Reason: "BadVerdict", Since: since,
				Message: fmt.Sprintf("it returned no valid verdict for %d packets, which were treated by its failurePolicy", d.Packets)})
		}
	}
	if text := a.missing(m); text != "" && len(m.Status.Instances) > 0 { // else it is not Ready
		out = append(out, v1.Condition{Type: "AttachPoints", Status: "False", Reason: "NotThere", Message: text, Since: since})
	}
	return out
}

// missing names what a module selects and the node does not have; empty if there is all.
func (a *Agent) missing(m v1.Module) string {
	var parts []string
	d := a.modules[m.Metadata.Name]
	if d == nil || d.err != nil {
		return ""
	}
	if d.resource.Spec.Attach.Services != "" && d.resource.Spec.Attach.Services != "*" && !a.selects(d) {
		parts = append(parts, fmt.Sprintf("its selector %q matches no service of this node", d.resource.Spec.Attach.Services))
	}
	there := a.watcher.HostInterfaces()
	for _, name := range d.resource.Spec.Attach.Interfaces {
		if _, ok := there[name]; !ok && there != nil {
			parts = append(parts, "the node has no interface "+name)
		}
	}
	return strings.Join(parts, "; ")
}

func (a *Agent) selects(d *deployment) bool {
	for _, s := range a.desired.Services {
		if d.selector.Matches(s.Metadata.Labels) {
			return true
		}
	}
	return false
}

// moduleWarnings are for who has applied modules: what they select and is not there, and budgets that they exceed.
func (a *Agent) moduleWarnings(asked []v1.Module) (out []string) {
	for _, m := range asked {
		name := m.Metadata.Name
		if text := a.missing(m); text != "" {
			out = append(out, "Module "+name+": "+text)
		}
		d := a.modules[name]
		if d == nil || d.err != nil {
			continue
		}
		if cost, ok := a.costs.get(d); ok {
			if e, over := d.exceeded(cost); over {
				out = append(out, "Module "+name+" exceeds its budget: "+e.text)
			}
		}
	}
	return out
}
