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

// The resources that are followed.
const (
	ofServices = 1 << iota
	ofSlices
)

// serviceState is the last known state of Services. It is safe for concurrent use.
type serviceState struct {
	mu        sync.Mutex
	all       map[services.Key]*serviceEntry
	dirty     map[services.Key]bool
	kept      map[services.Key]string // Services that stay with kube-proxy, and why
	refused   map[services.Key]string // by the agent
	closed    map[services.Key]string // ports without a target, which are refused
	synced    int
	total     usage
	usage     map[string]usage    // by namespace
	addresses map[netip.Addr]int  // how many Services have it as a cluster address
	fresh     map[netip.Addr]bool // those that have come since take
	changed   chan struct{}       // has a value after a change
}

// serviceEntry is a Service with its EndpointSlices, which may arrive in any order.
type serviceEntry struct {
	service  *services.Service // nil: none, or one that is not wanted
	slices   []*services.Slice // by name
	missing  map[string]usage  // slices that there was no room for, by name; the empty name is the Service itself
	reserved usage             // of the proxy's tables, as take found it
}

// slice returns where a slice is among those of the entry, or would be.
func (e *serviceEntry) slice(name string) (at int, known bool) {
	return slices.BinarySearchFunc(e.slices, name, func(s *services.Slice, name string) int {
		return strings.Compare(s.Metadata.Name, name)
	})
}

// miss notes that there was no room for a slice, or with an empty name for the Service.
func (e *serviceEntry) miss(name string, more usage) {
	if e.missing == nil {
		e.missing = map[string]usage{}
	}
	e.missing[name] = more
}

// noRoom reports whether there was no room for the Service itself.
func (e *serviceEntry) noRoom() bool { return e.missing[""] != usage{} }

func newServiceState() *serviceState {
	s := &serviceState{changed: make(chan struct{}, 1)}
	s.clear()
	return s
}

func (s *serviceState) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all, s.dirty = map[services.Key]*serviceEntry{}, map[services.Key]bool{}
	s.kept, s.refused, s.closed = map[services.Key]string{}, nil, map[services.Key]string{}
	s.synced, s.total, s.usage = 0, usage{}, map[string]usage{}
	s.addresses, s.fresh = map[netip.Addr]int{}, map[netip.Addr]bool{}
}

// update changes one entry, and wakes the synchronization.
func (s *serviceState) update(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// entry returns the entry of a Service, whose virtual service has to be compared.
func (s *serviceState) entry(key services.Key) *serviceEntry {
	s.dirty[key] = true
	e := s.all[key]
	if e == nil {
		e = &serviceEntry{}
		s.all[key] = e
	}
	return e
}

// setService replaces the entry's Service. If it exceeds the namespace's limits, it is marked and left out. Cluster
// addresses are counted, because two Services can name the same. The caller holds mu.
func (s *serviceState) setService(o *services.Service) {
	s.removeService(o.Key())
	e := s.entry(o.Key())
	if !o.Wanted() {
		return
	}
	o.Compact()
	more := ofService(o)
	if o.Omitted > 0 || !s.fits(o.Metadata.Namespace, more) {
		e.miss("", more)
		return
	}
	s.add(o.Metadata.Namespace, more)
	for _, a := range clusterAddresses(o) {
		if s.addresses[a]++; s.addresses[a] == 1 {
			s.fresh[a] = true
		}
	}
	o.Metadata = api.ObjectMeta{Name: o.Metadata.Name, Namespace: o.Metadata.Namespace, Created: o.Metadata.Created}
	e.service = o
}

// removeService removes the Service but keeps the entry, which may have EndpointSlices, and marks it for comparison.
// The caller holds mu.
func (s *serviceState) removeService(key services.Key) {
	e := s.entry(key)
	delete(e.missing, "")
	if e.service == nil {
		return
	}
	s.add(key.Namespace, usage{}.minus(ofService(e.service)))
	for _, a := range clusterAddresses(e.service) {
		if s.addresses[a]--; s.addresses[a] == 0 {
			delete(s.addresses, a)
		}
	}
	e.service = nil
}

// clusterAddresses are those that parse. The API server accepts no others.
func clusterAddresses(o *services.Service) (out []netip.Addr) {
	for _, text := range o.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

func (s *serviceState) setSlice(o *services.Slice) {
	key, name := o.Of(), o.Metadata.Name
	s.removeSlice(key, name)
	e := s.entry(key)
	o.Compact()
	more := ofSlice(o)
	if o.Omitted != (services.Slice{}.Omitted) || !s.fits(key.Namespace, more) {
		e.miss(name, more)
		return
	}
	s.add(key.Namespace, more)
	o.Metadata = api.ObjectMeta{Name: name}
	at, _ := e.slice(name)
	e.slices = slices.Insert(e.slices, at, o)
}

func (s *serviceState) removeSlice(key services.Key, name string) {
	e := s.entry(key)
	delete(e.missing, name)
	if at, known := e.slice(name); known {
		s.add(key.Namespace, usage{}.minus(ofSlice(e.slices[at])))
		e.slices = slices.Delete(e.slices, at, at+1)
	}
}

// hasRoomAgain reports whether there is room now for a Service, or for its endpoints, that had to be left out. They are
// not stored, so they have to be listed again. Services that a full list leaves out do not count: the next list would
// leave them out, too.
func (s *serviceState) hasRoomAgain() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.synced != ofServices|ofSlices {
		return false
	}
	for key, e := range s.all {
		var more usage
		for _, missing := range e.missing {
			more = more.plus(missing)
		}
		if (e.noRoom() || e.service != nil && len(e.missing) > 0) && s.fits(key.Namespace, more) &&
			s.total.plus(more.plusRest()).within(1) {
			return true
		}
	}
	return false
}

// serviceHandler returns the handler of the watch of Services. Replace treats a complete list: what it does not contain
// was deleted while the watch was interrupted.
func (s *serviceState) serviceHandler() watch.Handler[services.Service] {
	return watch.Handler[services.Service]{Share: omitting[services.Service](ofService),
		Replace: func(all []services.Service) {
			s.update(func() {
				for key := range s.all {
					s.removeService(key)
				}
				for _, o := range inTurn(all) {
					s.setService(o)
				}
				s.synced |= ofServices
			})
		},
		Set:    func(o services.Service) { s.update(func() { s.setService(&o) }) },
		Delete: func(o services.Service) { s.update(func() { s.removeService(o.Key()) }) },
	}
}

// sliceHandler returns the handler of the watch of EndpointSlices. Replace treats a complete list, as with Services.
func (s *serviceState) sliceHandler() watch.Handler[services.Slice] {
	return watch.Handler[services.Slice]{Share: omitting[services.Slice](ofSlice),
		Replace: func(all []services.Slice) {
			s.update(func() {
				for key, e := range s.all {
					for len(e.slices) > 0 {
						s.removeSlice(key, e.slices[0].Metadata.Name)
					}
					maps.DeleteFunc(e.missing, func(name string, _ usage) bool { return name != "" })
					s.dirty[key] = true
				}
				for _, o := range inTurn(all) {
					s.setSlice(o)
				}
				s.synced |= ofSlices
			})
		},
		Set:    func(o services.Slice) { s.update(func() { s.setSlice(&o) }) },
		Delete: func(o services.Slice) { s.update(func() { s.removeSlice(o.Of(), o.Metadata.Name) }) },
	}
}

// take returns which Services of those that have changed, or of all, have a virtual service, and which have none. It
// returns false until there is a complete list of both resources. The virtual services are read one by one with text:
// thousands together take more memory than all else of the program.
func (s *serviceState) take(node services.Node, full bool) (desired, gone []services.Key, ok bool) {
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
	s.compareAddresses()
	due := make([]api.Object, 0, len(s.dirty))
	for key := range s.dirty {
		o := api.Object{Metadata: api.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		if e := s.all[key]; e.service != nil {
			o.Metadata.Created = e.service.Metadata.Created
		}
		due = append(due, o)
	}
	for _, o := range inTurn(due) {
		key := services.Key{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
		delete(s.kept, key)
		delete(s.closed, key)
		if _, ok := s.translate(key, node); ok {
			desired = append(desired, key)
		} else {
			gone = append(gone, key)
		}
	}
	s.dirty = map[services.Key]bool{}
	return desired, gone, true
}

// text returns the virtual service of a Service as JSON; nil if it may have none any more: then take returns it again.
// What has changed since take is checked as take does: the agent refuses all for one of them.
func (s *serviceState) text(key services.Key, node services.Node) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.all[key]
	if e == nil || e.service == nil || len(e.missing) > 0 {
		return nil
	}
	v, err := services.Translate(e.service, e.slices, node)
	if err != nil {
		return nil
	}
	if (s.dirty[key] || len(s.fresh) > 0) && (s.loops(v) != nil || s.reserve(key, e, usageOf(&v)) != nil) {
		return nil
	}
	text, _ := json.Marshal(v) // it has nothing that could fail
	return text
}

// translate returns the virtual service of a Service, or false if it has none, and notes why.
func (s *serviceState) translate(key services.Key, node services.Node) (v v1.VirtualService, ok bool) {
	e, err := s.all[key], error(nil)
	var next usage
	switch {
	case e.service == nil && !e.noRoom(): // none, or it is not wanted
		if len(e.slices)+len(e.missing) == 0 {
			delete(s.all, key)
		}
	case len(e.missing) > 0:
		s.kept[key] = fmt.Sprintf("over %d Services, %d endpoints or %d ports of them, or half of them in one namespace",
			maxServices, maxEndpoints, maxListed)
	default:
		if v, err = services.Translate(e.service, e.slices, node); err == nil {
			err = s.loops(v)
		}
		if ok = err == nil; ok {
			next = usageOf(&v)
		}
	}
	if full := s.reserve(key, e, next); full != nil {
		ok, err = false, full
	}
	if err != nil {
		s.kept[key] = err.Error()
	}
	if ok {
		if text := closedPorts(e.service, v); text != "" {
			s.closed[key] = text
		}
	}
	return v, ok
}

// closedPorts names the ports of a Service that its virtual service has not; empty if it has all.
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
	return firstThree(plural(len(out), "port"), out, ", ")
}

// firstThree is a text with at most three of some names.
func firstThree(text string, names []string, separator string) string {
	return text + ": " + strings.Join(names[:min(3, len(names))], separator)
}

// compareAddresses has Services compared again that have an endpoint at an address that has become a cluster address.
func (s *serviceState) compareAddresses() {
	if len(s.fresh) == 0 {
		return
	}
	for key, e := range s.all {
		for _, slice := range e.slices {
			for _, endpoint := range slice.Endpoints {
				for _, text := range endpoint.Addresses {
					if a, err := netip.ParseAddr(text); err == nil && s.fresh[a.Unmap()] {
						s.dirty[key] = true
					}
				}
			}
		}
	}
	clear(s.fresh)
}

// loops returns an error if an instance is at a cluster address. The agent accepts only one of the two Services, and
// EndpointSlices of one namespace must not keep a Service of another from being served.
func (s *serviceState) loops(v v1.VirtualService) error {
	for _, i := range v.Spec.Instances {
		for _, text := range i.Addresses {
			if a, err := netip.ParseAddr(text); err == nil && s.addresses[a.Unmap()] > 0 {
				return fmt.Errorf("the endpoint %s is a cluster address of a Service", text)
			}
		}
	}
	return nil
}

// note records the virtual services that the agent has rejected.
func (s *serviceState) note(refused map[services.Key]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = maps.Clone(refused)
}

// condition returns a condition that lists Services that stay with kube-proxy although their owners do not want it, and
// those served without some port, at most three of each. It is nil if Services are not watched.
func (s *serviceState) condition() *api.Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.synced != ofServices|ofSlices {
		return nil
	}
	var all []string
	for _, reasons := range []map[services.Key]string{s.kept, s.refused} {
		for key, reason := range reasons {
			all = append(all, key.String()+": "+reason)
		}
	}
	var closed []string
	for key, ports := range s.closed {
		closed = append(closed, key.String()+", "+ports)
	}
	slices.Sort(closed)
	more := ""
	if len(closed) > 0 {
		more = "; " + firstThree(plural(len(closed), "Service")+" with ports refused, as no endpoint has a target", closed,
			"; ")
	}
	if len(all) == 0 {
		return &api.Condition{Type: "ServicesProxied", Status: "True", Reason: "Synced",
			Message: truncate("the proxy serves all Services of the cluster that it may serve" + more)}
	}
	slices.Sort(all)
	return &api.Condition{Type: "ServicesProxied", Status: "False", Reason: "LeftToKubeProxy",
		Message: truncate(firstThree(plural(len(all), "Service")+" with kube-proxy", all, "; ") + more)}
}
