// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
)

// Replies of instances may be lost in packet filters that meet packets to a client before the module that translates
// addresses, such as a firewall before the proxy. If the translating module of this node does not run on the instance,
// the filter sees the reply with the instance's own address. It knows no such connection if it meets the client's
// packets before they are translated (order.direction: same). If it meets them after that, it knows no connection of
// instances on which the translating module does run, whose replies arrive with the virtual address. By default the
// translating module comes first; where the operator has changed the order, there is a warning. A filter that tracks no
// connections and allows the addresses of instances instead, as that order requires, drops their replies in the default
// order, where they have the virtual address.

// LostReplies explains, by module, which replies of instances a module drops before another module of the same service
// rewrites them to their virtual address.
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
		local, text := servicesOf(placed, translator.Member.Name), ""
		switch {
		case position(place.Chain, translator) < position(place.Chain, filter):
			text = filter.dropsTranslated(virtual, local, place.Service, translator)
		case in.mirrored(place.Chain):
			text = filter.dropsLocal(virtual, local, place.Service, translator)
		default:
			text = filter.dropsUntranslated(virtual, local, place.Service, translator)
		}
		if text != "" {
			out[filter.Member.Name], out[translator.Member.Name] = text, text
		}
	}
	return out
}

// dropsUntranslated explains which replies the module drops because they still have the address of their instance.
func (m *Module) dropsUntranslated(virtual []v1.VirtualService, local map[string]bool,
	service string, translator *Module) string {
	for _, s := range virtual {
		if instance, addr := farInstance(s, local, func(a netip.Addr) bool { return !m.admits(a) }); instance != "" {
			return fmt.Sprintf("on service %s, module %s drops the replies of instance %s (%s), "+
				"which has no module %s on this node, to virtual addresses: packets to the service meet it before %[5]s; "+
				"remove order.direction, or %[6]s in %[2]s",
				service, m.Member.Name, instance, addr, translator.Member.Name, m.Inbound.Advice)
		}
	}
	return ""
}

// dropsLocal explains which replies the module drops because it sees packets to an instance of this node with the
// instance's address, after the translator, but replies with the virtual address, which the instance's translator has
// restored.
func (m *Module) dropsLocal(virtual []v1.VirtualService, local map[string]bool,
	service string, translator *Module) string {
	for _, s := range virtual {
		address := m.denied(s)
		if s.Status == nil || !address.IsValid() {
			continue
		}
		i := slices.IndexFunc(s.Status.Instances, func(i v1.VirtualInstanceStatus) bool { return local[i.Service] })
		if i >= 0 {
			return fmt.Sprintf("on service %s, module %s drops the replies of instance %s/%s: "+
				"it is farther from the service than %s, and so meets packets to the instance with its own address, "+
				"but replies with the virtual address %s; "+
				"give %[2]s an order.priority that is not above that of %[5]s, or %[7]s in %[2]s",
				service, m.Member.Name, s.Metadata.Name, s.Status.Instances[i].Name, translator.Member.Name, address,
				m.Inbound.Advice)
		}
	}
	return ""
}

// denied returns a virtual address from which the module does not pass all packets.
func (m *Module) denied(s v1.VirtualService) netip.Addr {
	for _, a := range s.Spec.Addresses {
		if at, err := netip.ParseAddr(a.Address); err == nil && !m.admits(at) {
			return at
		}
	}
	return netip.Addr{}
}

// dropsTranslated explains which replies the module drops because they have a virtual address, while the operator has
// allowed the addresses of instances.
func (m *Module) dropsTranslated(virtual []v1.VirtualService, local map[string]bool,
	service string, translator *Module) string {
	for _, s := range virtual {
		address := m.denied(s)
		if !address.IsValid() {
			continue
		}
		allowed := func(a netip.Addr) bool { return a.Is4() == address.Is4() && m.admits(a) }
		if instance, addr := farInstance(s, local, allowed); instance != "" {
			return fmt.Sprintf("on service %s, module %s allows the address of instance %s (%s), "+
				"but drops its replies: packets to the service meet %s first, which gives them the virtual address %s; "+
				"in %[2]s remove the rule for the instance and enable connection tracking (state), "+
				"or allow the virtual address as src",
				service, m.Member.Name, instance, addr, translator.Member.Name, address)
		}
	}
	return ""
}

func position(c chain.Spec, m *Module) int {
	return slices.IndexFunc(c.Members, func(one chain.Member) bool { return one.Name == m.Member.Name })
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

// farInstance returns an instance of a virtual service that is not a local service and has an address for which is
// holds.
func farInstance(s v1.VirtualService, local map[string]bool,
	is func(netip.Addr) bool) (instance string, addr netip.Addr) {
	if s.Status == nil {
		return "", addr
	}
	for _, i := range s.Status.Instances {
		for _, text := range i.Addresses {
			if at, err := netip.ParseAddr(text); err == nil && !local[i.Service] && is(at) {
				return s.Metadata.Name + "/" + i.Name, at
			}
		}
	}
	return "", addr
}

func (m *Module) admits(a netip.Addr) bool {
	return slices.ContainsFunc(m.Inbound.Sources, func(p netip.Prefix) bool { return p.Contains(a) })
}
