// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/internal/version"
	"github.com/kerb-edge/kerb/sdk"
)

func (a *Agent) moduleViews() func(string) resource.Object {
	return func(name string) resource.Object {
		a.mu.Lock()
		defer a.mu.Unlock()
		m, ok := resource.Module.Get(a.desired, name)
		if !ok {
			return nil
		}
		return resource.ObjectOf(a.moduleWithStatus(m))
	}
}

func (a *Agent) moduleWithStatus(m v1.Module) v1.Module {
	name := m.Metadata.Name
	st := &v1.ModuleStatus{Instances: a.moduleInstances(name)}
	m.Status = st
	d := a.modules[name]
	if d != nil && d.Pkg != nil {
		st.Package = v1.PackageRef{Name: d.Pkg.Name, Version: d.Pkg.Version, Digest: d.Pkg.Digest}
	}
	if l := a.live[name]; l != nil {
		st.Memory = dataplane.Memory(l.maps)
		st.Drops = a.drops(d, l)
		st.Events = events(l)
	}
	cost, _ := a.costOf(d)
	st.Cost = cost.View()
	st.Conditions = a.recordModule(m, d, len(st.Instances))
	return m
}

// moduleReady reports whether a module runs; missing says what it selects and the node does not have.
func (a *Agent) moduleReady(d *deploy.Module, instances int, missing string) v1.Condition {
	c := v1.Condition{Type: "Ready", Status: "False"}
	switch {
	case d == nil:
		c.Reason, c.Message = "Starting", "not evaluated yet"
	case d.Err != nil:
		c.Reason, c.Message = "ModuleFailed", d.Err.Error()+"; "+failureEffect(d)
	case a.problem != nil:
		c.Reason, c.Message = "NotReconciled", a.problem.Error()
	case instances == 0:
		c.Reason, c.Message = "NoAttachPoint", cmp.Or(missing, "nothing that it selects is there")
		if d.Resource.Spec.Hook == v1.HookXDP {
			c.Message += ", or none where XDP sees packets of its directions: on a service's veth it sees only what the service sends (hook: tc sees both)"
		}
	default:
		c.Status, c.Reason, c.Message = "True", "Running", fmt.Sprintf("on %d attach points", instances)
	}
	return c
}

// controlCondition reports the state of a control plane. The data plane continues in any case.
func controlCondition(s control.State) v1.Condition {
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

// extraConditions are those that only some modules have.
func (a *Agent) extraConditions(d *deploy.Module) []v1.Condition {
	var out []v1.Condition
	for _, c := range d.Plane.Conditions() {
		out = append(out, v1.Condition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message})
	}
	if name := a.metrics.clash(d.Resource.Metadata.Name); name != "" {
		out = append(out, v1.Condition{Type: "Metrics", Status: "False", Reason: "NameConflict", Message: fmt.Sprintf(
			"another module exports %s with a different help text or type: this module's samples are omitted", name)})
	}
	return out
}

func (a *Agent) moduleInstances(name string) []v1.Instance {
	var out []v1.Instance
	for _, p := range sortedPoints(a.points) {
		place := a.points[p]
		if p.Module == name {
			out = append(out, socketInstances(place)...)
			continue
		}
		for i, m := range place.Chain.Members {
			if m.Name == name {
				out = append(out, instance(p, place, i))
			}
		}
	}
	return out
}

// socketInstances are those of a module on sockets: one for each service or cgroup.
func socketInstances(place plan.Placement) (out []v1.Instance) {
	for _, i := range place.Instances {
		out = append(out, v1.Instance{Service: i.Service, Interface: i.Interface, Ifindex: int(i.Ifindex), Cgroup: place.Cgroup,
			Hook: string(chain.OnSockets), Direction: string(chain.Both), Chain: place.Chain.ID()})
	}
	return out
}

func instance(p chain.Point, place plan.Placement, position int) v1.Instance {
	return v1.Instance{Service: place.Service, Interface: place.Link.Name, Ifindex: p.Ifindex, Hook: string(p.Side),
		Direction: string(place.Chain.Direction), Chain: place.Chain.ID(), Position: position}
}

// events are the counters of a module that sends events.
func events(l *liveModule) *v1.Events {
	sent, lost, ok, err := dataplane.Events(l.maps)
	if err != nil || !ok {
		return nil
	}
	return &v1.Events{Sent: sent, Lost: lost}
}

func (a *Agent) serviceViews() func(string) resource.Object {
	programs := a.programs()
	return func(name string) resource.Object {
		a.mu.Lock()
		defer a.mu.Unlock()
		s, ok := resource.Service.Get(a.desired, name)
		if !ok {
			return nil
		}
		return resource.ObjectOf(a.serviceWithStatus(s, programs))
	}
}

// programs are the kernel's ids of running programs by attach point.
func (a *Agent) programs() map[chain.Point]uint32 {
	out := map[chain.Point]uint32{}
	state, err := a.look()
	if err != nil {
		a.log.Warn("cannot read the state of the kernel", "error", err)
	}
	for _, p := range state.Points {
		out[p.Point] = uint32(p.Program)
	}
	return out
}

func (a *Agent) serviceWithStatus(s v1.Service, programs map[chain.Point]uint32) v1.Service {
	name := s.Metadata.Name
	state := a.states[name]
	s.Status = &v1.ServiceStatus{Conditions: a.recordService(s, state)}
	for _, addr := range state.Addresses {
		s.Status.Addresses = append(s.Status.Addresses, addr.String())
	}
	for _, p := range sortedPoints(a.points) {
		if slices.ContainsFunc(a.points[p].Instances, func(i sdk.Instance) bool { return i.Service == name }) {
			s.Status.Sockets = append(s.Status.Sockets, p.Module)
		}
	}
	for _, l := range state.Links {
		link := v1.ServiceLink{Interface: l.Name, Ifindex: l.Ifindex, Peer: l.Peer, MTU: l.MTU, Moved: l.Left}
		for _, side := range []chain.Side{chain.OnXDP, chain.OnTCIngress, chain.OnTCEgress} {
			p := chain.Point{Ifindex: l.Ifindex, Side: side}
			if place, ok := a.points[p]; ok {
				link.Hooks = append(link.Hooks, a.hookState(p, place, programs[p]))
			}
		}
		s.Status.Links = append(s.Status.Links, link)
	}
	s.Status.Drops = a.serviceDrops(name)
	return s
}

func (a *Agent) hookState(p chain.Point, place plan.Placement, program uint32) v1.HookState {
	view := a.dp.View(p)
	h := v1.HookState{Hook: string(p.Side), Mode: view.Mode, Chain: place.Chain.ID(), Program: program, Programs: view.Programs}
	for _, m := range place.Chain.Members {
		h.Modules = append(h.Modules, m.Name)
	}
	return h
}

func (a *Agent) serviceReady(state service.State) v1.Condition {
	c := v1.Condition{Type: "Ready", Status: "False"}
	switch {
	case state.Err != nil:
		c.Reason, c.Message = "NotFound", state.Err.Error()
	case !slices.ContainsFunc(state.Links, func(l service.Link) bool { return !l.Left }):
		c.Reason, c.Message = "NoInterface", "the service has no veth to this node yet"
	default:
		c.Status, c.Reason = "True", "Found"
	}
	return c
}

// movedConditions are there only for services whose interfaces are no longer where the service is registered.
func (a *Agent) movedConditions(state service.State) []v1.Condition {
	var names []string
	for _, l := range state.Links {
		if l.Left {
			names = append(names, l.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return []v1.Condition{{Type: "InterfacesInPlace", Status: "False", Reason: "InterfaceMoved",
		Message: fmt.Sprintf("the veth peer of %s is no longer in the registered network namespace; its chain stays attached until the interface or the service is deleted",
			strings.Join(names, ", "))}}
}

// Chains lists the chains that run, and those that are pinned without running.
func (a *Agent) Chains(context.Context) ([]v1.Chain, error) {
	state, err := a.look()
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []v1.Chain
	for _, c := range state.Chains {
		out = append(out, a.chainView(c, state.Points))
	}
	slices.SortFunc(out, func(x, y v1.Chain) int { return strings.Compare(x.Hook+x.ID, y.Hook+y.ID) })
	return out, nil
}

func (a *Agent) chainView(c chain.Pinned, points []chain.Attached) v1.Chain {
	cost := apply.ChainCost(c.Spec, func(module string) apply.Measured { m, _ := a.costOf(a.modules[module]); return m })
	view := v1.Chain{Cost: cost, ID: c.ID, Hook: string(c.Spec.Side), Direction: string(c.Spec.Direction), Program: uint32(c.Program), Parts: c.Parts}
	for _, m := range c.Spec.Members {
		view.Modules = append(view.Modules, m.Name)
	}
	for _, p := range points {
		if !slices.Contains(c.Programs(), p.Program) {
			continue
		}
		place := a.points[p.Point]
		if p.Point.Side == chain.OnSockets {
			view.Points = append(view.Points, socketInstances(place)...)
			continue
		}
		i := instance(p.Point, place, 0)
		i.Chain, i.Direction = c.ID, view.Direction
		view.Points = append(view.Points, i)
	}
	return view
}

// Packages lists the built-in packages, those that were pulled and those that modules use.
func (a *Agent) Packages(context.Context) ([]v1.Package, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[string]v1.Package{}
	for _, p := range a.catalog.Builtin() {
		out[p.Name] = packageView(p)
	}
	for _, d := range a.modules {
		if d.Pkg != nil && d.Pkg.Source != pkgs.SourceBuiltin {
			out[d.Pkg.Source] = packageView(d.Pkg)
		}
	}
	pulled, err := a.catalog.Pulled()
	if err != nil {
		return nil, err
	}
	for _, p := range pulled { // after those of modules: one that runs may not be trusted any more
		out[p.Source] = packageView(p)
	}
	var list []v1.Package
	for _, key := range slices.Sorted(maps.Keys(out)) {
		list = append(list, out[key])
	}
	return list, nil
}

// Package returns one by name or directory.
func (a *Agent) Package(_ context.Context, name string) (v1.Package, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range a.modules {
		if d.Pkg != nil && d.Pkg.Source != pkgs.SourceBuiltin && (d.Pkg.Name == name || d.Pkg.Source == name) {
			return packageView(d.Pkg), nil
		}
	}
	p, err := a.catalog.Get(name)
	if err != nil {
		return v1.Package{}, &apierrors.NotFound{Kind: "Package", Name: name}
	}
	return packageView(p), nil
}

func packageView(p *pkgs.Package) v1.Package {
	return v1.Package{Name: p.Name, Version: p.Version, Digest: p.Digest, Source: p.Source, Description: p.Description, Hooks: p.Hooks,
		Memory: p.Memory(nil), Config: p.ConfigSchema, Capabilities: p.GrantedCapabilities(), Queries: p.Queries}
}

// Status is the agent at a glance.
func (a *Agent) Status(context.Context) (v1.NodeStatus, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	st := v1.NodeStatus{Version: version.Version(), Kernel: kernelRelease(), PID: os.Getpid(), Uptime: time.Since(a.started).Round(time.Second).String(),
		Modules: a.desired.Len(resource.Module), Services: a.desired.Len(resource.Service), VirtualServices: len(a.virtual.Names()),
		Models: a.desired.Len(resource.Model), Points: len(a.points)}
	chains := map[string]bool{}
	for _, p := range a.points {
		chains[p.Chain.ID()] = true
	}
	st.Chains = len(chains)
	for _, l := range a.live {
		st.Memory += dataplane.Memory(l.maps)
	}
	st.Conditions, st.Problems = a.recordNode(), a.problems()
	return st, nil
}

func (a *Agent) nodeConditions() []v1.Condition {
	reconciled := v1.Condition{Type: "Reconciled", Status: "True", Reason: "InSync"}
	if a.starting() {
		reconciled.Status, reconciled.Reason, reconciled.Message = "False", "Starting", "the first reconciliation since the start of the agent is under way"
	} else if a.problem != nil {
		reconciled.Status, reconciled.Reason, reconciled.Message = "False", "Retrying", a.problem.Error()
	} else if failed := a.cannotRun(); failed != "" {
		reconciled.Status, reconciled.Reason, reconciled.Message = "False", "ModuleFailed", failed
	}
	stored := v1.Condition{Type: "StoreWritable", Status: "True", Reason: "Writable"}
	if a.store.ReadOnly() {
		stored.Status, stored.Reason, stored.Message = "False", "ReadOnly", "the store can only be read: changes are refused"
	}
	out := []v1.Condition{reconciled, stored, a.controlPlanes()}
	if n, err := a.virtual.Resolvers(); n > 0 {
		c := v1.Condition{Type: "Resolvers", Status: "True", Reason: "Responding"}
		if err != nil {
			c.Status, c.Reason, c.Message = "False", "NotResponding", err.Error()
		}
		out = append(out, c)
	}
	if c, configured := a.integrations.Condition(); configured {
		out = append(out, c)
	}
	out = append(out, a.orderCondition()...)
	if a.store.RecoveryPending() {
		out = append(out, v1.Condition{Type: "StoreLost", Status: "True", Reason: "Corrupted",
			Message: "the store was damaged and has been moved aside; attached chains keep running unchanged until modules are applied again"})
	}
	return out
}

// cannotRun lists the modules that do not run, and the effect; empty if there are none.
func (a *Agent) cannotRun() string {
	var failed []string
	for _, name := range slices.Sorted(maps.Keys(a.modules)) {
		if d := a.modules[name]; d.Err != nil {
			failed = append(failed, "module "+name+" cannot run, "+failureEffect(d))
		}
	}
	return strings.Join(failed, "; ")
}

// failureEffect describes what happens to packets while a module cannot run.
func failureEffect(d *deploy.Module) string {
	if d.Dataplane.FailClosed {
		return "all packets are dropped until it runs (failurePolicy closed)"
	}
	return "packets bypass it until it runs (failurePolicy open)"
}

// controlPlanes sums the control planes up.
func (a *Agent) controlPlanes() v1.Condition {
	c := v1.Condition{Type: "ControlPlanes", Status: "True", Reason: "Running"}
	if err := a.control.Problem(); err != nil {
		c.Status, c.Reason, c.Message = "False", "SandboxFailed", "control planes cannot start: "+err.Error()+"; run kerb doctor"
		return c
	}
	c.Message = strings.Join(a.control.Weaknesses(), "; ")
	for _, name := range slices.Sorted(maps.Keys(a.modules)) {
		d := a.modules[name]
		if d.Plane == nil {
			continue
		}
		if one := controlCondition(d.Plane.State()); one.Status != "True" {
			if c.Status == "True" {
				c.Message = ""
			}
			c.Status, c.Reason = "False", one.Reason
			c.Message = strings.TrimPrefix(c.Message+"; "+name+": "+one.Message, "; ")
		}
	}
	return c
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
