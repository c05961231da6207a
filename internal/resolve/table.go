// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

// Table holds the virtual services of the node. The cost of a change depends on its size, not on the size of the table.
type Table struct {
	log       *slog.Logger
	cache     cache
	resolvers []Resolver

	mu            sync.Mutex
	services      map[string]*entry
	owners        map[netip.Addr]*entry
	users         map[string]map[*entry]bool    // by local Service: entries with it as an instance
	locals        map[string][]netip.Addr       // addresses of the Services of this node
	localOwner    map[netip.Addr]string         // and the Service of each
	ofAddress     map[netip.Addr]map[*entry]int // instances' configured addresses, for changes of localOwner
	shadowed      map[*entry]bool               // dynamic entries without an address of their own
	lookups       map[netip.Addr]*pendingLookup
	subscriptions []*Subscription
	changed       func(name string) // may be nil
}

// entry is one virtual service.
type entry struct {
	name   string
	source string
	spec   v1.VirtualServiceSpec  // as configured, or found
	owned  []netip.Addr           // its addresses except those that another entry has
	users  map[*Subscription]bool // of a dynamic entry: subscriptions that have not released it
	keep   bool                   // of a dynamic entry: stays without users

	encoded   json.RawMessage // as control planes get it
	instances []v1.VirtualInstanceStatus
}

func (e *entry) dynamic() bool { return e.source != v1.SourceStatic }

// pendingLookup is the lookup of an address.
type pendingLookup struct {
	open    map[string]bool // sources without a result yet
	waiting map[*Subscription]bool
}

// NewTable returns an empty table. It stores results of resolvers in the file at path, so that connections continue
// when the agent restarts; an empty path disables that.
func NewTable(log *slog.Logger, path string, resolvers ...Resolver) *Table {
	return &Table{log: log, cache: newCache(path, log), resolvers: resolvers, services: map[string]*entry{},
		owners: map[netip.Addr]*entry{},
		users:  map[string]map[*entry]bool{}, localOwner: map[netip.Addr]string{}, ofAddress: map[netip.Addr]map[*entry]int{},
		shadowed: map[*entry]bool{}, lookups: map[netip.Addr]*pendingLookup{}}
}

// Run runs the resolvers until ctx ends.
func (t *Table) Run(ctx context.Context) error {
	defer time.AfterFunc(restoredFor, t.releaseUnused).Stop()
	var all errgroup.Group
	for _, r := range t.resolvers {
		all.Go(func() error {
			if err := r.Run(ctx, t); err != nil && ctx.Err() == nil {
				return fmt.Errorf("resolver %s: %w", r.Source(), err)
			}
			return nil
		})
	}
	return all.Wait()
}

// Apply adds, changes and removes resources.
func (t *Table) Apply(put []v1.VirtualService, remove []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range remove {
		t.remove(name, v1.SourceStatic)
	}
	for _, s := range put { // addresses may move between them
		if e := t.services[s.Metadata.Name]; e != nil {
			t.disown(e)
		}
	}
	for _, s := range put {
		t.put(s.Metadata.Name, v1.SourceStatic, s.Spec)
	}
	t.restoreShadowed()
}

// restoreShadowed assigns addresses that no resource has any longer to the dynamic virtual services that name them.
func (t *Table) restoreShadowed() {
	for e := range maps.Clone(t.shadowed) {
		t.disown(e)
		t.own(e)
		t.encode(e)
	}
}

// Restore loads results from before a restart of the agent. New results replace them.
func (t *Table) Restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for source, all := range t.cache.read() {
		if !slices.ContainsFunc(t.resolvers, func(r Resolver) bool { return r.Source() == source }) {
			continue
		}
		for _, s := range all {
			if t.refuse(source, s) { // an earlier version accepted it
				t.cache.remove(source, s.Name)
				continue
			}
			t.put(s.Name, source, s.Spec)
			t.services[s.Name].keep = s.Keep
		}
	}
}

// restoredFor is how long a restored virtual service waits for a control plane that uses it.
const restoredFor = 10 * time.Minute

// releaseUnused releases restored virtual services that no control plane has received.
func (t *Table) releaseUnused() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range maps.Clone(t.services) {
		t.release(nil, name)
	}
}

// SetLocals sets the addresses of the Services of this node.
func (t *Table) SetLocals(addresses map[string][]netip.Prefix) {
	locals := make(map[string][]netip.Addr, len(addresses))
	for name, prefixes := range addresses {
		locals[name] = make([]netip.Addr, 0, len(prefixes))
		for _, p := range prefixes {
			locals[name] = append(locals[name], p.Addr())
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	stale := map[*entry]bool{}
	for name := range t.locals {
		if _, stays := locals[name]; !stays {
			t.moveLocal(name, t.locals[name], nil, stale)
		}
	}
	for name, now := range locals {
		if before, was := t.locals[name]; !was || !slices.Equal(before, now) {
			t.moveLocal(name, before, now, stale)
		}
	}
	t.locals = locals
	for e := range stale {
		t.encode(e)
	}
}

// moveLocal changes the addresses of one Service, and adds the entries that depend on them to stale.
func (t *Table) moveLocal(name string, before, now []netip.Addr, stale map[*entry]bool) {
	for _, a := range before {
		if t.localOwner[a] == name {
			delete(t.localOwner, a)
		}
	}
	for _, a := range now {
		t.localOwner[a] = name
	}
	maps.Copy(stale, t.users[name])
	for _, a := range slices.Concat(before, now) {
		for e := range t.ofAddress[a] {
			stale[e] = true
		}
	}
}

// put adds or changes a virtual service. Resources have precedence over dynamic ones for an address.
func (t *Table) put(name, source string, spec v1.VirtualServiceSpec) {
	e := t.services[name]
	if e == nil {
		e = &entry{name: name, source: source, users: map[*Subscription]bool{}}
		t.services[name] = e
	}
	t.disown(e)
	e.spec = completed(spec)
	t.own(e)
	t.encode(e)
}

// own assigns addresses to an entry. The first virtual service that names an address gets it; one that an operator
// applied takes it from one that a resolver found, which is shadowed from then on.
func (t *Table) own(e *entry) {
	e.owned = nil
	for _, addr := range addressesOf(e.spec) {
		other := t.owners[addr]
		if other != nil && (e.dynamic() || !other.dynamic()) {
			t.shadowed[e] = true
			continue
		}
		if other != nil {
			other.owned = slices.DeleteFunc(other.owned, func(o netip.Addr) bool { return o == addr })
			t.shadowed[other] = true
			t.encode(other)
		}
		t.owners[addr] = e
		e.owned = append(e.owned, addr)
	}
	for _, i := range e.spec.Instances {
		if i.Service != "" {
			submap(t.users, i.Service)[e] = true
		}
		for _, text := range i.Addresses {
			if addr, err := netip.ParseAddr(text); err == nil {
				submap(t.ofAddress, addr)[e]++
			}
		}
	}
}

// addressesOf leaves out invalid addresses: no schema has checked the results of resolvers.
func addressesOf(s v1.VirtualServiceSpec) (all []netip.Addr) {
	for _, a := range s.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			all = append(all, addr)
		}
	}
	return all
}

func submap[K, L comparable, V any](m map[K]map[L]V, key K) map[L]V {
	if m[key] == nil {
		m[key] = map[L]V{}
	}
	return m[key]
}

// disown removes the entry from all indexes: addresses that it owns, services that it uses and addresses of its
// instances. Addresses become free for other entries.
func (t *Table) disown(e *entry) {
	for _, addr := range e.owned {
		delete(t.owners, addr)
	}
	e.owned = nil
	delete(t.shadowed, e)
	for _, i := range e.spec.Instances {
		drop(t.users, i.Service, e)
		for _, text := range i.Addresses {
			if addr, err := netip.ParseAddr(text); err == nil {
				drop(t.ofAddress, addr, e)
			}
		}
	}
}

func drop[K, L comparable, V any](m map[K]map[L]V, key K, what L) {
	delete(m[key], what)
	if len(m[key]) == 0 {
		delete(m, key)
	}
}

func (t *Table) remove(name, source string) {
	e := t.services[name]
	if e == nil || e.source != source {
		return
	}
	t.disown(e)
	delete(t.services, name)
	t.notify(name)
}

// encode encodes an entry for control planes, and notifies them of a change.
func (t *Table) encode(e *entry) {
	spec := e.spec
	spec.Addresses = slices.DeleteFunc(slices.Clone(spec.Addresses), func(a v1.VirtualAddress) bool {
		addr, err := netip.ParseAddr(a.Address)
		return err != nil || !slices.Contains(e.owned, addr)
	})
	spec.Instances, e.instances = nil, make([]v1.VirtualInstanceStatus, 0, len(e.spec.Instances))
	for _, i := range e.spec.Instances {
		status := t.locate(i)
		e.instances = append(e.instances, status)
		i.Addresses, i.Node, i.Service = status.Addresses, status.Node, status.Service
		if len(i.Addresses) > 0 {
			spec.Instances = append(spec.Instances, i)
		}
	}
	data, err := json.Marshal(sdk.VirtualService{Name: e.name, Spec: spec, Dynamic: e.dynamic()})
	if err != nil { // of strings and numbers
		t.log.Error("virtual service", "name", e.name, "error", err)
		return
	}
	if !bytes.Equal(data, e.encoded) {
		e.encoded = data
		t.notify(e.name)
	}
}

// locate returns an instance's addresses, and whether it is on this node.
func (t *Table) locate(i v1.VirtualInstance) v1.VirtualInstanceStatus {
	status := v1.VirtualInstanceStatus{Name: i.Name, Service: i.Service, Node: i.Node, Draining: i.Draining}
	if i.Service != "" {
		addresses, known := t.locals[i.Service]
		for _, addr := range addresses { // sorted: IPv4 comes first
			if !slices.ContainsFunc(status.Addresses,
				func(s string) bool { return netip.MustParseAddr(s).Is4() == addr.Is4() }) {
				status.Addresses = append(status.Addresses, addr.String())
			}
		}
		switch {
		case !known:
			status.Reason = "there is no Service " + i.Service
		case len(addresses) == 0:
			status.Reason = "Service " + i.Service + " has no address now"
		}
		return status
	}
	addresses, _ := parseFamilies(i.Addresses) // were checked
	for _, addr := range addresses {
		status.Addresses = append(status.Addresses, addr.String())
		if home, ok := t.localOwner[addr]; ok {
			status.Service, status.Node = home, ""
		}
	}
	return status
}

// OnChange registers f, which is called with the name of each virtual service whose conditions may have changed, with
// the table's lock held. Call it before any other method.
func (t *Table) OnChange(f func(name string)) { t.changed = f }

func (t *Table) notify(name string) {
	source{t}.Changed(name)
	for _, s := range t.subscriptions {
		s.Notify(name)
	}
}

// lookup starts the lookup of an address for a subscription.
func (t *Table) lookup(s *Subscription, addr netip.Addr) {
	if e := t.owners[addr]; e != nil { // it is being sent, or was sent after the control plane's request
		if e.dynamic() {
			e.users[s] = true
		}
		s.getLast(e.name)
		s.Notify(e.name)
		return
	}
	if l := t.lookups[addr]; l != nil {
		l.waiting[s] = true
		return
	}
	l := &pendingLookup{open: map[string]bool{}, waiting: map[*Subscription]bool{s: true}}
	t.lookups[addr] = l
	for _, r := range t.resolvers {
		if r.Lookup(addr) {
			l.open[r.Source()] = true
		}
	}
	if len(l.open) == 0 {
		delete(t.lookups, addr)
		s.sendNotFound(addr)
	}
}

// release records that a subscription, or none, no longer uses a virtual service.
func (t *Table) release(s *Subscription, name string) {
	e := t.services[name]
	if e == nil || !e.dynamic() {
		return
	}
	if delete(e.users, s); len(e.users) > 0 {
		return
	}
	if e.keep {
		return // the resolver reports when it need not be kept any longer
	}
	t.remove(name, e.source)
	t.restoreShadowed()
	t.cache.remove(e.source, name)
	t.forget(e.source, name)
}

// forget makes a source forget a virtual service.
func (t *Table) forget(source, name string) {
	for _, r := range t.resolvers {
		if r.Source() == source {
			r.Release(name)
		}
	}
}
