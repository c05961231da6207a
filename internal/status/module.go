// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"fmt"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/plan"
)

// Module returns a module with its status.
func (nd *Node) Module(m v1.Module) v1.Module {
	name := m.Metadata.Name
	st := &v1.ModuleStatus{Attachments: nd.Attachments(name)}
	m.Status = st
	d := nd.Modules[name]
	if d != nil && d.Pkg != nil {
		st.Package = v1.PackageRef{Name: d.Pkg.Name, Version: d.Pkg.Version, Digest: d.Pkg.Digest}
		st.Views = d.Pkg.Views
	}
	if c := nd.Counters(name); c != nil {
		st.Memory, st.Drops, st.Events = c.Memory(), nd.Drops(name), c.Events()
	}
	st.Cost = nd.CostOf(d).View()
	st.Conditions = nd.RecordModule(m, d, len(st.Attachments))
	return m
}

// moduleReady reports whether a module runs; missing lists what it selects and does not exist on the node.
func (nd *Node) moduleReady(d *deploy.Module, attachments int, missing string) v1.Condition {
	c := v1.Condition{Type: "Ready", Status: "False"}
	switch {
	case d == nil:
		c.Reason, c.Message = "Starting", "not evaluated yet"
	case d.Err != nil:
		c.Reason, c.Message = "ModuleFailed", d.Err.Error()+"; "+failureEffect(d)
	case nd.Problem != nil:
		c.Reason, c.Message = "NotReconciled", nd.Problem.Error()
	case attachments == 0:
		c.Reason, c.Message = "NoAttachPoint", cmp.Or(missing, "nothing that it selects is there")
		if d.Resource.Spec.Hook == v1.HookXDP {
			c.Message += ", or none where XDP sees packets of its directions: on a service's veth it sees only what the " +
				"service sends (hook: tc sees both)"
		}
	default:
		c.Status, c.Reason, c.Message = "True", "Running", fmt.Sprintf("on %d attach points", attachments)
	}
	return c
}

// ControlCondition returns the condition for the state of a control plane. The data plane continues in any case.
func ControlCondition(s control.State) v1.Condition {
	c := v1.Condition{Type: "ControlPlane", Status: "True", Reason: "Running"}
	switch {
	case !s.Running:
		c.Status, c.Reason, c.Message = "False", "NotRunning", s.Reason
	case !s.Started, !s.HealthKnown:
		c.Status, c.Reason, c.Message = "False", "Starting", s.Reason
	case !s.Healthy:
		c.Status, c.Reason, c.Message = "False", "Unhealthy", s.Reason
	}
	if s.Restarts > 0 {
		c.Message = strings.TrimPrefix(fmt.Sprintf("%s; started again %d times", c.Message, s.Restarts), "; ")
	}
	return c
}

// extraConditions returns conditions that only some modules have.
func (nd *Node) extraConditions(d *deploy.Module) []v1.Condition {
	var out []v1.Condition
	for _, c := range d.Control.Conditions() {
		out = append(out, v1.Condition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message})
	}
	if name := nd.LostMetric(d.Resource.Metadata.Name); name != "" {
		out = append(out, v1.Condition{Type: "Metrics", Status: "False", Reason: "NameConflict", Message: fmt.Sprintf(
			"another module exports %s with a different help text or type: this module's samples are omitted", name)})
	}
	return out
}

// Attachments lists where a module is attached.
func (nd *Node) Attachments(name string) []v1.Attachment {
	var out []v1.Attachment
	for _, p := range nd.Points.Sorted() {
		place := nd.Points[p]
		if p.Module == name {
			out = append(out, socketAttachments(place)...)
			continue
		}
		for i, m := range place.Chain.Members {
			if m.Name == name {
				out = append(out, attachment(p, place, i))
			}
		}
	}
	return out
}

// attached returns the number of Attachments.
func (nd *Node) attached(name string) (n int) {
	for p, place := range nd.Points {
		if p.Module == name {
			n += len(place.Attachments)
			continue
		}
		for _, m := range place.Chain.Members {
			if m.Name == name {
				n++
			}
		}
	}
	return n
}

// socketAttachments returns the attachments of a module on sockets: one for each service or cgroup.
func socketAttachments(place plan.Placement) (out []v1.Attachment) {
	for _, i := range place.Attachments {
		out = append(out, v1.Attachment{Service: i.Service, Interface: i.Interface, Ifindex: int(i.Ifindex),
			Cgroup: place.Cgroup,
			Hook:   string(chain.OnSockets), Direction: string(chain.Both), Chain: place.Chain.ID()})
	}
	return out
}

func attachment(p chain.Point, place plan.Placement, position int) v1.Attachment {
	return v1.Attachment{Service: place.Service, Interface: place.Link.Name, Ifindex: p.Ifindex, Hook: string(p.Side),
		Direction: string(place.Chain.Direction), Chain: place.Chain.ID(), Position: position}
}

// failureEffect describes what happens to packets while a module cannot run.
func failureEffect(d *deploy.Module) string {
	if d.Dataplane.FailClosed {
		return "all packets are dropped until it runs (failurePolicy closed)"
	}
	return "packets bypass it until it runs (failurePolicy open)"
}
