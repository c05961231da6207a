// SPDX-License-Identifier: Apache-2.0

package sets

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/sdk"
)

// memory keeps sets as the kernel does. The tests of internal/agent use the kernel.
type memory struct {
	revisions map[uint64]uint64
	elements  map[uint64]map[netip.Prefix]bool
	wrote     []string // what was asked for
	fails     uint64   // set that cannot be written
}

var errFull = errors.New("no room")

func (m *memory) Has(id, revision uint64) bool { return revision != 0 && m.revisions[id] == revision }

func (m *memory) Replace(id, revision uint64, to dataplane.Elements, old *dataplane.Elements) error {
	if id == m.fails {
		return errFull
	}
	if m.wrote = append(m.wrote, "replace"); old != nil {
		m.wrote = append(m.wrote, fmt.Sprintf("of %d", len(old.List)))
	}
	m.revisions[id], m.elements[id] = revision, map[netip.Prefix]bool{}
	for _, p := range to.List {
		m.elements[id][p] = true
	}
	return nil
}

func (m *memory) Change(id, revision uint64, add, remove []netip.Prefix) error {
	if m.revisions[id] = 0; id == m.fails {
		return errFull
	}
	m.wrote = append(m.wrote, fmt.Sprintf("change +%d -%d", len(add), len(remove)))
	for _, p := range add {
		m.elements[id][p] = true
	}
	for _, p := range remove {
		delete(m.elements[id], p)
	}
	m.revisions[id] = revision
	return nil
}

func (m *memory) Retain(keep map[uint64]bool) error {
	maps.DeleteFunc(m.revisions, func(id, _ uint64) bool { return !keep[id] })
	maps.DeleteFunc(m.elements, func(id uint64, _ map[netip.Prefix]bool) bool { return !keep[id] })
	return nil
}

func (*memory) Close() {}

// of lists the elements of a set.
func (m *memory) of(r sdk.SetReference) (all []string) {
	for p := range m.elements[r.ID()] {
		all = append(all, p.String())
	}
	slices.Sort(all)
	return all
}

func (m *memory) check(t *testing.T, r sdk.SetReference, want ...string) {
	t.Helper()
	if got := m.of(r); !slices.Equal(got, want) {
		t.Errorf("the kernel has %v, want %v", got, want)
	}
}

// expectWrites expects what was written since the last time.
func (m *memory) expectWrites(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(m.wrote, want) {
		t.Errorf("wrote %q, want %q", m.wrote, want)
	}
	m.wrote = nil
}

func newSets() (*Sets, *memory) {
	m := &memory{revisions: map[uint64]uint64{}, elements: map[uint64]map[netip.Prefix]bool{}}
	return New(slog.New(slog.DiscardHandler), func(create bool) (Kernel, error) {
		if !create {
			return nil, nil
		}
		return m, nil
	}, never), m
}

func never() bool { return false }

func (s *Sets) mustFill(t *testing.T, now, next State) {
	t.Helper()
	if failed, selected, err := s.fillAll(now.Desired, next); len(failed) > 0 || selected != nil || err != nil {
		t.Fatal(failed, selected, err)
	}
}

// Nothing is written until a module refers to a set, then each change once, and a set that is not desired is removed.
func TestFill(t *testing.T) {
	s, m := newSets()
	fw, bad := using(toSet("bad")), toSet("bad")
	one, two := set("bad", "addresses", "192.0.2.1"), set("bad", "addresses", "192.0.2.1", "192.0.2.2")
	s.mustFill(t, State{}, state(nil, one))
	if s.Kernel != nil {
		t.Error("maps were created for sets that no module uses")
	}
	s.mustFill(t, State{}, state(fw, one))
	m.expectWrites(t, "replace")
	s.mustFill(t, state(fw, one), state(fw, one))
	m.expectWrites(t)
	s.mustFill(t, state(fw, one), state(fw, two))
	m.expectWrites(t, "replace", "of 1")
	m.check(t, bad, "192.0.2.1/32", "192.0.2.2/32")
	again, _ := newSets() // as after a restart: same elements, in another order
	again.Kernel = m
	again.mustFill(t, State{}, state(fw, set("bad", "addresses", "192.0.2.2", "192.0.2.1")))
	m.expectWrites(t)
	again.mustFill(t, State{}, state(fw, set("bad", "prefixes", "192.0.2.0/24")))
	m.check(t, bad, "192.0.2.0/24")
	if s.Retain(state(nil)); len(m.revisions) > 0 {
		t.Errorf("the kernel has %v", m.revisions)
	}
}

// A set that cannot be written keeps no other from being written; both errors name it.
func TestFillOfSetThatFails(t *testing.T) {
	s, m := newSets()
	m.fails = toSet("bad").ID()
	all := state(using(toSet("bad")), set("bad", "addresses", "192.0.2.1"), set("good", "ports", "1"))
	failed, _, err := s.fillAll(resource.State{}, all)
	if !errors.Is(err, errFull) || !errors.Is(failed["bad"], errFull) || failed["good"] != nil {
		t.Errorf("%v, by set %v", err, failed)
	}
	if len(m.of(toSet("good"))) != 1 {
		t.Error("the other set was not written")
	}
	down := New(slog.Default(), func(bool) (Kernel, error) { return nil, errFull }, never)
	failed, _, err = down.fillAll(resource.State{}, all)
	if !errors.Is(err, errFull) || len(failed) != 2 {
		t.Errorf("without maps: %v, by set %v", err, failed)
	}
}

// A change of elements writes the difference. What the kernel has from elsewhere is replaced before.
func TestChange(t *testing.T) {
	s, m := newSets()
	bad := toSet("bad")
	before, after := set("bad", "addresses", "192.0.2.1"), set("bad", "addresses", "192.0.2.2", "192.0.2.3")
	change := func() error {
		return s.Change(before, after, []string{"192.0.2.2", "192.0.2.3"}, []string{"192.0.2.1"})
	}
	if err := change(); err != nil || s.Kernel != nil {
		t.Errorf("no module refers to it: %v", err)
	}
	s.mustFill(t, State{}, state(using(bad), before))
	m.expectWrites(t, "replace")
	if err := change(); err != nil {
		t.Fatal(err)
	}
	m.expectWrites(t, "change +2 -1")
	m.check(t, bad, "192.0.2.2/32", "192.0.2.3/32")
	s.mustFill(t, state(nil, after), state(using(bad), set("bad", "addresses", after.Spec.Elements...)))
	m.expectWrites(t) // its revision is that of its elements
	m.revisions[bad.ID()], m.elements[bad.ID()] = 99, map[netip.Prefix]bool{netip.MustParsePrefix("203.0.113.1/32"): true}
	if err := change(); err != nil {
		t.Fatal(err)
	}
	m.check(t, bad, "192.0.2.2/32", "192.0.2.3/32")
	m.fails = bad.ID()
	var unavailable *apierrors.Unavailable
	if err := change(); !errors.As(err, &unavailable) {
		t.Errorf("a change that fails: %v", err)
	}
}

// Of services that a selector selects the addresses are written, and of a change the difference.
func TestFillSelectedServices(t *testing.T) {
	s, m := newSets()
	db := toServices("role=db")
	next := state(using(db))
	next.Services = map[string]service.State{"a": {Links: []service.Link{linkOf(3, "10.0.0.1/24")}},
		"b": {Links: []service.Link{linkOf(4, "10.0.0.2/24")}}}
	label := func(name, role string) {
		o := v1.Service{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindService},
			Metadata: v1.ObjectMeta{Name: name, Labels: map[string]string{"role": role}}}
		next.Desired.Put(resource.ObjectOf(o))
	}
	label("a", "db")
	label("b", "web")
	s.mustFill(t, State{}, next)
	m.expectWrites(t, "replace")
	m.check(t, db, "10.0.0.1/32")
	label("b", "db")
	s.mustFill(t, State{}, next)
	m.expectWrites(t, "change +1 -0")
	m.check(t, db, "10.0.0.1/32", "10.0.0.2/32")
	m.fails = db.ID()
	label("a", "web")
	failed, selected, err := s.fillAll(next.Desired, next)
	if !errors.Is(selected, errFull) || err != nil || len(failed) > 0 {
		t.Errorf("%v, %v, by set %v", selected, err, failed)
	}
	m.fails = 0
	s.mustFill(t, State{}, next)
	m.expectWrites(t, "replace") // what the kernel has is not known
	m.check(t, db, "10.0.0.2/32")
}
