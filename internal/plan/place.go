// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"maps"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/service"
)

// ServiceSides maps the sides of a service's interface to directions. On the node's end of a veth the kernel's
// directions are the opposite of the service's. XDP sees only packets that arrive at an interface.
var ServiceSides = map[chain.Side]chain.Direction{
	chain.OnXDP: chain.Egress, chain.OnTCIngress: chain.Egress, chain.OnTCEgress: chain.Ingress,
}

var interfaceSides = map[chain.Side]chain.Direction{
	chain.OnXDP: chain.Ingress, chain.OnTCIngress: chain.Ingress, chain.OnTCEgress: chain.Egress,
}

// port is an interface with its owner and the modules that select it, in order.
type port struct {
	link    service.Link
	service string
	modules []*Module
}

// Place determines the chain of every attach point. Its error is a *CycleError.
func (in Inputs) Place() (Placements, error) {
	order, err := in.order(true)
	if err != nil {
		return nil, err
	}
	onInterfaces, err := in.order(false)
	if err != nil {
		return nil, err
	}
	out := Placements{}
	for _, p := range in.ports(order) {
		sides := ServiceSides
		if p.service == "" {
			sides = interfaceSides
			p.sort(onInterfaces)
		}
		for side, dir := range sides {
			if spec := in.chainOf(p, side, dir); len(spec.Members) > 0 {
				out[chain.Point{Ifindex: p.link.Ifindex, Side: side}] = Placement{Service: p.service, Link: p.link, Chain: spec}
			}
		}
	}
	in.placeSockets(order, out)
	return out, nil
}

// chainOf returns the chain of an attach point in the order of the modules. A mirrored chain on ingress has the reverse
// order, so that replies traverse the modules in the opposite order of requests.
func (in Inputs) chainOf(p *port, side chain.Side, dir chain.Direction) chain.Spec {
	spec := chain.Spec{Linker: in.Linker, Side: side, Direction: dir, Functions: in.Functions}
	for _, m := range p.modules {
		if m.covers(p, side, dir) && m.reads(p.link) {
			spec.Members = append(spec.Members, m.Member)
		}
	}
	if dir == chain.Ingress && in.mirrored(spec) {
		slices.Reverse(spec.Members)
	}
	spec.Veth = side == chain.OnXDP && p.link.Kind == "veth" && in.Replies(spec)
	return spec
}

// mirrored reports whether packets to the service meet the modules of a chain in the opposite order of packets from it.
func (in Inputs) mirrored(spec chain.Spec) bool {
	return !slices.ContainsFunc(spec.Members, func(m chain.Member) bool {
		return in.Modules[m.Name].Resource.Spec.Order.Direction == v1.OrderSame
	})
}

// sort orders the modules as in an order of all modules.
func (p *port) sort(order []*Module) {
	slices.SortFunc(p.modules, func(a, b *Module) int {
		return cmp.Compare(slices.Index(order, a), slices.Index(order, b))
	})
}

// Replies reports whether a module of the chain answers packets.
func (in Inputs) Replies(spec chain.Spec) bool {
	return slices.ContainsFunc(spec.Members, func(m chain.Member) bool {
		module := in.Modules[m.Name]
		return module != nil && module.Replies
	})
}

// ports lists the interfaces that modules select. An interface of a service belongs to it even if it is listed by name.
func (in Inputs) ports(order []*Module) []*port {
	byIndex := map[int]*port{}
	for _, name := range slices.Sorted(maps.Keys(in.Observed.Services)) {
		for _, l := range in.Observed.Services[name].Links {
			if in.Observed.Owners[l.Ifindex] == name {
				byIndex[l.Ifindex] = &port{link: l, service: name}
			}
		}
	}
	for _, m := range order {
		for _, p := range byIndex {
			if p.service != "" && m.Selector.Matches(in.labels(p.service)) {
				p.modules = append(p.modules, m)
			}
		}
		for _, name := range m.Resource.Spec.Attach.Interfaces {
			in.addInterface(byIndex, name, m)
		}
	}
	return slices.Collect(maps.Values(byIndex))
}

func (in Inputs) addInterface(byIndex map[int]*port, name string, m *Module) {
	l, ok := in.Observed.Interfaces[name]
	if !ok {
		return // it may come later
	}
	p := byIndex[l.Ifindex]
	if p == nil {
		p = &port{link: l}
		byIndex[l.Ifindex] = p
	}
	if !slices.Contains(p.modules, m) {
		p.modules = append(p.modules, m)
	}
}

// Hook returns the hook for the module on an attach point. Services carry TCP, whose large packets native XDP on a veth
// would segment, so that auto means TC for them; on interfaces of the node it is the first hook in the package's list.
// On a veth, native XDP has no room for replies that are longer than their requests: there auto means TC for modules
// with such replies.
func (m *Module) Hook(isService bool, kind string) chain.Hook {
	if m.CannotRun {
		return chain.TC
	}
	if h := m.Resource.Spec.Hook; h == v1.HookXDP || h == v1.HookTC {
		return chain.Hook(h)
	}
	if tc := isService || kind == "veth" && m.LongReplies; tc && slices.Contains(m.Hooks, chain.TC) {
		return chain.TC
	}
	return m.Hooks[0]
}

// covers reports whether the module has work on a side of an attach point. A module that cannot run and fails closed
// drops packets there.
func (m *Module) covers(p *port, side chain.Side, dir chain.Direction) bool {
	isService := p.service != ""
	if m.Hook(isService, p.link.Kind) != side.Hook() {
		return false
	}
	if m.CannotRun {
		return m.Member.FailClosed
	}
	wanted := m.OnInterfaces
	if isService {
		wanted = m.OnServices
	}
	return m.Entries[side.Hook()][dir] && (len(wanted) == 0 || slices.Contains(wanted, dir)) &&
		!slices.Contains(m.Idle, dir)
}
