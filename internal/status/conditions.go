// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/observe"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/service"
)

// Record sets the transition times, and the observed generation, of the current conditions of a resource.
func (nd *Node) Record(kind string, meta v1.ObjectMeta, now []v1.Condition) []v1.Condition {
	return nd.Recorder.Record(Resource{Kind: kind, Name: meta.Name}, meta.Generation, now)
}

// RecordService records the conditions of a service.
func (nd *Node) RecordService(s v1.Service, state service.State) []v1.Condition {
	now := append([]v1.Condition{serviceReady(state)}, movedConditions(state)...)
	return nd.Record(v1.KindService, s.Metadata, now)
}

// RecordModule records the conditions of a module.
func (nd *Node) RecordModule(m v1.Module, d *deploy.Module, attachments int) []v1.Condition {
	return nd.Record(v1.KindModule, m.Metadata, nd.moduleConditions(m, d, attachments))
}

// moduleConditions returns the conditions of a module. Ready is always there; the others are where they can differ: a
// package without a control plane has no condition about one.
func (nd *Node) moduleConditions(m v1.Module, d *deploy.Module, attachments int) []v1.Condition {
	name, missing := m.Metadata.Name, nd.missing(m)
	out := []v1.Condition{nd.moduleReady(d, attachments, missing)}
	if d == nil {
		return out
	}
	if d.Control != nil {
		out = append(out, ControlCondition(d.Control.State()))
		out = append(out, nd.extraConditions(d)...)
	}
	if d.Sockets {
		out = append(out, nd.placedCondition(d))
	}
	out = append(out, nd.shadowConditions(name)...)
	out = append(out, nd.linkConditions(d)...)
	out = append(out, nd.remoteConditions(name)...)
	if d.Pkg != nil && d.Pkg.Replies {
		out = append(out, nd.repliesCondition(name))
	}
	if d.Err == nil {
		out = append(out, d.Limits().Conditions(nd.cost(d))...)
	}
	out = append(out, nd.verdictConditions(name)...)
	if missing != "" && attachments > 0 { // else it is not Ready
		out = append(out, v1.Condition{Type: "AttachPoints", Status: "False", Reason: "NotFound", Message: missing})
	}
	return out
}

// shadowConditions returns a condition only for modules that miss packets.
func (nd *Node) shadowConditions(name string) []v1.Condition {
	text, shadowed := nd.Inputs().Shadowed(nd.Points)[name]
	if !shadowed {
		return nil
	}
	return []v1.Condition{{Type: "SeesAllPackets", Status: "False", Reason: "Shadowed", Message: text}}
}

// Inputs returns the modules as plans see them.
func (nd *Node) Inputs() plan.Inputs {
	in := plan.Inputs{Modules: map[string]*plan.Module{}, Linker: dataplane.Linker(),
		Functions: nd.Functions}
	for name, d := range nd.Modules {
		in.Modules[name] = &d.Module
	}
	return in
}

// linkConditions returns a condition only for modules that name an interface which they cannot read.
func (nd *Node) linkConditions(d *deploy.Module) []v1.Condition {
	text := d.Unreadable(nd.Interfaces())
	if text == "" {
		return nil
	}
	return []v1.Condition{{Type: "LinkTypeSupported", Status: "False", Reason: "LinkTypeMismatch", Message: text}}
}

// verdictConditions returns a condition only for modules that have returned invalid verdicts.
func (nd *Node) verdictConditions(name string) []v1.Condition {
	c := nd.Counters(name)
	if c == nil {
		return nil
	}
	counts, err := c.Drops()
	if err != nil || counts[kerbabi.DropBadVerdict] == 0 {
		return nil
	}
	text := fmt.Sprintf("it returned no valid verdict for %d packets, which were treated by its failurePolicy",
		counts[kerbabi.DropBadVerdict])
	return []v1.Condition{{Type: "ValidVerdicts", Status: "False", Reason: "InvalidVerdict", Message: text}}
}

// repliesCondition reports whether a module's replies arrive.
func (nd *Node) repliesCondition(name string) v1.Condition {
	c := v1.Condition{Type: "Replies", Status: "True", Reason: "RepliesDelivered"}
	var lost, noRoom []error
	for _, p := range chain.Sorted(nd.Points) {
		place := nd.Points[p]
		if p.Side != chain.OnXDP ||
			!slices.ContainsFunc(place.Chain.Members, func(m chain.Member) bool { return m.Name == name }) {
			continue
		}
		if err := nd.NoReplies[p.Ifindex]; err != nil {
			lost = append(lost, err)
		}
		if nd.Modules[name].Dataplane.Settings.LongReplies && place.Link.Kind == "veth" &&
			nd.Mode(p) == dataplane.ModeXDPNative {
			noRoom = append(noRoom, fmt.Errorf("native XDP on the veth %s has no room for replies that are longer than "+
				"their requests, "+
				"which are passed to the ordinary server", place.Link.Name))
		}
	}
	if err := errors.Join(append(lost, noRoom...)...); err != nil {
		c.Status, c.Reason, c.Message = "False", "NoHeadroom", err.Error()+"; set hook: tc"
		if len(lost) > 0 {
			c.Reason = "RepliesLost"
		}
	}
	return c
}

// placedCondition reports whether a module on sockets is attached wherever it should be.
func (nd *Node) placedCondition(d *deploy.Module) v1.Condition {
	c := v1.Condition{Type: "Placed", Status: "True", Reason: "AllAttached"}
	if others := nd.neighbours(d); len(others) > 0 {
		c.Message = "sockets that another program also holds in a map are not changed; other programs on the same cgroup: " +
			strings.Join(others, ", ")
	}
	if texts := nd.unplaced(d); len(texts) > 0 {
		c.Status, c.Reason, c.Message = "False", "PartiallyAttached", strings.Join(texts, "; ")
	}
	if nd.Sockets != nil && nd.Sockets.View != nil {
		c.Status, c.Reason, c.Message = "False", "OwnCgroupsOnly", nd.Sockets.View.Error()
	}
	return c
}

// neighbours returns foreign programs that see the sockets of a module's cgroups.
func (nd *Node) neighbours(d *deploy.Module) (out []string) {
	for _, p := range nd.Points.Sorted() {
		if p.Module != d.Dataplane.Name {
			continue
		}
		for _, program := range nd.Programs(p) {
			if !strings.HasPrefix(program, dataplane.SocketsPrefix) && !slices.Contains(out, program) {
				out = append(out, program)
			}
		}
	}
	return out
}

// unplaced returns why a module on sockets does not run on some of the cgroups and services that it selects.
func (nd *Node) unplaced(d *deploy.Module) (out []string) {
	if nd.Sockets == nil {
		return nil
	}
	add := func(key, format string, args ...any) {
		if err := nd.Sockets.Errs[key]; err != nil {
			out = append(out, fmt.Sprintf(format, args...)+err.Error())
		}
	}
	for _, path := range d.CgroupPaths(nd.CgroupRoot) {
		add(path, "")
	}
	for _, name := range nd.Desired.Names(resource.Service) {
		if s, _ := resource.Service.Get(nd.Desired, name); d.Selector.Matches(s.Metadata.Labels) {
			add(observe.ServiceKey(name), "service %s: ", name)
		}
	}
	return out
}

// lostReplies explains, by module, which replies of instances a module drops: see plan.Inputs.LostReplies.
func (nd *Node) lostReplies() map[string]string {
	var virtual []v1.VirtualService
	for _, name := range nd.Virtual.Names() {
		view, _ := nd.Virtual.View(name)
		virtual = append(virtual, view)
	}
	return nd.Inputs().LostReplies(nd.Points, virtual)
}

// ReplyWarnings returns warnings for the client of a change: replies that are dropped on this node.
func (nd *Node) ReplyWarnings() []string {
	return slices.Compact(slices.Sorted(maps.Values(nd.lostReplies())))
}

// remoteConditions returns a condition only for modules that make a service miss replies.
func (nd *Node) remoteConditions(name string) []v1.Condition {
	text, lost := nd.lostReplies()[name]
	if !lost {
		return nil
	}
	return []v1.Condition{{Type: "RemoteInstances", Status: "False", Reason: "RepliesDropped", Message: text}}
}

// CostOf returns the known cost of a module.
func (nd *Node) CostOf(d *deploy.Module) apply.Measured {
	m, _ := nd.cost(d)
	return m
}

func (nd *Node) cost(d *deploy.Module) (apply.Measured, bool) {
	if d == nil || d.Err != nil {
		return apply.Measured{}, false
	}
	return nd.Cost(d.Candidate().Key)
}
