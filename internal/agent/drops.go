// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/kerbabi"
)

// drops are the counters that are not zero, by name of the reason.
func (a *Agent) drops(d *deploy.Module, l *liveModule) []v1.Drop {
	counts, err := dataplane.Drops(l.maps)
	if err != nil {
		return nil
	}
	services := a.dropsByService(l)
	var out []v1.Drop
	for reason, n := range counts {
		if n > 0 {
			out = append(out, v1.Drop{Reason: reasonName(d, reason), Packets: n, Services: services[reason]})
		}
	}
	return out
}

// dropsByService are a module's drops of services, by reason, in the order of the services' names.
func (a *Agent) dropsByService(l *liveModule) map[int][]v1.ServiceDrop {
	counts, err := dataplane.IfindexDrops(l.maps)
	if err != nil {
		a.log.Warn("cannot read the drops by service", "generation", l.id, "error", err)
	}
	sums := map[int]map[string]uint64{}
	owners := a.owners()
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

// owners are the services whose interfaces run a chain, by interface.
func (a *Agent) owners() map[int]string {
	out := map[int]string{}
	for p, place := range a.points {
		if place.Service != "" {
			out[p.Ifindex] = place.Service
		}
	}
	return out
}

// serviceDrops are the drops of one service, by module and reason.
func (a *Agent) serviceDrops(service string) (out []v1.ModuleDrop) {
	for _, module := range slices.Sorted(maps.Keys(a.live)) {
		for _, d := range a.drops(a.modules[module], a.live[module]) {
			for _, s := range d.Services {
				if s.Service == service {
					out = append(out, v1.ModuleDrop{Module: module, Reason: d.Reason, Packets: s.Packets})
				}
			}
		}
	}
	return out
}

// forgetDrops forgets the drops of interfaces that belong to no service any more.
func (a *Agent) forgetDrops() {
	owners := a.owners()
	for name, l := range a.live {
		if err := dataplane.ForgetDrops(l.maps, func(ifindex int) bool { return owners[ifindex] != "" }); err != nil {
			a.log.Warn("cannot forget the drops of services that are gone", "module", name, "error", err)
		}
	}
}

// reasonName prefers the names that the package's manifest gives to its own reasons.
func reasonName(d *deploy.Module, reason int) string {
	if d != nil && d.Pkg != nil {
		if name := d.Pkg.DropReason(reason); name != "" {
			return name
		}
	}
	return kerbabi.DropReason(reason).String()
}
