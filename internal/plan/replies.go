// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
)

// A packet filter and a module that translates addresses, such as firewall and proxy, meet packets of one client in the
// same order in both directions. The filter tracks a connection to the virtual address, and the reply of an instance that
// this node's translating module does not run on arrives with the instance's own address: the filter knows no such
// connection. Until chains are mirrored, the operator is warned.

// LostReplies explains, by module, which replies of instances a module drops before another module of the same service
// gives them their virtual address.
func (in Inputs) LostReplies(placed Placements, virtual []v1.VirtualService) map[string]string {
	out := map[string]string{}
	for _, p := range placed.Sorted() {
		place := placed[p]
		if place.Service == "" || place.Chain.Direction != chain.Ingress {
			continue
		}
		filter := in.member(place.Chain, func(m *Module) bool { return m.Inbound != nil })
		translator := in.member(place.Chain, func(m *Module) bool { return m.TranslatesReplies })
		if filter == nil || translator == nil {
			continue
		}
		instance, addr := filter.drops(virtual, servicesOf(placed, translator.Member.Name))
		if instance == "" {
			continue
		}
		text := fmt.Sprintf("on service %s, module %s drops the replies of instance %s (%s), which has no module %s on this node, "+
			"to virtual addresses: %s in %[2]s, or remove one of the two modules from the service",
			place.Service, filter.Member.Name, instance, addr, translator.Member.Name, filter.Inbound.Advice)
		out[filter.Member.Name], out[translator.Member.Name] = text, text
	}
	return out
}

// member returns the first module of a chain for which is holds, nil if there is none.
func (in Inputs) member(c chain.Spec, is func(*Module) bool) *Module {
	for _, m := range c.Members {
		if one := in.Modules[m.Name]; one != nil && !one.CannotRun && is(one) {
			return one
		}
	}
	return nil
}

// servicesOf returns the services that a module runs on.
func servicesOf(placed Placements, module string) map[string]bool {
	out := map[string]bool{}
	for _, place := range placed {
		if slices.ContainsFunc(place.Chain.Members, func(m chain.Member) bool { return m.Name == module }) {
			out[place.Service] = true
		}
	}
	return out
}

// drops returns an instance of a virtual service that is none of the local services, and whose packets the module drops.
func (m *Module) drops(virtual []v1.VirtualService, local map[string]bool) (instance string, addr netip.Addr) {
	for _, s := range virtual {
		if s.Status == nil {
			continue
		}
		for _, i := range s.Status.Instances {
			for _, text := range i.Addresses {
				if at, err := netip.ParseAddr(text); err == nil && !local[i.Service] && !m.admits(at) {
					return s.Metadata.Name + "/" + i.Name, at
				}
			}
		}
	}
	return "", addr
}

func (m *Module) admits(a netip.Addr) bool {
	return slices.ContainsFunc(m.Inbound.Sources, func(p netip.Prefix) bool { return p.Contains(a) })
}
