// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/service"
)

// Ranks of modules that take packets off the chain, so that subsequent modules do not see them: packets to the service
// below takesInward, packets from it at takesOutward or above.
const (
	takesInward  = 30
	takesOutward = 50
)

// takesBefore reports whether the first module takes packets off a chain that the next one should have seen.
func (in Inputs) takesBefore(first, next string, at Placement) bool {
	near, far := in.rank(first, at.Service != ""), in.rank(next, at.Service != "")
	if at.Chain.Direction == chain.Ingress {
		return near < takesInward && near < far || in.replies(first) && in.filters(next)
	}
	return near >= takesOutward && near > far && !in.defers(first, at.Chain.Side)
}

// defers reports whether subsequent modules see the packets that this one redirects.
func (in Inputs) defers(module string, side chain.Side) bool {
	m := in.Modules[module]
	return m != nil && m.DeferredRedirect && side.Hook() == chain.TC
}

func (in Inputs) replies(module string) bool {
	m := in.Modules[module]
	return m != nil && m.Replies
}

// filters reports whether a module filters packets to services.
func (in Inputs) filters(module string) bool {
	m := in.Modules[module]
	return m != nil && m.Inbound != nil
}

// Shadowed explains, by module, which modules miss packets because a preceding module takes them off the chain. By
// their rank such modules come last: only the operator's order moves them forward.
func (in Inputs) Shadowed(placed Placements) map[string]string {
	out := map[string]string{}
	for _, p := range placed.Sorted() {
		at := placed[p]
		for i, second := range at.Chain.Members {
			for _, first := range at.Chain.Members[:i] {
				if in.takesBefore(first.Name, second.Name, at) {
					out[second.Name] = at.shadow(first.Name, "change order.priority so that it comes first")
				}
			}
			if first := in.takesOnXDP(placed, p, second.Name); first != "" {
				out[second.Name] = at.shadow(first, "XDP comes before TC, whatever the order; set hook: tc for "+first)
			}
		}
	}
	return out
}

// takesOnXDP returns a module that takes packets on XDP which a filter on TC of the same interface should have
// evaluated; empty if there is none.
func (in Inputs) takesOnXDP(placed Placements, p chain.Point, filter string) string {
	if p.Side != chain.OnTCIngress || !in.filters(filter) {
		return ""
	}
	at := placed[chain.Point{Ifindex: p.Ifindex, Side: chain.OnXDP}]
	i := slices.IndexFunc(at.Chain.Members, func(first chain.Member) bool {
		return in.takesBefore(first.Name, filter, at)
	})
	if i < 0 {
		return ""
	}
	return at.Chain.Members[i].Name
}

func (at Placement) shadow(first, advice string) string {
	return fmt.Sprintf("%s runs before it on %s (%s) and takes packets off the chain, "+
		"so this module does not see them: %s",
		first, cmp.Or(at.Service, at.Link.Name), at.Chain.Direction, advice)
}

// A module that does not know the link type of frames takes them for Ethernet with odd addresses: a firewall would find
// no IP and pass them. So a module gets only packets of interfaces that it can read.

// reads reports whether the module can read an interface's frames. A module that cannot run can at most drop packets.
func (m *Module) reads(l service.Link) bool {
	return m.CannotRun || slices.Contains(m.LinkTypes, l.LinkType())
}

// Unreadable names the interfaces that a module lists and cannot read; empty if there are none.
func (m *Module) Unreadable(interfaces map[string]service.Link) string {
	if m.CannotRun {
		return ""
	}
	var names []string
	for _, name := range m.Resource.Spec.Attach.Interfaces {
		if l, ok := interfaces[name]; ok && !m.reads(l) {
			names = append(names, fmt.Sprintf("%s (%s)", name, l.LinkType()))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("cannot read the frames of %s, and is not attached there: with this config it reads the link "+
		"types %v", strings.Join(names, ", "), m.LinkTypes)
}

// Warnings are for the client of a change.
func (in Inputs) Warnings(placed Placements) (out []string) {
	shadowed := in.Shadowed(placed)
	for _, name := range slices.Sorted(maps.Keys(shadowed)) {
		out = append(out, "Module "+name+": "+shadowed[name])
	}
	for _, name := range slices.Sorted(maps.Keys(in.Modules)) {
		if text := in.Modules[name].Unreadable(in.Observed.Interfaces); text != "" {
			out = append(out, "Module "+name+": "+text)
		}
		if text := in.unseen(in.Modules[name]); text != "" {
			out = append(out, "Module "+name+": "+text)
		}
	}
	return out
}

// unseen explains why a module on sockets runs on none of other containers; empty if it does.
func (in Inputs) unseen(m *Module) string {
	if s := in.Observed.Sockets; m.Sockets && s != nil && s.View != nil {
		return s.View.Error()
	}
	return ""
}
