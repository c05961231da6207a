// SPDX-License-Identifier: Apache-2.0

package change

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
func (p *Pipeline) install(t target, points plan.Placements) {
	before, noReplies := p.Now.Modules, t.enableReplies(p.Dataplane, p.Log, points)
	p.bind(t)
	p.replace(t, points, noReplies)
	for name, d := range before {
		now := t.modules[name]
		if now == nil {
			p.forget(d)
		} else if d.Control != nil && now.Control != d.Control {
			go d.Control.Close() // it may take its time
		}
	}
}

// bind binds the interfaces of services to them, and reports those that have left their service since the last call.
func (p *Pipeline) bind(t target) {
	if err := p.Bindings.Bind(t.Observed.Services, t.Observed.Owners); err != nil {
		p.Log.Warn("after a restart, the agent will not recognize interfaces that have left their service", "error", err)
	}
	for name, s := range t.Observed.Services {
		for _, l := range s.Links {
			if l.Left && !left(p.Now.Services[name], l.Ifindex) {
				p.Log.Warn("an interface no longer belongs to its service; its chain stays attached", "service", name,
					"interface", l.Name, "reason", s.Err)
			}
		}
	}
}

func left(s service.State, ifindex int) bool {
	return slices.ContainsFunc(s.Links, func(l service.Link) bool { return l.Left && l.Ifindex == ifindex })
}

// forget ends a module's control plane before its stored state is removed, which it would otherwise write again. It is
// called without p.Lock, as it may take long; changes wait, so that a new module of the same name finds no old state.
func (p *Pipeline) forget(d *deploy.Module) {
	if d.Control != nil {
		d.Control.Close()
	}
	name := d.Resource.Metadata.Name
	if err := p.Control.Forget(name); err != nil {
		p.Log.Warn("cannot remove stored data of a module", "module", name, "error", err)
	}
}

func (p *Pipeline) replace(t target, points plan.Placements, noReplies map[int]error) {
	p.Lock.Lock()
	defer p.Lock.Unlock()
	p.Now.ForgetWithout(t.desired, t.modules)
	p.Now.Desired, p.Now.Modules, p.Now.Services, p.Now.Points, p.Now.NoReplies, p.Now.Sockets = t.desired, t.modules,
		t.Observed.Services, points, noReplies, t.Observed.Sockets
	p.Virtual.SetLocals(addresses(t.Observed.Services))
	p.Live.Replace(t.modules, p.Now.Owners(), maps.Clone(points).AttachmentsOf)
	p.Now.EnqueueAll()
}

// addresses returns the addresses of all services, for the table of addresses.
func addresses(states map[string]service.State) map[string][]netip.Prefix {
	out := make(map[string][]netip.Prefix, len(states))
	for name, s := range states {
		out[name] = s.Addresses
	}
	return out
}
