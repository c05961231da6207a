// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/service"
)

// mostReady is the number of chains that are linked before a service needs them. Each takes kernel memory.
const mostReady = 8

// ethernetType is ARPHRD_ETHER.
const ethernetType = 1

// Ready lists chains for future services: those that the first service will need of modules that select none now. They
// are linked in advance. The service is assumed to be behind a veth, and to have exactly the labels of the selector.
// The error is a *CycleError.
func (in Inputs) Ready(placed Placements) ([]chain.Spec, error) {
	order, err := in.order(true)
	if err != nil {
		return nil, err
	}
	waiting := maps.Clone(in.Modules)
	for _, at := range placed {
		if at.Service == "" {
			continue
		}
		for _, m := range at.Chain.Members {
			delete(waiting, m.Name)
		}
	}
	var out []chain.Spec
	known := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(waiting)) {
		labels, ok := waiting[name].Selector.Example()
		if !ok || waiting[name].CannotRun {
			continue
		}
		for _, spec := range in.chainsFor(order, labels) {
			if id := spec.ID(); !known[id] && len(out) < mostReady {
				known[id] = true
				out = append(out, spec)
			}
		}
	}
	return out, nil
}

// chainsFor returns the chains of a service with these labels behind a veth.
func (in Inputs) chainsFor(order []*Module, labels map[string]string) (out []chain.Spec) {
	p := &port{link: service.Link{Kind: "veth", Type: ethernetType}, service: "a service that may come"}
	for _, m := range order {
		if m.Selector.Matches(labels) {
			p.modules = append(p.modules, m)
		}
	}
	for _, side := range slices.Sorted(maps.Keys(ServiceSides)) {
		if spec := in.chainOf(p, side, ServiceSides[side]); len(spec.Members) > 0 {
			out = append(out, spec)
		}
	}
	return out
}
