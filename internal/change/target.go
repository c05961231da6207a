// SPDX-License-Identifier: Apache-2.0

package change

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/observe"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/sets"
)

// target is the state that a change or a reconciliation aims at.
type target struct {
	desired resource.State
	modules map[string]*deploy.Module
	plan.Inputs
}

// sets returns the inputs of sets in t.
func (t target) sets() sets.State {
	return sets.State{Desired: t.desired, Modules: t.modules, Services: t.Observed.Services}
}

// target combines a desired state, its modules and the observation made for it. Modules that were not prepared for it
// keep their state, including those that cannot run: a package or kernel that has changed in the meantime must neither
// change them nor block other changes.
func (p *Pipeline) target(next resource.State, prepared map[string]*deploy.Module, seen observe.Snapshot) target {
	var onSockets []observe.Selection
	services := maps.Collect(resource.Service.All(next))
	t := target{next, map[string]*deploy.Module{}, plan.Inputs{Modules: map[string]*plan.Module{}, Services: services,
		Linker: dataplane.Linker(), Functions: p.Now.Functions}}
	for name := range resource.Module.All(next) {
		d := cmp.Or(prepared[name], p.Now.Modules[name])
		t.modules[name] = d
		t.Modules[name] = &d.Module
		if d.Sockets {
			onSockets = append(onSockets, observe.Selection{Cgroups: d.CgroupPaths(p.Observer.Cgroup), Services: d.Selector})
		}
	}
	p.Observer.FindSockets(&seen, services, onSockets)
	t.Observed = seen
	return t
}

// selectedCgroups returns the cgroups that were observed, and the paths that modules select.
func (p *Pipeline) selectedCgroups() (*observe.Sockets, map[string]bool) {
	p.Lock.Lock()
	defer p.Lock.Unlock()
	paths := map[string]bool{}
	for _, d := range p.Now.Modules {
		for _, path := range d.CgroupPaths(p.Observer.Cgroup) {
			paths[path] = true
		}
	}
	return p.Now.Sockets, paths
}

// checkServices rejects new services that cannot be found: most often the path is wrong. Existing services may
// disappear and reappear.
func checkServices(seen observe.Snapshot) error {
	var rejected []error
	for _, name := range slices.Sorted(slices.Values(seen.New)) {
		if err := seen.Services[name].Err; err != nil {
			rejected = append(rejected, &apierrors.Invalid{Resource: "Service " + name, Field: "spec", Reason: err.Error()})
		}
	}
	return errors.Join(rejected...)
}

// checkLinkTypes rejects modules for interfaces that they cannot read. If an interface is re-created later with another
// type, a condition reports it.
func (t target) checkLinkTypes(prepared map[string]*deploy.Module) error {
	var rejected []error
	for _, name := range slices.Sorted(maps.Keys(prepared)) {
		if text := prepared[name].Unreadable(t.Observed.Interfaces); text != "" {
			rejected = append(rejected, prepared[name].Invalid("spec.attach.interfaces", errors.New(text)))
		}
	}
	return errors.Join(rejected...)
}
