// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/resource"
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
	for _, c := range a.recordNode() {
		switch {
		case c.Type == "ControlPlanes": // a condition of each module, too
		case c.Type == "StoreLost": // is True when it is wrong
			c.Status = "False"
			fallthrough
		default:
			add("Agent", "", []v1.Condition{c})
		}
	}
	for _, name := range a.desired.Names(resource.Module) {
		m, _ := resource.Module.Get(a.desired, name)
		add(v1.KindModule, name, a.recordModule(m, a.modules[name], len(a.moduleInstances(name))))
	}
	for _, name := range a.desired.Names(resource.Service) {
		s, _ := resource.Service.Get(a.desired, name)
		add(v1.KindService, name, a.recordService(s, a.states[name]))
	}
	for _, name := range a.virtual.Names() {
		if s, ok := a.virtualView(name, a.desired); ok {
			add(v1.KindVirtualService, name, s.Status.Conditions)
		}
	}
	return out
}

// missing names what a module selects and the node does not have; empty if there is all.
func (a *Agent) missing(m v1.Module) string {
	var parts []string
	d := a.modules[m.Metadata.Name]
	if d == nil || d.Err != nil {
		return ""
	}
	if d.Resource.Spec.Attach.Services != "" && d.Resource.Spec.Attach.Services != "*" && !a.selects(d) {
		parts = append(parts, fmt.Sprintf("its selector %q matches no service of this node", d.Resource.Spec.Attach.Services))
	}
	there := a.watcher.HostInterfaces()
	for _, name := range d.Resource.Spec.Attach.Interfaces {
		if _, ok := there[name]; !ok && there != nil {
			parts = append(parts, "the node has no interface "+name)
		}
	}
	return strings.Join(parts, "; ")
}

func (a *Agent) selects(d *deploy.Module) bool {
	for _, s := range resource.Service.All(a.desired) {
		if d.Selector.Matches(s.Metadata.Labels) {
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
		if d == nil || d.Err != nil {
			continue
		}
		cost, _ := a.costOf(d)
		if e, over := d.Limits().Exceeded(cost); over {
			out = append(out, "Module "+name+" exceeds its budget: "+e.Text)
		}
	}
	return out
}
