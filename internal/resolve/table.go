// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

// Table is the virtual services of the node. A change costs what changed, not what there is.
type Table struct {
	log       *slog.Logger
	cache     cache
	resolvers []Resolver

	mu        sync.Mutex
	services  map[string]*entry
	owners    map[netip.Addr]*entry
	users     map[string]map[*entry]bool    // by local Service: who takes its addresses
	locals    map[string][]netip.Addr       // addresses of the Services of this node
	atHome    map[netip.Addr]string         // and whose they are
	ofAddress map[netip.Addr]map[*entry]int // instances' stated addresses, for changes of atHome
	shadowed  map[*entry]bool               // found ones that lack an address because another has it
	wanted    map[netip.Addr]*question
	followers []*Follower
	changed   func(name string) // may be nil
}

// entry is one virtual service.
type entry struct {
	name   string
	source string
	spec   v1.VirtualServiceSpec // as it was stated
	owned  []netip.Addr          // those of its addresses that no other has
	users  map[*Follower]bool    // of a dynamic one: who wanted it

	encoded   json.RawMessage // as control planes get it
	instances []v1.VirtualInstanceStatus
}

func (e *entry) dynamic() bool { return e.source != v1.SourceStatic }

// question is an address that resolvers were asked for.
type question struct {
	open    map[string]bool // sources that have not answered
	waiting map[*Follower]bool
}

// NewTable makes a table without virtual services. What resolvers find is kept in the file at path over restarts of the
// agent, so that connections to it continue; an empty path keeps nothing.
func NewTable(log *slog.Logger, path string, resolvers ...Resolver) *Table {
	return &Table{log: log, cache: newCache(path, log), resolvers: resolvers, services: map[string]*entry{}, owners: map[netip.Addr]*entry{},
		users: map[string]map[*entry]bool{}, atHome: map[netip.Addr]string{}, ofAddress: map[netip.Addr]map[*entry]int{},
		shadowed: map[*entry]bool{}, wanted: map[netip.Addr]*question{}}
}

// Run has the resolvers work until ctx ends.
func (t *Table) Run(ctx context.Context) error {
	var all errgroup.Group
	all.Go(func() error { t.cache.run(ctx); return nil })
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

// Apply puts and removes resources.
func (t *Table) Apply(put []v1.VirtualService, remove []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range remove {
		t.remove(name, v1.SourceStatic)
	}
	for _, s := range put { // they may take each other's addresses
		if e := t.services[s.Metadata.Name]; e != nil {
			t.disown(e)
		}
	}
	for _, s := range put {
		t.put(s.Metadata.Name, v1.SourceStatic, s.Spec)
	}
	t.giveBack()
}

// giveBack lets those that were found have the addresses that no resource has any more.
func (t *Table) giveBack() {
	for e := range maps.Clone(t.shadowed) {
		t.disown(e)
		t.own(e)
		t.encode(e)
	}
}

// Restore brings back what was found before the agent was started again, until its resolvers know better.
func (t *Table) Restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for source, all := range t.cache.read() {
		if !slices.ContainsFunc(t.resolvers, func(r Resolver) bool { return r.Source() == source }) {
			continue
		}
		for _, s := range all {
			t.put(s.Name, source, s.Spec)
		}
	}
}

// SetLocals reports which addresses the Services of this node have.
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

// moveLocal changes the addresses of one Service, and collects whom that concerns.
func (t *Table) moveLocal(name string, before, now []netip.Addr, stale map[*entry]bool) {
	for _, a := range before {
		if t.atHome[a] == name {
			delete(t.atHome, a)
		}
	}
	for _, a := range now {
		t.atHome[a] = name
	}
	maps.Copy(stale, t.users[name])
	for _, a := range slices.Concat(before, now) {
		for e := range t.ofAddress[a] {
			stale[e] = true
		}
	}
}

// put makes or changes a virtual service. A resource takes its addresses from one that was found.
func (t *Table) put(name, source string, spec v1.VirtualServiceSpec) {
	e := t.services[name]
	if e == nil {
		e = &entry{name: name, source: source, users: map[*Follower]bool{}}
		t.services[name] = e
	}
	t.disown(e)
	e.spec = completed(spec)
	t.own(e)
	t.encode(e)
}

func (t *Table) own(e *entry) {
	e.owned = nil
	for _, a := range e.spec.Addresses {
		addr, err := netip.ParseAddr(a.Address)
		if err != nil {
			continue
		}
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
			into(t.users, i.Service)[e] = true
		}
		for _, text := range i.Addresses {
			if addr, err := netip.ParseAddr(text); err == nil {
				into(t.ofAddress, addr)[e]++
			}
		}
	}
}

func into[K, L comparable, V any](m map[K]map[L]V, key K) map[L]V {
	if m[key] == nil {
		m[key] = map[L]V{}
	}
	return m[key]
}

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
	t.tell(name)
}

// encode works out what control planes get, and tells them if that has changed.
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
		t.tell(e.name)
	}
}

// locate finds an instance's addresses, and whether it is here.
func (t *Table) locate(i v1.VirtualInstance) v1.VirtualInstanceStatus {
	status := v1.VirtualInstanceStatus{Name: i.Name, Service: i.Service, Node: i.Node, Draining: i.Draining}
	if i.Service != "" {
		addresses, known := t.locals[i.Service]
		for _, addr := range addresses { // sorted: IPv4 comes first
			if !slices.ContainsFunc(status.Addresses, func(s string) bool { return netip.MustParseAddr(s).Is4() == addr.Is4() }) {
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
		if home, ok := t.atHome[addr]; ok {
			status.Service, status.Node = home, ""
		}
	}
	return status
}

// OnChange has f called with the name of each virtual service whose conditions may have changed, under the table's
// lock. It must be called before anything else is.
func (t *Table) OnChange(f func(name string)) { t.changed = f }

func (t *Table) tell(name string) {
	source{t}.Changed(name)
	for _, f := range t.followers {
		f.Tell(name)
	}
}

// Found, Gone, Unknown and Known are for resolvers.
var _ Answers = (*Table)(nil)

// Found takes a virtual service that a resolver found or found changed.
func (t *Table) Found(source string, s Found) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.services[s.Name]; old != nil && old.source != source {
		t.log.Warn("two sources have virtual services of one name", "name", s.Name, "kept", old.source, "refused", source)
		return
	}
	t.put(s.Name, source, s.Spec)
	t.cache.put(source, s)
	e := t.services[s.Name]
	for _, addr := range e.owned {
		if q := t.wanted[addr]; q != nil {
			maps.Copy(e.users, q.waiting)
			delete(t.wanted, addr)
		}
	}
}

// Gone takes one away.
func (t *Table) Gone(source, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(name, source)
	t.giveBack()
	t.cache.remove(source, name)
}

// Unknown answers for an address that a resolver does not find.
func (t *Table) Unknown(source string, addr netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.wanted[addr]
	if q == nil {
		return
	}
	if delete(q.open, source); len(q.open) > 0 {
		return
	}
	delete(t.wanted, addr)
	for f := range q.waiting {
		f.answerUnknown(addr)
	}
}

// Known are the virtual services of a resolver.
func (t *Table) Known(source string) map[string]Found {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[string]Found{}
	for name, e := range t.services {
		if e.source == source {
			out[name] = Found{Name: name, Spec: e.spec}
		}
	}
	return out
}

// want asks for an address in the name of a follower.
func (t *Table) want(f *Follower, addr netip.Addr) {
	if e := t.owners[addr]; e != nil { // the answer is on its way, or has crossed the question
		if e.dynamic() {
			e.users[f] = true
		}
		f.Tell(e.name)
		return
	}
	if q := t.wanted[addr]; q != nil {
		q.waiting[f] = true
		return
	}
	q := &question{open: map[string]bool{}, waiting: map[*Follower]bool{f: true}}
	t.wanted[addr] = q
	for _, r := range t.resolvers {
		if r.Want(addr) {
			q.open[r.Source()] = true
		}
	}
	if len(q.open) == 0 {
		delete(t.wanted, addr)
		f.answerUnknown(addr)
	}
}

// idle takes back what a follower wanted.
func (t *Table) idle(f *Follower, name string) {
	e := t.services[name]
	if e == nil || !e.dynamic() {
		return
	}
	if delete(e.users, f); len(e.users) > 0 {
		return
	}
	t.remove(name, e.source)
	t.giveBack()
	t.cache.remove(e.source, name)
	for _, r := range t.resolvers {
		if r.Source() == e.source {
			r.Idle(name)
		}
	}
}

// Resolvers reports whether there are any, and why one cannot answer now.
func (t *Table) Resolvers() (n int, err error) {
	for _, r := range t.resolvers {
		if e := r.Err(); e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", r.Source(), e))
		}
	}
	return len(t.resolvers), err
}

// Names lists the virtual services in order.
func (t *Table) Names() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.services))
}

// View is a virtual service with its status. The caller fills Metadata. ok is false if there is none.
func (t *Table) View(name string) (s v1.VirtualService, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.services[name]
	if e == nil {
		return s, false
	}
	s = v1.VirtualService{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindVirtualService}, Metadata: v1.ObjectMeta{Name: name}, Spec: e.spec}
	s.Status = &v1.VirtualServiceStatus{Source: e.source, Instances: e.instances}
	programmed := v1.Condition{Type: "Programmed", Status: "False", Reason: "NoModule",
		Message: "no module works with virtual services; apply one that does, such as the package proxy"}
	for _, f := range t.followers {
		reason := f.Lacks(name)
		if reason == "" && !slices.Contains(s.Status.Modules, f.Module) {
			s.Status.Modules = append(s.Status.Modules, f.Module)
		}
		switch {
		case reason != "":
			programmed.Status, programmed.Reason, programmed.Message = "False", "Pending", "module "+f.Module+": "+reason
		case programmed.Reason == "NoModule":
			programmed.Status, programmed.Reason, programmed.Message = "True", "Taken", ""
		}
	}
	slices.Sort(s.Status.Modules)
	s.Status.Conditions = []v1.Condition{e.ready(), e.resolved(), programmed}
	return s, true
}

func (e *entry) ready() v1.Condition {
	c := v1.Condition{Type: "Ready", Status: "False", Reason: "NoInstance", Message: "no instance has an address and takes connections"}
	n := 0
	for _, i := range e.instances {
		if len(i.Addresses) > 0 && !i.Draining {
			n++
		}
	}
	if n > 0 {
		c.Status, c.Reason, c.Message = "True", "HasInstances", fmt.Sprintf("%d of %d instances take connections", n, len(e.instances))
	}
	return c
}

func (e *entry) resolved() v1.Condition {
	c := v1.Condition{Type: "Resolved", Status: "True", Reason: "AllResolved"}
	for _, i := range e.instances {
		if i.Reason != "" {
			c.Status, c.Reason, c.Message = "False", "NotFound", fmt.Sprintf("instance %s: %s", i.Name, i.Reason)
			return c
		}
	}
	if len(e.owned) < len(e.spec.Addresses) {
		c.Status, c.Reason, c.Message = "False", "AddressTaken", "another virtual service has one of its addresses"
	}
	return c
}
