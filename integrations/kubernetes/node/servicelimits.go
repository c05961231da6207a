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

// Limits of Services: of the memory of this process, and of the proxy's tables in their default sizes. kube-proxy
// serves Services beyond them. One namespace may use at most half of each.
const (
	maxServices    = 5000
	maxEndpoints   = 20000
	maxInstances   = 12000  // of 16384: removed instances stay in the table while they have sessions
	maxSlots       = 131072 // of 262144: a replaced run stays for a second, and other virtual services have some
	maxSplitPorts  = 20000
	maxPorts       = 16000
	maxStoredPorts = 100000
)

// usage counts the limited resources.
type usage [numResources]int

const (
	useServices    = iota
	useEndpoints   // in EndpointSlices
	useStoredPorts // ports of Services and EndpointSlices: in memory, whether served or not
	useInstances
	useSlots
	useSplitPorts // ports that not all endpoints serve, each times the endpoints of its Service
	usePorts      // one for each address, and target ports that only some endpoints have
	numResources
)

var serviceLimits = [numResources]struct {
	most int
	of   string
}{
	useServices:    {maxServices, "Services"},
	useEndpoints:   {maxEndpoints, "endpoints"},
	useStoredPorts: {maxStoredPorts, "ports of Services and of their EndpointSlices"},
	useInstances:   {maxInstances, "endpoints that serve"},
	useSlots:       {maxSlots, "slots of the proxy's table, of which an address with session affinity takes 256 or more,"},
	useSplitPorts:  {maxSplitPorts, "ports that not all endpoints serve, times endpoints,"},
	usePorts:       {maxPorts, "ports, times addresses, and target ports that only some endpoints have"},
}

// lateDivisor divides the limits for a namespace whose objects follow in a list after the limits are reached.
const lateDivisor = 64

// minSplitCost is the minimum that a port counts for that not all endpoints serve: it takes an ID for each address.
const minSplitCost = 16

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

// withinFractionOf reports whether u is within the limits divided by parts.
func (u usage) withinFractionOf(parts int) bool {
	for i, n := range u {
		if n > serviceLimits[i].most/parts {
			return false
		}
	}
	return true
}

// usageOfService returns the memory that a Service takes. Services that the proxy does not serve are not stored.
func usageOfService(o *services.Service) usage {
	if !o.Wanted() {
		return usage{}
	}
	return usage{useServices: 1, useStoredPorts: max(o.Omitted, len(o.Spec.Ports))}
}

// usageOfSlice returns the memory that an EndpointSlice takes.
func usageOfSlice(o *services.Slice) usage {
	return usage{useEndpoints: o.Omitted.Endpoints + len(o.Endpoints), useStoredPorts: o.Omitted.Ports + len(o.Ports)}
}

// limitListed returns a function for Handler.Share, which applies the limits while a list is read: without it, all
// objects of the list would be in memory before any limit applies. Objects of a namespace that has reached its half of
// the limits are omitted. After the whole list has reached the limits, each namespace gets only a small part of them,
// so that namespaces late in the list get some, too. Beyond twice the limits all objects are omitted. An object listed
// again that has not grown stays.
func limitListed[T any, P interface {
	watch.Object[T]
	Compact()
	Omit()
}](of func(P) usage) func() func(P) string {
	return func() func(P) string {
		used, known := map[string]usage{}, map[string]usage{} // by namespace; by UID of the object
		var total usage
		return func(o P) string {
			o.Compact()
			m, next := o.Meta(), of(o)
			own, others := used[m.Namespace].minus(known[m.UID]), total.minus(used[m.Namespace])
			grown := next.minus(known[m.UID])
			delete(known, m.UID)
			if more := own.plus(next); slices.Max(grown[:]) <= 0 || more.fitsList(others.plus(more)) {
				own, known[m.UID] = more, next
			} else {
				o.Omit()
			}
			used[m.Namespace], total = own, others.plus(own)
			return ""
		}
	}
}

// fitsList reports whether a namespace with usage u is within its limits while a list with a total is read.
func (u usage) fitsList(total usage) bool {
	if total.withinFractionOf(1) {
		return u.withinFractionOf(2)
	}
	half := total
	for i := range half {
		half[i] /= 2
	}
	return u.withinFractionOf(lateDivisor) && half.withinFractionOf(1)
}

// usageOfVirtual returns what a virtual service takes of the proxy's tables.
func usageOfVirtual(v *v1.VirtualService) (u usage) {
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
	u[useSplitPorts] = len(split) * max(minSplitCost, len(v.Spec.Instances))
	return u
}

// plusSlack adds to the used resources what may stay unused after a list with omitted objects. The largest object takes
// less than that.
func (u usage) plusSlack() usage {
	for i := range u {
		if u[i] > 0 {
			u[i] += serviceLimits[i].most / 16
		}
	}
	return u
}

// fits reports whether more is within the limits of the cluster and of the namespace.
func (s *serviceCache) fits(namespace string, more usage) bool {
	return s.total.plus(more).withinFractionOf(1) && s.byNamespace[namespace].plus(more).withinFractionOf(2)
}

// addUsage adds to the usage of a namespace and of the cluster.
func (s *serviceCache) addUsage(namespace string, more usage) {
	s.total = s.total.plus(more)
	own := s.byNamespace[namespace].plus(more)
	if s.byNamespace[namespace] = own; own == (usage{}) {
		delete(s.byNamespace, namespace)
	}
}

// reserve replaces a Service's reservation in the proxy's tables. A Service keeps its reservation as long as it takes
// no more. The error names the exceeded limit; then nothing is reserved. The caller holds mu.
func (s *serviceCache) reserve(key services.Key, e *serviceEntry, next usage) error {
	s.addUsage(key.Namespace, usage{}.minus(e.reserved))
	e.reserved = usage{}
	for i := range next {
		var one usage
		if one[i] = next[i]; !s.fits(key.Namespace, one) {
			return fmt.Errorf("%s are over %d, or half of it in one namespace", serviceLimits[i].of, serviceLimits[i].most)
		}
	}
	s.addUsage(key.Namespace, next)
	e.reserved = next
	return nil
}

// roundRobin returns objects in the order in which they are counted against the limits: the oldest of each namespace,
// then the second of each. After a start, older objects so precede newer ones, and a namespace with many does not
// displace those with few.
func roundRobin[T any, P watch.Object[T]](all []T) []*T {
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
