// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/integration/link"
)

// recordPrefix is the prefix of the agent's names of virtual services.
const recordPrefix = v1.SourceOakestra + "."

// lookup is the query for the destination address of a packet.
type lookup struct {
	pendingQuery
	until time.Time
}

// usedServices tracks which services the agent uses, from its requests to this worker as a resolver.
type usedServices struct {
	mu      sync.Mutex
	used    map[string]bool // names of services
	session *session        // nil before the registration
}

// followRequests handles requests of the agent until it closes the connection.
func (w *usedServices) followRequests(agent *link.Agent) {
	for {
		q, err := agent.Request()
		if err != nil {
			return
		}
		w.handleRequest(q)
	}
}

// handleRequest records the addresses that the agent uses and releases, for later sessions, and passes the request to
// the current session, if any.
func (w *usedServices) handleRequest(q link.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range q.Use {
		w.used[strings.TrimPrefix(name, recordPrefix)] = true
	}
	for _, name := range q.Release {
		delete(w.used, strings.TrimPrefix(name, recordPrefix))
	}
	if w.session != nil {
		w.session.request(q)
	}
}

// attach starts a session with the services that are in use now, and passes it further requests. A lookup that is under
// way is lost, and repeated by the next packet.
func (w *usedServices) attach(start func(used []string) *session) *session {
	w.mu.Lock()
	defer w.mu.Unlock()
	used := slices.Collect(maps.Keys(w.used))
	if w.session != nil { // it also has later lookups
		used = w.session.inUse()
	}
	w.session = start(used)
	return w.session
}

// inUse returns the services that the agent has.
func (s *session) inUse() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for app, f := range s.services {
		if f.used {
			all = append(all, app)
		}
	}
	return all
}

// request handles a request of the agent. A release of a service with instances here has crossed the message to keep
// it.
func (s *session) request(q link.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, name := range q.Use {
		app := strings.TrimPrefix(name, recordPrefix)
		f := s.follow(app)
		f.used = true
		s.send(message{topic: updateTopic(app), subscribe: true})
		s.refresh(f)
	}
	for _, addr := range q.Lookup {
		s.lookUp(addr, now)
	}
	for _, name := range q.Release {
		if f := s.services[strings.TrimPrefix(name, recordPrefix)]; f != nil && len(f.instances) == 0 {
			f.used, f.found = false, link.Record{}
			s.scheduleLeave(f)
		}
	}
	s.wake()
}

// maxLookups limits the open queries for addresses: without a connection none gets a reply, and the agent sends more.
const maxLookups = 4096

// lookUp queries an address. The caller holds s.mu. Beyond maxLookups the query is dropped; the agent then treats the
// address as unknown, and looks it up again.
func (s *session) lookUp(addr netip.Addr, now time.Time) {
	if len(s.lookups) >= maxLookups {
		maps.DeleteFunc(s.lookups, func(_ netip.Addr, l *lookup) bool { return now.After(l.until) })
	}
	if len(s.lookups) >= maxLookups && s.lookups[addr] == nil {
		return
	}
	l := &lookup{until: now.Add(link.LookupLimit)}
	l.schedule(now, s.times.lookup)
	s.lookups[addr] = l
}

// handleLookup handles the reply to the query for an address. The caller holds s.mu. For a service without instances,
// the agent gets only the address: the cluster notifies interested workers when there is an instance.
func (s *session) handleLookup(addr netip.Addr, r tableResult) {
	if s.lookups[addr] == nil {
		return
	}
	delete(s.lookups, addr)
	if r.App == "" {
		s.resolved(link.Result{NotFound: addr})
		return
	}
	if s.services[r.App] == nil {
		s.send(message{topic: updateTopic(r.App), subscribe: true})
	}
	f := s.follow(r.App)
	found := s.found(f, r)
	if len(r.Instances) == 0 && len(found.Spec.Addresses) < maxAddresses && !has(found.Spec, addr) {
		found.Spec.Addresses = append(slices.Clip(found.Spec.Addresses), v1.VirtualAddress{Address: addr.String(),
			Policy: v1.PolicyRoundRobin})
	}
	if !has(found.Spec, addr) {
		s.resolved(link.Result{NotFound: addr})
		s.scheduleLeave(f)
		return
	}
	f.used, f.found = true, link.Record{} // the agent waits for it, even if it is unchanged
	s.put(f, found)
	s.refresh(f) // the reply precedes the subscription: a query by name finds changes in between
}

func has(spec v1.VirtualServiceSpec, addr netip.Addr) bool {
	for _, a := range spec.Addresses {
		if a.Address == addr.String() {
			return true
		}
	}
	return false
}

// found returns the record for a reply. The caller holds s.mu. A service keeps its addresses if the reply has none, as
// for a service without instances.
func (s *session) found(f *trackedService, r tableResult) link.Record {
	found := link.Record{Name: recordPrefix + r.App, Spec: translation{s.ranges, s.own}.spec(r)}
	if len(found.Spec.Addresses) == 0 {
		found.Spec.Addresses = f.found.Spec.Addresses
	}
	return found
}

// handleService passes the reply for a service to the agent. The caller holds s.mu. A service that the agent got from
// an earlier process may have lost all its instances since: then its addresses are unknown, and the agent's instances
// must be removed.
func (s *session) handleService(f *trackedService, r tableResult) {
	found := s.found(f, r)
	switch {
	case len(found.Spec.Addresses) > 0:
		s.put(f, found)
	case f.used && f.found.Name == "":
		s.drop(f, r.App)
	}
	if f.empty = len(r.Instances) == 0; f.used && !f.empty {
		f.leaveAt = time.Time{}
	}
	s.scheduleLeave(f)
}

// drop removes a service from the agent, which looks it up again when a client sends to it. The caller holds s.mu.
func (s *session) drop(f *trackedService, app string) {
	f.used, f.found = false, link.Record{}
	s.resolved(link.Result{Delete: recordPrefix + app})
}

// put passes a service to the agent if it has changed. The caller holds s.mu. Services with instances here are kept
// even without a lookup: the proxy needs the addresses of its own instances.
func (s *session) put(f *trackedService, found link.Record) {
	found.Keep = len(f.instances) > 0
	if !f.used && !found.Keep || reflect.DeepEqual(found, f.found) && f.used {
		return
	}
	f.found, f.used = found, true
	s.resolved(link.Result{Put: &found})
}

// setHost sets the address of this node. The caller holds s.mu.
func (s *session) setHost(host netip.Addr) {
	s.host, s.own = host, map[netip.Addr]bool{host: true}
	all, _ := net.InterfaceAddrs() // without them, local instances are treated as remote, which still works
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			s.own[p.Addr().Unmap()] = true
		}
	}
}
