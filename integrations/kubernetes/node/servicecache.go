// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/services"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

// Bits of the watched resources.
const (
	ofServices = 1 << iota
	ofSlices
)

// serviceCache has the last known Services and EndpointSlices. It is safe for concurrent use.
type serviceCache struct {
	mu           sync.Mutex
	all          map[services.Key]*serviceEntry
	dirty        map[services.Key]bool
	notServed    map[services.Key]string // Services that kube-proxy serves instead, and why
	refused      map[services.Key]string // rejected by the agent
	closedPorts  map[services.Key]string // ports without a target, whose connections are rejected
	synced       int
	total        usage
	byNamespace  map[string]usage    // by namespace
	addresses    map[netip.Addr]int  // number of Services with this cluster address
	newAddresses map[netip.Addr]bool // cluster addresses added since the last takeChanges
	changed      chan struct{}       // has a value after a change
}

// serviceEntry is a Service with its EndpointSlices, which may arrive in any order.
type serviceEntry struct {
	service  *services.Service // nil: does not exist, or is not served by the proxy
	slices   []*services.Slice // sorted by name
	omitted  map[string]usage  // slices beyond the limits, by name; the empty name is the Service itself
	reserved usage             // of the proxy's tables, as of the last takeChanges
}

// slice returns the index of a slice in the entry, or where to insert it.
func (e *serviceEntry) slice(name string) (at int, known bool) {
	return slices.BinarySearchFunc(e.slices, name, func(s *services.Slice, name string) int {
		return strings.Compare(s.Metadata.Name, name)
	})
}

// omit records that a slice, or with an empty name the Service, exceeds the limits and is not stored.
func (e *serviceEntry) omit(name string, more usage) {
	if e.omitted == nil {
		e.omitted = map[string]usage{}
	}
	e.omitted[name] = more
}

// serviceOmitted reports whether the Service itself exceeds the limits.
func (e *serviceEntry) serviceOmitted() bool { return e.omitted[""] != usage{} }

func newServiceCache() *serviceCache {
	s := &serviceCache{changed: make(chan struct{}, 1)}
	s.reset()
	return s
}

func (s *serviceCache) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all, s.dirty = map[services.Key]*serviceEntry{}, map[services.Key]bool{}
	s.notServed, s.refused, s.closedPorts = map[services.Key]string{}, nil, map[services.Key]string{}
	s.synced, s.total, s.byNamespace = 0, usage{}, map[string]usage{}
	s.addresses, s.newAddresses = map[netip.Addr]int{}, map[netip.Addr]bool{}
}

// update changes the cache, and triggers a synchronisation.
func (s *serviceCache) update(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// entry returns the entry of a Service, and marks it dirty. The caller holds mu.
func (s *serviceCache) entry(key services.Key) *serviceEntry {
	s.dirty[key] = true
	e := s.all[key]
	if e == nil {
		e = &serviceEntry{}
		s.all[key] = e
	}
	return e
}

// setService replaces the entry's Service. If it exceeds the limits, it is marked as omitted and not stored. Cluster
// addresses are counted, because two Services can name the same. The caller holds mu.
func (s *serviceCache) setService(o *services.Service) {
	s.removeService(o.Key())
	e := s.entry(o.Key())
	if !o.Wanted() {
		return
	}
	o.Compact()
	more := usageOfService(o)
	if o.Omitted > 0 || !s.fits(o.Metadata.Namespace, more) {
		e.omit("", more)
		return
	}
	s.addUsage(o.Metadata.Namespace, more)
	for _, a := range clusterAddresses(o) {
		if s.addresses[a]++; s.addresses[a] == 1 {
			s.newAddresses[a] = true
		}
	}
	o.Metadata = api.ObjectMeta{Name: o.Metadata.Name, Namespace: o.Metadata.Namespace, Created: o.Metadata.Created}
	e.service = o
}

// removeService removes the Service but keeps the entry, which may have EndpointSlices, and marks it dirty. The caller
// holds mu.
func (s *serviceCache) removeService(key services.Key) {
	e := s.entry(key)
	delete(e.omitted, "")
	if e.service == nil {
		return
	}
	s.addUsage(key.Namespace, usage{}.minus(usageOfService(e.service)))
	for _, a := range clusterAddresses(e.service) {
		if s.addresses[a]--; s.addresses[a] == 0 {
			delete(s.addresses, a)
		}
	}
	e.service = nil
}

// clusterAddresses returns the addresses that parse. The API server accepts no others.
func clusterAddresses(o *services.Service) (out []netip.Addr) {
	for _, text := range o.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

func (s *serviceCache) setSlice(o *services.Slice) {
	key, name := o.Of(), o.Metadata.Name
	s.removeSlice(key, name)
	e := s.entry(key)
	o.Compact()
	more := usageOfSlice(o)
	if o.Omitted != (services.Slice{}.Omitted) || !s.fits(key.Namespace, more) {
		e.omit(name, more)
		return
	}
	s.addUsage(key.Namespace, more)
	o.Metadata = api.ObjectMeta{Name: name}
	at, _ := e.slice(name)
	e.slices = slices.Insert(e.slices, at, o)
}

func (s *serviceCache) removeSlice(key services.Key, name string) {
	e := s.entry(key)
	delete(e.omitted, name)
	if at, known := e.slice(name); known {
		s.addUsage(key.Namespace, usage{}.minus(usageOfSlice(e.slices[at])))
		e.slices = slices.Delete(e.slices, at, at+1)
	}
}

// needsRelist reports whether an omitted Service or its omitted endpoints are now within the limits. They are not
// stored, so they have to be listed again. Services that a full list omits do not count: the next list would omit them,
// too.
func (s *serviceCache) needsRelist() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.synced != ofServices|ofSlices {
		return false
	}
	for key, e := range s.all {
		var more usage
		for _, missing := range e.omitted {
			more = more.plus(missing)
		}
		if (e.serviceOmitted() || e.service != nil && len(e.omitted) > 0) && s.fits(key.Namespace, more) &&
			s.total.plus(more.plusSlack()).withinFractionOf(1) {
			return true
		}
	}
	return false
}

// serviceHandler returns the handler of the watch of Services. Replace handles a complete list: an object that is not
// in it was deleted while the watch was interrupted.
func (s *serviceCache) serviceHandler() watch.Handler[services.Service] {
	return watch.Handler[services.Service]{Share: limitListed[services.Service](usageOfService),
		Replace: func(all []services.Service) {
			s.update(func() {
				for key := range s.all {
					s.removeService(key)
				}
				for _, o := range roundRobin(all) {
					s.setService(o)
				}
				s.synced |= ofServices
			})
		},
		Set:    func(o services.Service) { s.update(func() { s.setService(&o) }) },
		Delete: func(o services.Service) { s.update(func() { s.removeService(o.Key()) }) },
	}
}

// sliceHandler returns the handler of the watch of EndpointSlices. Replace handles a complete list, as with Services.
func (s *serviceCache) sliceHandler() watch.Handler[services.Slice] {
	return watch.Handler[services.Slice]{Share: limitListed[services.Slice](usageOfSlice),
		Replace: func(all []services.Slice) {
			s.update(func() {
				for key, e := range s.all {
					for len(e.slices) > 0 {
						s.removeSlice(key, e.slices[0].Metadata.Name)
					}
					maps.DeleteFunc(e.omitted, func(name string, _ usage) bool { return name != "" })
					s.dirty[key] = true
				}
				for _, o := range roundRobin(all) {
					s.setSlice(o)
				}
				s.synced |= ofSlices
			})
		},
		Set:    func(o services.Slice) { s.update(func() { s.setSlice(&o) }) },
		Delete: func(o services.Slice) { s.update(func() { s.removeSlice(o.Of(), o.Metadata.Name) }) },
	}
}

// takeChanges returns which of the dirty Services, or with full of all, have a virtual service, and which have none. It
// returns false until both lists are complete. The caller reads the virtual services one by one with text: thousands at
// once take more memory than the rest of the program.
func (s *serviceCache) takeChanges(node services.Node, full bool) (desired, gone []services.Key, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.synced != ofServices|ofSlices {
		return nil, nil, false
	}
	if full {
		for key := range s.all {
			s.dirty[key] = true
		}
	}
	s.markAddressConflicts()
	due := make([]api.Object, 0, len(s.dirty))
	for key := range s.dirty {
		o := api.Object{Metadata: api.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		if e := s.all[key]; e.service != nil {
			o.Metadata.Created = e.service.Metadata.Created
		}
		due = append(due, o)
	}
	for _, o := range roundRobin(due) {
		key := services.Key{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
		delete(s.notServed, key)
		delete(s.closedPorts, key)
		if _, ok := s.translate(key, node); ok {
			desired = append(desired, key)
		} else {
			gone = append(gone, key)
		}
	}
	s.dirty = map[services.Key]bool{}
	return desired, gone, true
}

// text returns the virtual service of a Service as JSON, or nil if it may no longer have one: then takeChanges returns
// it again. Changes since takeChanges are validated as there, because the agent rejects the whole request for one
// invalid element.
func (s *serviceCache) text(key services.Key, node services.Node) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.all[key]
	if e == nil || e.service == nil || len(e.omitted) > 0 {
		return nil
	}
	v, err := services.Translate(e.service, e.slices, node)
	if err != nil {
		return nil
	}
	if (s.dirty[key] || len(s.newAddresses) > 0) &&
		(s.checkLoop(v) != nil || s.reserve(key, e, usageOfVirtual(&v)) != nil) {
		return nil
	}
	text, _ := json.Marshal(v) // cannot fail
	return text
}

// translate returns the virtual service of a Service. If it has none, it returns false, and stores the reason in
// notServed.
func (s *serviceCache) translate(key services.Key, node services.Node) (v v1.VirtualService, ok bool) {
	e, err := s.all[key], error(nil)
	var next usage
	switch {
	case e.service == nil && !e.serviceOmitted(): // deleted, or not served by the proxy
		if len(e.slices)+len(e.omitted) == 0 {
			delete(s.all, key)
		}
	case len(e.omitted) > 0:
		s.notServed[key] = fmt.Sprintf("over %d Services, %d endpoints or %d ports of them, or half of them in one namespace",
			maxServices, maxEndpoints, maxStoredPorts)
	default:
		if v, err = services.Translate(e.service, e.slices, node); err == nil {
			err = s.checkLoop(v)
		}
		if ok = err == nil; ok {
			next = usageOfVirtual(&v)
		}
	}
	if full := s.reserve(key, e, next); full != nil {
		ok, err = false, full
	}
	if err != nil {
		s.notServed[key] = err.Error()
	}
	if ok {
		if text := closedPorts(e.service, v); text != "" {
			s.closedPorts[key] = text
		}
	}
	return v, ok
}

// closedPorts lists the ports of a Service that are missing in its virtual service; empty if none is.
func closedPorts(s *services.Service, v v1.VirtualService) string {
	has, out := map[string]bool{}, []string{}
	for _, p := range v.Spec.Ports {
		has[fmt.Sprint(p.Port, p.Protocol)] = true
	}
	for _, p := range s.Spec.Ports {
		if !has[fmt.Sprint(p.Port, strings.ToLower(cmp.Or(p.Protocol, "TCP")))] {
			out = append(out, fmt.Sprint(p.Port))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return joinThree(plural(len(out), "port"), out, ", ")
}

// joinThree joins at most three names, after a text.
func joinThree(text string, names []string, separator string) string {
	return text + ": " + strings.Join(names[:min(3, len(names))], separator)
}

// markAddressConflicts marks Services dirty that have an endpoint at an address that has become a cluster address.
func (s *serviceCache) markAddressConflicts() {
	if len(s.newAddresses) == 0 {
		return
	}
	for key, e := range s.all {
		for _, slice := range e.slices {
			for _, endpoint := range slice.Endpoints {
				for _, text := range endpoint.Addresses {
					if a, err := netip.ParseAddr(text); err == nil && s.newAddresses[a.Unmap()] {
						s.dirty[key] = true
					}
				}
			}
		}
	}
	clear(s.newAddresses)
}

// checkLoop returns an error if an instance is at a cluster address. The agent accepts only one of the two Services,
// and EndpointSlices of one namespace must not prevent that a Service of another is served.
func (s *serviceCache) checkLoop(v v1.VirtualService) error {
	for _, i := range v.Spec.Instances {
		for _, text := range i.Addresses {
			if a, err := netip.ParseAddr(text); err == nil && s.addresses[a.Unmap()] > 0 {
				return fmt.Errorf("the endpoint %s is a cluster address of a Service", text)
			}
		}
	}
	return nil
}

// setRefused stores the virtual services that the agent has rejected, with its reasons.
func (s *serviceCache) setRefused(refused map[services.Key]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = maps.Clone(refused)
}

// condition returns a condition that lists Services that kube-proxy serves although their owners did not ask for that,
// and those served without some port, at most three of each. It is nil until both lists are complete.
func (s *serviceCache) condition() *api.Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.synced != ofServices|ofSlices {
		return nil
	}
	var all []string
	for _, reasons := range []map[services.Key]string{s.notServed, s.refused} {
		for key, reason := range reasons {
			all = append(all, key.String()+": "+reason)
		}
	}
	var closed []string
	for key, ports := range s.closedPorts {
		closed = append(closed, key.String()+", "+ports)
	}
	slices.Sort(closed)
	more := ""
	if len(closed) > 0 {
		more = "; " + joinThree(plural(len(closed), "Service")+" with ports refused, as no endpoint has a target", closed,
			"; ")
	}
	if len(all) == 0 {
		return &api.Condition{Type: "ServicesProxied", Status: "True", Reason: "Synced",
			Message: truncate("the proxy serves all Services of the cluster that it may serve" + more)}
	}
	slices.Sort(all)
	return &api.Condition{Type: "ServicesProxied", Status: "False", Reason: "LeftToKubeProxy",
		Message: truncate(joinThree(plural(len(all), "Service")+" with kube-proxy", all, "; ") + more)}
}
