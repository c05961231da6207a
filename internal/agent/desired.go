// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/internal/store"
	"github.com/kerb-edge/kerb/sdk"
)

// world is everything that the plan is made from.
type world struct {
	desired    store.Desired
	modules    map[string]*deployment
	services   map[string]service.State
	owners     map[int]string          // services, by the ifindexes of their links
	interfaces map[string]service.Link // of the node, by name
	sockets    *socketsView
	cgroup     string // in which the sockets of services are
}

func newWorld(desired store.Desired, modules map[string]*deployment) world {
	return world{desired: desired, modules: modules, services: map[string]service.State{}, interfaces: map[string]service.Link{}}
}

// placement is what an attach point belongs to.
type placement struct {
	service string // empty for an interface of the node
	link    service.Link
	chain   chain.Spec

	cgroup    string // OnSockets: its path
	instances []sdk.Instance
}

// port is an interface with its owner and the modules that select it, in order.
type port struct {
	link    service.Link
	service string
	modules []*deployment
}

// On the node's end of a service's veth the kernel's directions are the opposite of the service's. XDP sees only what
// arrives at an interface.
var serviceSides = map[chain.Side]chain.Direction{
	chain.OnXDP: chain.Egress, chain.OnTCIngress: chain.Egress, chain.OnTCEgress: chain.Ingress,
}

var interfaceSides = map[chain.Side]chain.Direction{
	chain.OnXDP: chain.Ingress, chain.OnTCIngress: chain.Ingress, chain.OnTCEgress: chain.Egress,
}

// place works out the chain of every attach point.
func (w world) place() (map[chain.Point]placement, error) {
	order, err := w.order()
	if err != nil {
		return nil, err
	}
	out := map[chain.Point]placement{}
	for _, p := range w.ports(order) {
		sides := interfaceSides
		if p.service != "" {
			sides = serviceSides
		}
		for side, dir := range sides {
			spec := chain.Spec{Linker: dataplane.Linker(), Side: side, Direction: dir}
			for _, d := range p.modules {
				if d.covers(p, side, dir) && d.reads(p.link) {
					spec.Members = append(spec.Members, d.member())
				}
			}
			spec.Veth = side == chain.OnXDP && p.link.Kind == "veth" && w.replies(spec)
			if len(spec.Members) > 0 {
				out[chain.Point{Ifindex: p.link.Ifindex, Side: side}] = placement{service: p.service, link: p.link, chain: spec}
			}
		}
	}
	w.placeSockets(order, out)
	return out, nil
}

func (w world) order() ([]*deployment, error) {
	var resources []v1.Module
	for _, d := range w.modules {
		resources = append(resources, d.resource)
	}
	sorted, err := plan.Order(resources, func(name string) int { return w.modules[name].rank() })
	if err != nil {
		return nil, err
	}
	var out []*deployment
	for _, m := range sorted {
		out = append(out, w.modules[m.Metadata.Name])
	}
	return out, nil
}

// ports lists the interfaces that modules select. An interface that is a service's is the service's, even if it is
// also listed by name.
func (w world) ports(order []*deployment) []*port {
	byIndex := map[int]*port{}
	for _, name := range slices.Sorted(maps.Keys(w.services)) {
		for _, l := range w.services[name].Links {
			if w.owners[l.Ifindex] == name {
				byIndex[l.Ifindex] = &port{link: l, service: name}
			}
		}
	}
	for _, d := range order {
		for _, p := range byIndex {
			if p.service != "" && d.selector.Matches(w.desired.Services[p.service].Metadata.Labels) {
				p.modules = append(p.modules, d)
			}
		}
		for _, name := range d.resource.Spec.Attach.Interfaces {
			w.addInterface(byIndex, name, d)
		}
	}
	return slices.Collect(maps.Values(byIndex))
}

func (w world) addInterface(byIndex map[int]*port, name string, d *deployment) {
	l, ok := w.interfaces[name]
	if !ok {
		return // it may come later
	}
	p := byIndex[l.Ifindex]
	if p == nil {
		p = &port{link: l}
		byIndex[l.Ifindex] = p
	}
	if !slices.Contains(p.modules, d) {
		p.modules = append(p.modules, d)
	}
}

// want is the plan's input.
func (w world) want(points map[chain.Point]placement, keep bool) plan.Desired {
	d := plan.Desired{Generations: map[string]string{}, Points: map[chain.Point]chain.Spec{}, Keep: keep}
	for name, m := range w.modules {
		d.Generations[name] = m.module.ID
	}
	for p, place := range points {
		d.Points[p] = place.chain
	}
	return d
}
