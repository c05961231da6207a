// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/services"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

// What is kept of the cluster. Services beyond it stay with kube-proxy.
const (
	maxServices  = 5000
	maxEndpoints = 20000
)

// The resources that are followed.
const (
	ofServices = 1 << iota
	ofSlices
)

// serviceState is what the API server has said of Services. It is safe for concurrent use.
type serviceState struct {
	mu        sync.Mutex
	all       map[services.Key]*serviceEntry
	dirty     map[services.Key]bool
	kept      map[services.Key]string // Services that stay with kube-proxy, and why
	refused   map[services.Key]string // by the agent
	synced    int
	endpoints int           // of all
	services  int           // that are wanted
	changed   chan struct{} // has a value after a change
}

// serviceEntry is a Service with its slices, each of which may come first.
type serviceEntry struct {
	service *services.Service // nil: none, or one that is not wanted
	slices  map[string]*services.Slice
	over    bool // there was no room for all
}

func newServiceState() *serviceState {
	s := &serviceState{changed: make(chan struct{}, 1)}
	s.clear()
	return s
}

func (s *serviceState) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all, s.dirty = map[services.Key]*serviceEntry{}, map[services.Key]bool{}
	s.kept, s.refused = map[services.Key]string{}, nil
	s.synced, s.endpoints, s.services = 0, 0, 0
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
		e = &serviceEntry{slices: map[string]*services.Slice{}}
		s.all[key] = e
	}
	return e
}

func (s *serviceState) setService(o *services.Service) {
	e := s.entry(o.Key())
	if e.service != nil {
		s.services--
	}
	e.service = nil
	if !o.Wanted() {
		return
	}
	if s.services >= maxServices {
		e.over = true
		return
	}
	s.services++
	o.Metadata = api.ObjectMeta{Name: o.Metadata.Name, Namespace: o.Metadata.Namespace}
	e.service = o
}

func (s *serviceState) removeService(key services.Key) {
	e := s.entry(key)
	if e.service != nil {
		s.services--
	}
	e.service = nil
}

func (s *serviceState) setSlice(o *services.Slice) {
	key, name := o.Of(), o.Metadata.Name
	s.removeSlice(key, name)
	e := s.entry(key)
	if s.endpoints+len(o.Endpoints) > maxEndpoints {
		e.over = true
		return
	}
	s.endpoints += len(o.Endpoints)
	o.Metadata = api.ObjectMeta{Name: name}
	e.slices[name] = o
}

func (s *serviceState) removeSlice(key services.Key, name string) {
	e := s.entry(key)
	if before := e.slices[name]; before != nil {
		s.endpoints -= len(before.Endpoints)
		delete(e.slices, name)
	}
}

func (s *serviceState) serviceHandler() watch.Handler[services.Service] {
	return watch.Handler[services.Service]{
		Replace: func(all []services.Service) {
			s.update(func() {
				for key := range s.all {
					s.removeService(key)
					s.all[key].over = false
				}
				for i := range all {
					s.setService(&all[i])
				}
				s.synced |= ofServices
			})
		},
		Set:    func(o services.Service) { s.update(func() { s.setService(&o) }) },
		Delete: func(o services.Service) { s.update(func() { s.removeService(o.Key()) }) },
	}
}

func (s *serviceState) sliceHandler() watch.Handler[services.Slice] {
	return watch.Handler[services.Slice]{
		Replace: func(all []services.Slice) {
			s.update(func() {
				for key, e := range s.all {
					for name := range e.slices {
						s.removeSlice(key, name)
					}
				}
				for i := range all {
					s.setSlice(&all[i])
				}
				s.synced |= ofSlices
			})
		},
		Set:    func(o services.Slice) { s.update(func() { s.setSlice(&o) }) },
		Delete: func(o services.Slice) { s.update(func() { s.removeSlice(o.Of(), o.Metadata.Name) }) },
	}
}

// take returns the virtual services of what has changed, or of everything, and those that are none any more. It returns
// false until there is a complete list of both resources.
func (s *serviceState) take(node services.Node, full bool) (map[services.Key]v1.VirtualService, []services.Key, bool) {
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
	desired, gone := map[services.Key]v1.VirtualService{}, []services.Key{}
	for key := range s.dirty {
		delete(s.kept, key)
		e := s.all[key]
		switch {
		case e.over:
			s.kept[key] = fmt.Sprintf("over %d Services or %d endpoints", maxServices, maxEndpoints)
		case e.service != nil:
			of := slices.SortedFunc(maps.Values(e.slices), func(a, b *services.Slice) int {
				return strings.Compare(a.Metadata.Name, b.Metadata.Name)
			})
			v, err := services.Translate(e.service, of, node)
			if err == nil {
				desired[key] = v
				continue
			}
			s.kept[key] = err.Error()
		case len(e.slices) == 0:
			delete(s.all, key)
		}
		gone = append(gone, key)
	}
	s.dirty = map[services.Key]bool{}
	return desired, gone, true
}

// note keeps what the agent has refused.
func (s *serviceState) note(refused map[services.Key]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = maps.Clone(refused)
}

// condition says which Services stay with kube-proxy against the wish of their owners, naming at most three; nil if
// Services are not followed.
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
	if len(all) == 0 {
		return &api.Condition{Type: "ServicesProxied", Status: "True", Reason: "Synced",
			Message: "the proxy serves all Services of the cluster that it may serve"}
	}
	slices.Sort(all)
	message := plural(len(all), "Service") + " with kube-proxy: " + strings.Join(all[:min(3, len(all))], "; ")
	return &api.Condition{Type: "ServicesProxied", Status: "False", Reason: "LeftToKubeProxy", Message: truncate(message)}
}
