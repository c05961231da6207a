// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"maps"
	"net/netip"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

var _ Sink = (*Table)(nil)

// Put implements Sink.
func (t *Table) Put(source string, s Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refuse(source, s) {
		return
	}
	created := t.services[s.Name] == nil
	t.put(s.Name, source, s.Spec)
	t.cache.put(source, s)
	e := t.services[s.Name]
	kept := e.keep
	e.keep = s.Keep
	for _, addr := range addressesOf(s.Spec) { // including those of another one that was applied in the meantime
		if l := t.lookups[addr]; l != nil {
			maps.Copy(e.users, l.waiting)
			for s := range l.waiting {
				s.getLast(e.name)
			}
			delete(t.lookups, addr)
		}
	}
	if created && (e.keep || len(e.users) > 0) {
		for _, s := range t.subscriptions {
			e.users[s] = true
		}
	}
	if kept && !e.keep || created && !e.keep && len(e.users) == 0 { // it came after a release, or too late for a lookup
		t.release(nil, s.Name)
	}
}

// refuse reports whether a record cannot be accepted. The lookup then counts as not found, and the resolver forgets
// what the table does not have.
func (t *Table) refuse(source string, s Record) bool {
	old := t.services[s.Name]
	switch {
	case old != nil && old.source != source:
		t.log.Warn("two sources have virtual services of one name", "name", s.Name, "kept", old.source, "refused", source)
	case slices.ContainsFunc(s.Spec.Instances, func(i v1.VirtualInstance) bool { return !isNodePort(i.NodePort) }):
		t.log.Warn("a resolver has found a virtual service with an invalid nodePort, which is ignored", "name", s.Name,
			"source", source)
	default:
		return false
	}
	for _, addr := range addressesOf(s.Spec) {
		t.notFound(source, addr)
	}
	if old == nil || old.source != source {
		t.forget(source, s.Name)
	}
	return true
}

// Delete implements Sink.
func (t *Table) Delete(source, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(name, source)
	t.restoreShadowed()
	t.cache.remove(source, name)
}

// NotFound implements Sink.
func (t *Table) NotFound(source string, addr netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notFound(source, addr)
}

// notFound records that a source does not know the address. Clients that wait for it receive the answer only after all
// sources have answered.
func (t *Table) notFound(source string, addr netip.Addr) {
	l := t.lookups[addr]
	if l == nil {
		return
	}
	if delete(l.open, source); len(l.open) > 0 {
		return
	}
	delete(t.lookups, addr)
	for s := range l.waiting {
		s.sendNotFound(addr)
	}
}

// Records implements Sink.
func (t *Table) Records(source string) map[string]Record {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[string]Record{}
	for name, e := range t.services {
		if e.source == source {
			out[name] = Record{Name: name, Spec: e.spec}
		}
	}
	return out
}
