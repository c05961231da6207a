// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/service"
)

// ServiceView returns a function that adds the status to a service, as in lists. Data for all services is read once.
// programs are the kernel's ids of running chains.
func (nd *Node) ServiceView(programs map[chain.Point]uint32) func(v1.Service) v1.Service {
	drops, sockets := nd.serviceDrops(), nd.serviceSockets()
	return func(s v1.Service) v1.Service {
		name := s.Metadata.Name
		return nd.serviceStatus(s, programs, v1.ServiceStatus{Sockets: sockets[name], Drops: drops[name]})
	}
}

// ServiceDetail adds the status to one service, and reads only its data from the kernel.
func (nd *Node) ServiceDetail(s v1.Service, programs map[chain.Point]uint32) v1.Service {
	name := s.Metadata.Name
	return nd.serviceStatus(s, programs, v1.ServiceStatus{Sockets: nd.serviceSockets()[name], Drops: nd.dropsOf(name)})
}

// ServicePoints returns the attach points of a service that have chains of packets.
func (nd *Node) ServicePoints(name string) (out []chain.Point) {
	for _, l := range nd.Services[name].Links {
		for side := range plan.ServiceSides {
			p := chain.Point{Ifindex: l.Ifindex, Side: side}
			if _, ok := nd.Points[p]; ok {
				out = append(out, p)
			}
		}
	}
	return out
}

// serviceSockets returns the modules on the sockets of all services.
func (nd *Node) serviceSockets() map[string][]string {
	out := map[string][]string{}
	for _, p := range nd.Points.Sorted() {
		for _, a := range nd.Points[p].Attachments {
			if all := out[a.Service]; a.Service != "" && !slices.Contains(all, p.Module) {
				out[a.Service] = append(all, p.Module)
			}
		}
	}
	return out
}

func (nd *Node) serviceStatus(s v1.Service, programs map[chain.Point]uint32, known v1.ServiceStatus) v1.Service {
	state := nd.Services[s.Metadata.Name]
	s.Status = &known
	s.Status.Conditions = nd.RecordService(s, state)
	for _, addr := range state.Addresses {
		s.Status.Addresses = append(s.Status.Addresses, addr.String())
	}
	for _, l := range state.Links {
		link := v1.ServiceLink{Interface: l.Name, Ifindex: l.Ifindex, Peer: l.Peer, MTU: l.MTU, Moved: l.Left}
		for _, side := range []chain.Side{chain.OnXDP, chain.OnTCIngress, chain.OnTCEgress} {
			p := chain.Point{Ifindex: l.Ifindex, Side: side}
			if place, ok := nd.Points[p]; ok {
				link.Hooks = append(link.Hooks, nd.hookState(p, place, programs[p]))
			}
		}
		s.Status.Links = append(s.Status.Links, link)
	}
	return s
}

// AddPrograms adds the foreign programs on a service's hooks: lists omit them, because the kernel is queried for each
// hook.
func (nd *Node) AddPrograms(s *v1.Service) {
	for _, l := range s.Status.Links {
		for i, h := range l.Hooks {
			l.Hooks[i].Programs = nd.Programs(chain.Point{Ifindex: l.Ifindex, Side: chain.Side(h.Hook)})
		}
	}
}

func (nd *Node) hookState(p chain.Point, place plan.Placement, program uint32) v1.HookState {
	h := v1.HookState{Hook: string(p.Side), Mode: nd.Mode(p), Chain: place.Chain.ID(), Program: program}
	for _, m := range place.Chain.Members {
		h.Modules = append(h.Modules, m.Name)
	}
	return h
}

// serviceReady returns the condition Ready. A service whose process runs and whose veth does not exist yet is
// NoInterface: CNI plugins create it a moment later.
func serviceReady(state service.State) v1.Condition {
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

// movedConditions returns a condition only for services whose interfaces have left the registered network namespace.
func movedConditions(state service.State) []v1.Condition {
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
		Message: fmt.Sprintf("the veth peer of %s is no longer in the registered network namespace; its chain stays "+
			"attached until the interface or the service is deleted",
			strings.Join(names, ", "))}}
}

// Chain returns a chain with its attach points.
func (nd *Node) Chain(c chain.Pinned, points []chain.Attached) v1.Chain {
	cost := apply.ChainCost(c.Spec, func(module string) apply.Measured { return nd.CostOf(nd.Modules[module]) })
	view := v1.Chain{Cost: cost, ID: c.ID, Hook: string(c.Spec.Side), Direction: string(c.Spec.Direction),
		Program: uint32(c.Program), Parts: c.Parts}
	for _, m := range c.Spec.Members {
		view.Modules = append(view.Modules, m.Name)
	}
	for _, p := range points {
		if !slices.Contains(c.Programs(), p.Program) {
			continue
		}
		place := nd.Points[p.Point]
		if !p.Point.Side.SeesPackets() {
			view.Points = append(view.Points, socketAttachments(place)...)
			continue
		}
		i := attachment(p.Point, place, 0)
		i.Chain, i.Direction = c.ID, view.Direction
		view.Points = append(view.Points, i)
	}
	return view
}
