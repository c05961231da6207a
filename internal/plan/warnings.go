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

// Ranks of modules that take packets off the chain, so that those behind do not see them: packets to the service below
// takesInward, packets from it from takesOutward on.
const (
	takesInward  = 30
	takesOutward = 50
)

// Rank returns the rank of a module's package on interfaces of services or of the node.
type Rank func(module string, service bool) int

// takesBefore reports whether a module takes packets off a chain that the next one should have seen.
func takesBefore(first, next int, dir chain.Direction) bool {
	if dir == chain.Ingress {
		return first < takesInward && first < next
	}
	return first >= takesOutward && first > next
}

// Shadowed explains, by module, which modules miss packets, because a module that takes packets off the chain comes before them.
// By their rank such modules come last: only the operator's order moves them forward.
func Shadowed(placed Placements, rank Rank) map[string]string {
	out := map[string]string{}
	for _, p := range placed.Sorted() {
		at := placed[p]
		for i, second := range at.Chain.Members {
			for _, first := range at.Chain.Members[:i] {
				if onService := at.Service != ""; takesBefore(rank(first.Name, onService), rank(second.Name, onService), at.Chain.Direction) {
					out[second.Name] = fmt.Sprintf("%s runs before it on %s (%s) and takes packets off the chain, "+
						"so this module does not see them: change order.priority so that it comes first",
						first.Name, cmp.Or(at.Service, at.Link.Name), at.Chain.Direction)
				}
			}
		}
	}
	return out
}

// Frames of a link type that a module does not know look to it like Ethernet with odd addresses: a firewall would find no IP
// in them and let them pass. So a module meets only packets of interfaces that it reads.

// reads reports whether the module can read an interface's frames. One that cannot run is there to drop packets, if at all.
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
	return fmt.Sprintf("cannot read the frames of %s, and does not meet them: with this config it reads the link types %v",
		strings.Join(names, ", "), m.LinkTypes)
}

// Warnings are for the client of a change.
func (in Inputs) Warnings(placed Placements) (out []string) {
	shadowed := Shadowed(placed, in.rank)
	for _, name := range slices.Sorted(maps.Keys(shadowed)) {
		out = append(out, "Module "+name+": "+shadowed[name])
	}
	for _, name := range slices.Sorted(maps.Keys(in.Modules)) {
		if text := in.Modules[name].Unreadable(in.Observed.Interfaces); text != "" {
			out = append(out, "Module "+name+": "+text)
		}
	}
	return out
}
