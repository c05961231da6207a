// SPDX-License-Identifier: Apache-2.0

// Package observe finds what a change acts on: services, interfaces and cgroups of the node. A change observes once.
package observe

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/service"
)

// Snapshot is what was found on the node.
type Snapshot struct {
	Services   map[string]service.State
	New        []string                // services that no change before had, or not with this spec
	Owners     map[int]string          // services, by the ifindexes of their links
	Interfaces map[string]service.Link // of the node, by name
	Sockets    *Sockets                // nil until FindSockets
}

// Watcher follows the services and interfaces of the node.
type Watcher interface {
	States() map[string]service.State
	HostInterfaces() map[string]service.Link
}

// Binder remembers which interfaces belong to which services.
type Binder interface {
	Merge(map[string]service.State) (owners map[int]string)
}

// Observer observes the node.
type Observer struct {
	Watcher Watcher
	Binder  Binder
	Cgroup  string // in which the sockets of services are looked for
	// Resolve looks services up now: service.ResolveAll.
	Resolve func(map[string]v1.ServiceSpec) (map[string]service.State, error)
	// ResolveAlone is Resolve for those only that are found without a dump of all links: service.ResolveAlone.
	ResolveAlone func(map[string]v1.ServiceSpec) (map[string]service.State, error)

	cookies service.Cookies

	mu      sync.Mutex
	found   map[string]time.Time // services that the watcher does not know yet, and when they were looked up
	ahead   map[string]ahead     // see Prefetch
	looking int                  // lookups ahead that run
}

// New returns an observer that looks services up in the kernel. It needs a Binder before it observes.
func New(w Watcher, cgroup string) *Observer {
	return &Observer{Watcher: w, Cgroup: cgroup, Resolve: service.ResolveAll, ResolveAlone: service.ResolveAlone}
}

// lastAge is how long a service that was looked up counts as what it was, while the watcher does not know it: its scans
// may fail.
const lastAge = 10 * time.Second

// Request is what a change needs to know.
type Request struct {
	Services map[string]v1.Service    // that are desired
	Before   map[string]v1.Service    // that were desired before: the watcher follows them
	Modules  map[string]v1.Module     // whose interfaces are wanted
	Last     map[string]service.State // of Before, as they were observed last
}

// Observe takes services and interfaces from the watcher, and looks up at once those that it does not know yet.
func (o *Observer) Observe(r Request) (Snapshot, error) {
	s := Snapshot{Services: map[string]service.State{}, Interfaces: o.Watcher.HostInterfaces()}
	if s.Interfaces == nil {
		s.Interfaces = map[string]service.Link{}
	}
	unknown, known := map[string]v1.ServiceSpec{}, o.Watcher.States()
	found := map[string]service.State{}
	for name, wanted := range r.Services {
		before, exists := r.Before[name]
		if !exists || !reflect.DeepEqual(before.Spec, wanted.Spec) {
			s.New = append(s.New, name)
			if state, ok := o.takePrefetched(name, wanted.Spec); ok {
				found[name] = state
			} else {
				unknown[name] = wanted.Spec
			}
		} else if state, ok := known[name]; ok {
			s.Services[name] = state
		} else if state, ok := r.Last[name]; ok && isFound(state) && o.isRecent(name) { // accepted a moment ago
			s.Services[name] = state
		} else {
			unknown[name] = wanted.Spec
		}
	}
	for _, m := range r.Modules {
		for _, name := range m.Spec.Attach.Interfaces {
			if _, ok := s.Interfaces[name]; !ok {
				unknown[interfaceKey+name] = v1.ServiceSpec{Interface: name}
			}
		}
	}
	resolved, err := o.Resolve(unknown)
	if err != nil {
		return s, err
	}
	maps.Copy(found, resolved)
	s.add(found)
	o.note(found, known)
	s.Owners = o.Binder.Merge(s.Services)
	return s, nil
}

// note remembers which services were looked up now, and forgets those that the watcher knows.
func (o *Observer) note(found, known map[string]service.State) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.found == nil {
		o.found = map[string]time.Time{}
	}
	now := time.Now()
	maps.DeleteFunc(o.found, func(name string, at time.Time) bool {
		_, ok := known[name]
		return ok || now.Sub(at) >= lastAge
	})
	for name := range found {
		o.found[name] = now
	}
}

// isRecent reports whether a service was looked up a moment ago.
func (o *Observer) isRecent(name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	at, ok := o.found[name]
	return ok && time.Since(at) < lastAge
}

// isFound reports whether a service was found with its interfaces. The watcher, which does not know it yet, will report
// when it moves.
func isFound(s service.State) bool {
	return s.Err == nil && len(s.Links) > 0 && !slices.ContainsFunc(s.Links, func(l service.Link) bool { return l.Left })
}

// interfaceKey begins the keys of interfaces among services, whose names have no spaces.
const interfaceKey = "interface "

func (s *Snapshot) add(found map[string]service.State) {
	for key, state := range found {
		name, isInterface := strings.CutPrefix(key, interfaceKey)
		switch {
		case !isInterface:
			s.Services[name] = state
		case state.Err == nil && len(state.Links) > 0:
			s.Interfaces[name] = state.Links[0]
		}
	}
}
