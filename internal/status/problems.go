// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/resource"
)

// Problems lists all problems: every condition that is False, of the agent, modules, services, sets, models and virtual
// services, and problems derived from counters and labels. Between two of them it calls pause, during which the state
// may change.
func (nd *Node) Problems(pause func()) []v1.NodeProblem {
	var out []v1.NodeProblem
	add := func(kind, name string, conditions []v1.Condition) {
		for _, c := range conditions {
			if c.Status == "False" {
				out = append(out, v1.NodeProblem{Kind: kind, Name: name, Type: c.Type, Reason: c.Reason, Message: c.Message,
					Since: c.Since})
			}
		}
	}
	for _, c := range nd.RecordAgent() {
		switch {
		case c.Type == "ControlPlanes": // also a condition of each module
		case c.Type == "StoreLost": // is True when it is wrong
			c.Status = "False"
			fallthrough
		default:
			add("Agent", "", []v1.Condition{c})
		}
	}
	for _, name := range nd.Desired.Names(resource.Module) {
		if m, ok := resource.Module.Get(nd.Desired, name); ok {
			add(v1.KindModule, name, nd.RecordModule(m, nd.Modules[name], nd.attached(name)))
		}
		pause()
	}
	for _, name := range nd.Desired.Names(resource.Service) {
		if s, ok := resource.Service.Get(nd.Desired, name); ok {
			add(v1.KindService, name, nd.RecordService(s, nd.Services[name]))
		}
		pause()
	}
	users := nd.SetUsers()
	for _, name := range nd.Desired.Names(resource.Set) {
		s, _ := resource.Set.Get(nd.Desired, name)
		add(v1.KindSet, name, nd.RecordSet(s, users))
	}
	for _, name := range nd.Desired.Names(resource.Model) {
		if s := nd.Model(name); s != nil {
			add(v1.KindModel, name, s.Conditions)
		}
	}
	for _, name := range nd.Virtual.Names() {
		if s, ok := nd.VirtualService(name, nd.Desired); ok {
			add(v1.KindVirtualService, name, s.Status.Conditions)
		}
	}
	return out
}

// missing names what a module selects and does not exist on the node; empty if everything exists.
func (nd *Node) missing(m v1.Module) string {
	var parts []string
	d := nd.Modules[m.Metadata.Name]
	if d == nil || d.Err != nil {
		return ""
	}
	if d.Resource.Spec.Attach.Services != "" && d.Resource.Spec.Attach.Services != "*" && !nd.selects(d) {
		parts = append(parts, fmt.Sprintf("its selector %q matches no service of this node", d.Resource.Spec.Attach.Services))
	}
	there := nd.Interfaces()
	for _, name := range d.Resource.Spec.Attach.Interfaces {
		if _, ok := there[name]; !ok && there != nil {
			parts = append(parts, "the node has no interface "+name)
		}
	}
	return strings.Join(parts, "; ")
}

func (nd *Node) selects(d *deploy.Module) bool {
	for _, s := range resource.Service.All(nd.Desired) {
		if d.Selector.Matches(s.Metadata.Labels) {
			return true
		}
	}
	return false
}

// ModuleWarnings returns warnings for the client of a change: selected objects that do not exist, and exceeded budgets.
func (nd *Node) ModuleWarnings(asked []v1.Module) (out []string) {
	for _, m := range asked {
		name := m.Metadata.Name
		if text := nd.missing(m); text != "" {
			out = append(out, "Module "+name+": "+text)
		}
		d := nd.Modules[name]
		if d == nil || d.Err != nil {
			continue
		}
		if e, over := d.Limits().Exceeded(nd.CostOf(d)); over {
			out = append(out, "Module "+name+" exceeds its budget: "+e.Text)
		}
	}
	return out
}

// cannotRun lists the modules that do not run, and the effect; empty if all run.
func (nd *Node) cannotRun() string {
	var failed []string
	for _, name := range slices.Sorted(maps.Keys(nd.Modules)) {
		if d := nd.Modules[name]; d.Err != nil {
			failed = append(failed, "module "+name+" cannot run, "+failureEffect(d))
		}
	}
	return strings.Join(failed, "; ")
}
