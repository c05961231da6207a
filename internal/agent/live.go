// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/service"
)

// install makes t the agent's current state, notifies control planes of new map sets, and stops those that are no
// longer used.
func (a *Agent) install(t target, points plan.Placements) {
	before, noReplies := a.now.Modules, t.enableReplies(a.dp, a.log, points)
	a.bind(t)
	a.replace(t, points, noReplies)
	for name, d := range before {
		now := t.modules[name]
		if now == nil {
			a.forget(d)
		} else if d.Control != nil && now.Control != d.Control {
			go d.Control.Close() // it may take its time
		}
	}
}

// bind binds the interfaces of services to them, and reports those that have left their service since the last time.
func (a *Agent) bind(t target) {
	if err := a.bindings.Bind(t.Observed.Services, t.Observed.Owners); err != nil {
		a.log.Warn("an agent that is started again will not know interfaces that have left their service", "error", err)
	}
	for name, s := range t.Observed.Services {
		for _, l := range s.Links {
			if l.Left && !left(a.now.Services[name], l.Ifindex) {
				a.log.Warn("an interface no longer belongs to its service; its chain stays attached", "service", name,
					"interface", l.Name, "reason", s.Err)
			}
		}
	}
}

func left(s service.State, ifindex int) bool {
	return slices.ContainsFunc(s.Links, func(l service.Link) bool { return l.Left && l.Ifindex == ifindex })
}

// forget ends a module's control plane before what it has kept is removed: else it would write it again. Not under
// a.mu, as it may take its time; changes wait, so that a new module of the same name finds nothing of the old.
func (a *Agent) forget(d *deploy.Module) {
	if d.Control != nil {
		d.Control.Close()
	}
	name := d.Resource.Metadata.Name
	if err := a.control.Forget(name); err != nil {
		a.log.Warn("cannot remove stored data of a module", "module", name, "error", err)
	}
}

func (a *Agent) replace(t target, points plan.Placements, noReplies map[int]error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now.ForgetWithout(t.desired, t.modules)
	a.now.Desired, a.now.Modules, a.now.Services, a.now.Points, a.now.NoReplies, a.now.Sockets = t.desired, t.modules,
		t.Observed.Services, points, noReplies, t.Observed.Sockets
	a.virtual.SetLocals(addresses(t.Observed.Services))
	a.live.Replace(t.modules, a.now.Owners(), maps.Clone(points).AttachmentsOf)
	a.now.EnqueueAll()
}

// addresses are those of all services, for the table.
func addresses(states map[string]service.State) map[string][]netip.Prefix {
	out := make(map[string][]netip.Prefix, len(states))
	for name, s := range states {
		out[name] = s.Addresses
	}
	return out
}
