// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/observe"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/resource"
)

// onSockets reports whether the module runs on sockets and not on packets.
func (d *deployment) onSockets() bool { return d.pkg != nil && d.pkg.RunsOn(pkgs.HookSockets) }

// checkAttach compares the attach points that a module is wanted on with what its package runs on.
func (d *deployment) checkAttach() error {
	attach := d.Resource.Spec.Attach
	wrong := func(field, reason string) error {
		return d.invalid("spec."+field, fmt.Errorf("package %s %s", d.pkg.Name, reason))
	}
	switch {
	case !d.onSockets() && len(attach.Cgroups) > 0:
		return wrong("attach.cgroups", "runs on packets, which cgroups do not have; select services or interfaces")
	case !d.onSockets():
		return nil
	case d.Resource.Spec.FailurePolicy == v1.FailClosed:
		return wrong("failurePolicy", "runs on sockets, which cannot fail closed: without it they are plain TCP")
	case len(attach.Interfaces) > 0:
		return wrong("attach.interfaces", "runs on sockets, which interfaces do not have; select services or cgroups")
	}
	spec, err := d.pkg.Spec(pkgs.HookSockets)
	if err != nil {
		return d.invalid("spec.package", err)
	}
	if attach.Services != "" && spec.Programs[pkgs.EntryServices] == nil {
		return wrong("attach.services", "has no program for services; set cgroups")
	}
	if len(attach.Cgroups) > 0 && spec.Programs[pkgs.EntryAll] == nil {
		return wrong("attach.cgroups", "has no program for whole cgroups; select services")
	}
	return nil
}

// checkCgroups refuses new cgroups that are not there now: most often a mistake in the path. Later they may go and come.
func (a *Agent) checkCgroups(d *deployment) error {
	var known []string
	if before := a.modules[d.module.Name]; before != nil {
		known = before.Resource.Spec.Attach.Cgroups
	}
	for i, path := range d.Resource.Spec.Attach.Cgroups {
		if slices.Contains(known, path) {
			continue
		}
		if _, err := cgroup.Find(path); err != nil {
			return d.invalid(fmt.Sprintf("spec.attach.cgroups[%d]", i), err)
		}
	}
	return nil
}

// cgroupPaths are those that a module needs: its own, and for services the agent's.
func (a *Agent) cgroupPaths(d *deployment) []string {
	if !d.onSockets() {
		return nil
	}
	paths := slices.Clone(d.Resource.Spec.Attach.Cgroups)
	if d.Resource.Spec.Attach.Services != "" {
		paths = append(paths, a.observer.Cgroup)
	}
	return paths
}

// ageIdle takes idle sockets out of a module's map while it is attached, and puts those back that become active.
func (a *Agent) ageIdle(d *deployment, l *liveModule) {
	if !d.onSockets() || len(a.instances(d.module.Name)) == 0 {
		l.aging.Close()
		l.aging = nil
		return
	}
	if l.aging != nil {
		return
	}
	gaveUp := func(err error) {
		a.log.Error("idle sockets are no longer aged out of the module's map", "module", d.module.Name, "error", err)
	}
	var err error
	if l.aging, err = a.dp.Tend(d.SocketsChain(dataplane.Linker()), gaveUp); err != nil {
		gaveUp(err)
	}
}

// placedCondition reports whether a module on sockets is attached wherever it is wanted.
func (a *Agent) placedCondition(d *deployment) v1.Condition {
	c := v1.Condition{Type: "Placed", Status: "True", Reason: "AllAttached"}
	if others := a.neighbours(d); len(others) > 0 {
		c.Message = "sockets that another program also holds in a map are not changed; other programs on the same cgroup: " + strings.Join(others, ", ")
	}
	if texts := a.unplaced(d); len(texts) > 0 {
		c.Status, c.Reason, c.Message = "False", "PartiallyAttached", strings.Join(texts, "; ")
	}
	return c
}

// neighbours are programs of others that see the sockets of a module's cgroups.
func (a *Agent) neighbours(d *deployment) (out []string) {
	for _, p := range sortedPoints(a.points) {
		if p.Module != d.module.Name {
			continue
		}
		for _, program := range a.dp.View(p).Programs {
			if !strings.HasPrefix(program, dataplane.SocketsPrefix) && !slices.Contains(out, program) {
				out = append(out, program)
			}
		}
	}
	return out
}

func (a *Agent) unplaced(d *deployment) (out []string) {
	if a.sockets == nil {
		return nil
	}
	add := func(key, format string, args ...any) {
		if err := a.sockets.Errs[key]; err != nil {
			out = append(out, fmt.Sprintf(format, args...)+err.Error())
		}
	}
	for _, path := range a.cgroupPaths(d) {
		add(path, "")
	}
	for _, name := range a.desired.Names(resource.Service) {
		if s, _ := resource.Service.Get(a.desired, name); d.Selector.Matches(s.Metadata.Labels) {
			add(observe.ServiceKey(name), "service %s: ", name)
		}
	}
	return out
}

// cgroupPeriod is how soon it is seen that a cgroup comes, goes or is another one.
const cgroupPeriod = time.Second

// watchCgroups asks for a reconciliation when a cgroup that modules select has come or gone.
func (a *Agent) watchCgroups(ctx context.Context) {
	tick := time.NewTicker(cgroupPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if a.cgroupsMoved() {
			a.poke()
		}
	}
}

func (a *Agent) cgroupsMoved() bool {
	a.mu.Lock()
	v, paths := a.sockets, map[string]bool{}
	for _, d := range a.modules {
		for _, path := range a.cgroupPaths(d) {
			paths[path] = true
		}
	}
	a.mu.Unlock()
	for path := range paths {
		if v == nil || v.Cgroups[path].Exists() {
			continue
		}
		if found, _ := cgroup.Find(path); v.Cgroups[path] != found {
			return true
		}
	}
	return false
}

// failsClosed reports whether a module that cannot run keeps packets from passing: by its own policy, or else its package's. One on
// sockets does not: what it did not touch is plain TCP. Where the package cannot be read, what it left in the kernel tells; if
// that is nothing, it might have been a firewall.
func (a *Agent) failsClosed(m v1.Module) bool {
	if p := m.Spec.FailurePolicy; p != "" {
		return p == v1.FailClosed
	}
	if p, err := a.catalog.Get(m.Spec.Package); err == nil {
		return p.FailurePolicy == string(v1.FailClosed)
	}
	state, err := a.dp.Observe()
	if err != nil {
		return true
	}
	for _, c := range state.Chains {
		for _, member := range c.Spec.Members {
			if member.Name == m.Metadata.Name {
				return member.FailClosed
			}
		}
	}
	return true
}
