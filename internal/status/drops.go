// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/kerbabi"
)

// Counters are the counters of the map set that a module's packets use.
type Counters interface {
	Memory() int64                                            // of its maps, in bytes
	Events() *v1.Events                                       // nil if it sends none
	Drops() ([]uint64, error)                                 // by reason
	DropsByInterface() map[dataplane.DropKey]uint64           // of packets of services
	DropsOf([]dataplane.DropKey) map[dataplane.DropKey]uint64 // some of them
}

// Drops returns the nonzero drop counters of a module, by name of the reason.
func (nd *Node) Drops(module string) []v1.Drop {
	return nd.drops(module, nd.Owners(), func(c Counters, _ []uint64) map[dataplane.DropKey]uint64 {
		return c.DropsByInterface()
	})
}

// drops returns the nonzero drop counters of a module, and by interface those that read returns.
func (nd *Node) drops(module string, owners map[int]string,
	read func(c Counters, counts []uint64) map[dataplane.DropKey]uint64) []v1.Drop {
	c := nd.Counters(module)
	if c == nil {
		return nil
	}
	counts, err := c.Drops()
	if err != nil {
		return nil
	}
	if len(counts) == 0 || slices.Max(counts) == 0 {
		return nil
	}
	services := dropsByService(read(c, counts), owners)
	var out []v1.Drop
	for reason, n := range counts {
		if n > 0 {
			out = append(out, v1.Drop{Reason: reasonName(nd.Modules[module], reason), Packets: n, Services: services[reason]})
		}
	}
	return out
}

// dropsByService returns the drops of a module by service and reason, ordered by service name.
func dropsByService(counts map[dataplane.DropKey]uint64, owners map[int]string) map[int][]v1.ServiceDrop {
	sums := map[int]map[string]uint64{}
	for key, n := range counts {
		reason, service := int(key.Reason), owners[int(key.Ifindex)]
		if service == "" {
			continue
		}
		if sums[reason] == nil {
			sums[reason] = map[string]uint64{}
		}
		sums[reason][service] += n
	}
	out := map[int][]v1.ServiceDrop{}
	for reason, services := range sums {
		for _, name := range slices.Sorted(maps.Keys(services)) {
			out[reason] = append(out[reason], v1.ServiceDrop{Service: name, Packets: services[name]})
		}
	}
	return out
}

// Owners maps interfaces with chains to their services.
func (nd *Node) Owners() map[int]string {
	out := map[int]string{}
	for p, place := range nd.Points {
		if place.Service != "" {
			out[p.Ifindex] = place.Service
		}
	}
	return out
}

// serviceDrops returns the drops of all services, by module and reason.
func (nd *Node) serviceDrops() map[string][]v1.ModuleDrop { return nd.dropsPerService(nd.Drops) }

// dropsOf returns the drops of one service, by module and reason. It does not read counters of other interfaces.
func (nd *Node) dropsOf(service string) []v1.ModuleDrop {
	owners := nd.Owners()
	maps.DeleteFunc(owners, func(_ int, owner string) bool { return owner != service })
	return nd.dropsPerService(func(module string) []v1.Drop {
		return nd.drops(module, owners, func(c Counters, counts []uint64) map[dataplane.DropKey]uint64 {
			return c.DropsOf(keysOf(owners, counts))
		})
	})[service]
}

// keysOf returns the keys for these interfaces and all reasons for which packets were dropped.
func keysOf(interfaces map[int]string, counts []uint64) (keys []dataplane.DropKey) {
	for reason, n := range counts {
		for ifindex := range interfaces {
			if n > 0 {
				keys = append(keys, dataplane.DropKey{Ifindex: uint32(ifindex), Reason: uint32(reason)})
			}
		}
	}
	return keys
}

func (nd *Node) dropsPerService(drops func(module string) []v1.Drop) map[string][]v1.ModuleDrop {
	out := map[string][]v1.ModuleDrop{}
	for _, module := range slices.Sorted(maps.Keys(nd.Modules)) {
		for _, d := range drops(module) {
			for _, s := range d.Services {
				out[s.Service] = append(out[s.Service], v1.ModuleDrop{Module: module, Reason: d.Reason, Packets: s.Packets})
			}
		}
	}
	return out
}

// ReasonNames returns the names of drop reasons by module, for event readers that do not hold the lock of the state.
func (nd *Node) ReasonNames() func(module string, reason int) string {
	known := maps.Clone(nd.Modules)
	return func(module string, reason int) string { return reasonName(known[module], reason) }
}

// NoteNames returns the names of notes by module, like ReasonNames: a number without a name stays a number.
func (nd *Node) NoteNames() func(module string, note int) string {
	known := maps.Clone(nd.Modules)
	return func(module string, note int) string {
		name := strconv.Itoa(note)
		if d := known[module]; d != nil && d.Pkg != nil {
			name = cmp.Or(d.Pkg.Note(note), name)
		}
		return name
	}
}

// reasonName prefers the package manifest's names of its own reasons.
func reasonName(d *deploy.Module, reason int) string {
	if d != nil && d.Pkg != nil {
		if name := d.Pkg.DropReason(reason); name != "" {
			return name
		}
	}
	return kerbabi.DropReason(reason).String()
}
