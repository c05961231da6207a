// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kerb-edge/kerb/internal/watch"
	"github.com/kerb-edge/kerb/sdk"
)

// Subscription is the part of a table that one control plane has received. It is safe for concurrent use, but every
// Next must be followed by its Ack before the next one.
type Subscription struct {
	*watch.Subscription
	table    *Table
	notFound map[netip.Addr]bool // results of lookups to send; guarded by the table's lock
	// last lists virtual services that this subscription gets after all others, and until when; guarded by the table's
	// lock
	last map[string]time.Time
	// first: if several have looked up the same virtual service, this subscription gets it before the others
	first bool
}

// Update is an sdk.VirtualServiceUpdate whose virtual services are encoded once for all subscriptions.
type Update struct {
	watch.Update
	Unknown []netip.Addr `json:"unknown,omitempty"`
}

// Subscribe returns a subscription for the control plane of a module. It starts with all virtual services. It uses
// dynamic ones until it releases them, even those that it has not looked up: packets use everything that a control
// plane knows.
func (t *Table) Subscribe(module string) *Subscription {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &Subscription{Subscription: watch.New(module, &t.mu, source{t}), table: t, notFound: map[netip.Addr]bool{},
		last: map[string]time.Time{}}
	s.Hold = s.waits
	t.subscriptions = append(t.subscriptions, s)
	s.useAll()
	return s
}

// GetFirst makes the subscription get a virtual service before others that have looked it up, too.
func (s *Subscription) GetFirst() {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	s.first = true
}

// useAll makes the subscription a user of all dynamic virtual services. The table's lock is held.
func (s *Subscription) useAll() {
	for _, e := range s.table.services {
		if e.dynamic() {
			e.users[s] = true
		}
	}
}

// Restart starts a full sync. A new map set, or process, does not know which virtual services the previous one has
// released.
func (s *Subscription) Restart(mapSet string) {
	s.Subscription.Restart(mapSet)
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	clear(s.last)
	s.useAll()
}

// lastFor is how long a control plane waits until the others have received a virtual service that it has looked up.
const lastFor = time.Second

// getLast makes the subscription get a virtual service that it has looked up after all others. It will send the packets
// that wait for it, and other modules on their path would not know it yet: the tunnel would pass them on instead of
// sending them to the node. The table's lock is held.
func (s *Subscription) getLast(name string) {
	s.last[name] = time.Now().Add(lastFor)
	time.AfterFunc(lastFor, s.Wake)
}

// waits reports whether others have to receive a virtual service first. The table's lock is held.
func (s *Subscription) waits(name string) bool {
	until, last := s.last[name]
	if !last {
		return false
	}
	if time.Now().Before(until) && slices.ContainsFunc(s.table.subscriptions, func(o *Subscription) bool {
		_, alike := o.last[name]
		return o != s && (!alike || o.first && !s.first) && o.InProgress(name)
	}) {
		return true
	}
	delete(s.last, name)
	return false
}

// source is the table as the source of subscriptions.
type source struct{ *Table }

func (t source) All() []string { return slices.Sorted(maps.Keys(t.services)) }

func (t source) Encode(name string) json.RawMessage {
	if e := t.services[name]; e != nil {
		return e.encoded
	}
	return nil
}

func (t source) Changed(names ...string) {
	for _, name := range names {
		if t.changed != nil {
			t.changed(name)
		}
	}
}

// Close ends the subscription. Virtual services that it uses are transferred to another subscription of the same
// module, that of its next version, or are released.
func (s *Subscription) Close() {
	t := s.table
	t.mu.Lock()
	defer t.mu.Unlock()
	t.subscriptions = slices.DeleteFunc(t.subscriptions, func(o *Subscription) bool { return o == s })
	next := slices.IndexFunc(t.subscriptions, func(o *Subscription) bool { return o.Module == s.Module })
	for _, l := range t.lookups {
		delete(l.waiting, s)
	}
	for name, e := range t.services {
		if !e.users[s] {
			continue
		}
		if next >= 0 {
			e.users[t.subscriptions[next]] = true
		}
		t.release(s, name)
	}
	source{t}.Changed(source{t}.All()...)
}

// sendNotFound makes the next update report an address that no resolver has found. The table's lock is held.
func (s *Subscription) sendNotFound(addr netip.Addr) {
	s.notFound[addr] = true
	s.Wake()
}

// Next returns the next update, and false if there is nothing to send.
func (s *Subscription) Next() (Update, bool) {
	s.table.mu.Lock()
	notFound := slices.SortedFunc(maps.Keys(s.notFound), netip.Addr.Compare)
	s.table.mu.Unlock()
	u, more := s.Subscription.Next()
	return Update{u, notFound}, more || len(notFound) > 0
}

// Ack records the result of the last update. After an error all virtual services are sent again.
func (s *Subscription) Ack(u Update, err error) {
	if err == nil {
		s.table.mu.Lock()
		for _, addr := range u.Unknown {
			delete(s.notFound, addr)
		}
		s.table.mu.Unlock()
	}
	s.Subscription.Ack(u.Update, err)
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	if err != nil {
		clear(s.last) // everything is sent, whatever others have received
	}
	for _, o := range s.table.subscriptions {
		if len(o.last) > 0 {
			o.Wake()
		}
	}
}

// maxPending limits the lookups of one control plane whose results it has not received. Further ones are ignored: it
// repeats the lookup with the next packet.
const maxPending = 4096

// Handle executes the requests of the control plane. A late release of the previous map set is ignored.
func (s *Subscription) Handle(r sdk.Requests) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	if r.MapSet == "" || r.MapSet == s.MapSet {
		for _, name := range r.Release {
			s.table.release(s, name)
		}
	}
	room := maxPending - s.pending()
	for _, addr := range r.Resolve[:min(len(r.Resolve), max(0, room))] {
		if addr = addr.Unmap().WithZone(""); addr.IsValid() {
			s.table.lookup(s, addr)
		}
	}
}

// pending counts the lookups whose results the control plane has not acknowledged. The table's lock is held.
func (s *Subscription) pending() int {
	n := len(s.notFound)
	for _, l := range s.table.lookups {
		if l.waiting[s] {
			n++
		}
	}
	return n
}
