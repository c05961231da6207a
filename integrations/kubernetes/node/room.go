// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/services"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

// What Services may take: of the memory of this process, and of the proxy's tables in their default sizes. Services
// beyond it stay with kube-proxy. A namespace has at most half of it.
const (
	maxServices  = 5000
	maxEndpoints = 20000
	maxInstances = 12000  // of 16384: those that are gone stay in the table while they have sessions
	maxSlots     = 131072 // of 262144: a run that is replaced stays for a second, and other virtual services have some
	maxSplit     = 20000
	maxPorts     = 16000
	maxListed    = 100000
)

// usage is what takes room.
type usage [uses]int

const (
	useServices  = iota
	useEndpoints // of slices
	useListed    // ports of Services and of slices: they are in memory, served or not
	useInstances
	useSlots
	useSplit // ports that not all endpoints serve, each times the endpoints of its Service
	usePorts // one for each address, and target ports that only some endpoints have
	uses
)

var room = [uses]struct {
	most int
	of   string
}{
	useServices:  {maxServices, "Services"},
	useEndpoints: {maxEndpoints, "endpoints"},
	useListed:    {maxListed, "ports of Services and of their EndpointSlices"},
	useInstances: {maxInstances, "endpoints that serve"},
	useSlots:     {maxSlots, "slots of the proxy's table, of which an address with session affinity takes 256 or more,"},
	useSplit:     {maxSplit, "ports that not all endpoints serve, times endpoints,"},
	usePorts:     {maxPorts, "ports, times addresses, and target ports that only some endpoints have"},
}

// lateParts is what the limits are divided by for a namespace whose objects come when a list has reached the limits.
const lateParts = 64

// minSplit is what a port that not all endpoints serve counts for at least: it takes an ID for each address.
const minSplit = 16

func (u usage) plus(o usage) usage {
	for i := range u {
		u[i] += o[i]
	}
	return u
}

func (u usage) minus(o usage) usage {
	for i := range u {
		u[i] -= o[i]
	}
	return u
}

// within reports whether u is within the limits divided by a number.
func (u usage) within(parts int) bool {
	for i, n := range u {
		if n > room[i].most/parts {
			return false
		}
	}
	return true
}

// ofService returns what a Service takes of the memory. One that is not wanted is not kept.
func ofService(o *services.Service) usage {
	if !o.Wanted() {
		return usage{}
	}
	return usage{useServices: 1, useListed: max(o.Omitted, len(o.Spec.Ports))}
}

// ofSlice returns what an EndpointSlice takes of the memory.
func ofSlice(o *services.Slice) usage {
	return usage{useEndpoints: o.Omitted.Endpoints + len(o.Endpoints), useListed: o.Omitted.Ports + len(o.Ports)}
}

// omitting is for Handler.Share: the objects of a list are in memory together before any of them finds that there is no
// room. Those of a namespace that has its half of the limits already are omitted. Once the list as a whole has reached
// the limits, a namespace gets a small part of them only, so that those that come late in the list get some too, and
// beyond twice the limits everything is omitted. A listed object that has not grown stays.
func omitting[T any, P interface {
	watch.Object[T]
	Compact()
	Omit()
}](of func(P) usage) func() func(P) string {
	return func() func(P) string {
		used, known := map[string]usage{}, map[string]usage{} // by namespace, and of objects by UID
		var total usage
		return func(o P) string {
			o.Compact()
			m, next := o.Meta(), of(o)
			own, others := used[m.Namespace].minus(known[m.UID]), total.minus(used[m.Namespace])
			grown := next.minus(known[m.UID])
			delete(known, m.UID)
			if more := own.plus(next); slices.Max(grown[:]) <= 0 || more.listable(others.plus(more)) {
				own, known[m.UID] = more, next
			} else {
				o.Omit()
			}
			used[m.Namespace], total = own, others.plus(own)
			return ""
		}
	}
}

// listable reports whether a namespace that uses u is within its limits while a list with a total is read.
func (u usage) listable(total usage) bool {
	if total.within(1) {
		return u.within(2)
	}
	half := total
	for i := range half {
		half[i] /= 2
	}
	return u.within(lateParts) && half.within(1)
}

// usageOf returns what a virtual service takes of the proxy's tables.
func usageOf(v *v1.VirtualService) (u usage) {
	type port struct {
		number   uint16
		protocol v1.Protocol
	}
	split := map[port]bool{}
	u[usePorts] = len(v.Spec.Ports) * len(v.Spec.Addresses)
	for _, i := range v.Spec.Instances {
		u[usePorts] += len(i.TargetPorts)
		for _, p := range i.ExcludedPorts {
			split[port{p.Port, p.Protocol}] = true
		}
	}
	u[useInstances], u[useSlots] = len(v.Spec.Instances), services.Slots(v)
	u[useSplit] = len(split) * max(minSplit, len(v.Spec.Instances))
	return u
}

// plusRest returns usage with the room that may remain unused after a list that had to omit objects: the largest object
// takes less.
func (u usage) plusRest() usage {
	for i := range u {
		if u[i] > 0 {
			u[i] += room[i].most / 16
		}
	}
	return u
}

// fits reports whether there is room for more in the cluster, and in a namespace.
func (s *serviceState) fits(namespace string, more usage) bool {
	return s.total.plus(more).within(1) && s.usage[namespace].plus(more).within(2)
}

// add changes what a namespace uses.
func (s *serviceState) add(namespace string, more usage) {
	s.total = s.total.plus(more)
	own := s.usage[namespace].plus(more)
	if s.usage[namespace] = own; own == (usage{}) {
		delete(s.usage, namespace)
	}
}

// reserve counts what a Service takes of the proxy's tables, in place of what it took before.
// The Service keeps what it has as long as it takes no more. The caller holds mu.
func (s *serviceState) reserve(key services.Key, e *serviceEntry, next usage) error {
	s.add(key.Namespace, usage{}.minus(e.reserved))
	e.reserved = usage{}
	for i := range next {
		var one usage
		if one[i] = next[i]; !s.fits(key.Namespace, one) {
			return fmt.Errorf("%s are over %d, or half of it in one namespace", room[i].of, room[i].most)
		}
	}
	s.add(key.Namespace, next)
	e.reserved = next
	return nil
}

// inTurn returns what takes room in the order in which it gets some: the oldest of each namespace, then the second of
// each. After a start, when none has room yet, older ones come before later ones, and namespaces with many leave room
// to those with few.
func inTurn[T any, P watch.Object[T]](all []T) []*T {
	sorted := make([]*T, 0, len(all))
	for i := range all {
		sorted = append(sorted, &all[i])
	}
	slices.SortFunc(sorted, func(x, y *T) int {
		a, b := P(x).Meta(), P(y).Meta()
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Created, b.Created),
			strings.Compare(a.Name, b.Name))
	})
	var groups [][]*T
	for from, to := 0, 1; to <= len(sorted); to++ {
		if to == len(sorted) || P(sorted[to]).Meta().Namespace != P(sorted[from]).Meta().Namespace {
			groups, from = append(groups, sorted[from:to]), to
		}
	}
	out := make([]*T, 0, len(all))
	for len(groups) > 0 {
		rest := groups[:0]
		for _, g := range groups {
			if out = append(out, g[0]); len(g) > 1 {
				rest = append(rest, g[1:])
			}
		}
		groups = rest
	}
	return out
}
