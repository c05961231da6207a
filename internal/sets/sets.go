// SPDX-License-Identifier: Apache-2.0

// Package sets writes what rules refer to by name into the maps that modules share: the elements of sets, and the
// addresses of the services that a selector selects. The maps exist from the first config on that refers to one. A set
// is written before modules refer to it, and removed after they have stopped; the store is written after the kernel,
// and both are compared by the revision of each set when the agent starts.
package sets

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"unsafe"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/sdk"
)

// State is what sets follow from.
type State struct {
	Desired  resource.State
	Modules  map[string]*deploy.Module
	Services map[string]service.State // as observed
}

// Kernel has the sets by the identity of their sdk.SetReference: *dataplane.Sets.
type Kernel interface {
	Has(id, revision uint64) bool
	Replace(id, revision uint64, to dataplane.Elements, old *dataplane.Elements) error
	Change(id, revision uint64, add, remove []netip.Prefix) error
	Retain(keep map[uint64]bool) error
	Close()
}

var _ Kernel = (*dataplane.Sets)(nil)

// Sets are those in the kernel. Its methods are not safe for concurrent use.
type Sets struct {
	Kernel Kernel // nil: no module has referred to a set

	log      *slog.Logger
	open     func(create bool) (Kernel, error)
	keepAll  func() bool
	services map[uint64][]netip.Prefix // addresses by selector, as written
	hashes   map[string]elementsHash   // by name of a set
	leftOut  []string                  // addresses that services have and sets do not, as last logged

	mu       sync.Mutex // guards what the last Fill left undone
	problem  error
	problems map[string]error // by set
}

// New returns sets whose kernel is opened when it is needed. open returns nil if there are no maps and create is not
// set. While keepAll, Retain removes nothing.
func New(log *slog.Logger, open func(create bool) (Kernel, error), keepAll func() bool) *Sets {
	return &Sets{log: log, open: open, keepAll: keepAll, services: map[uint64][]netip.Prefix{},
		hashes: map[string]elementsHash{}}
}

// Close closes the maps.
func (s *Sets) Close() {
	if s.Kernel != nil {
		s.Kernel.Close()
	}
}

// Problem returns why the last Fill has not written a set; with an empty name, why it has not written all that it was
// to write. It is safe for concurrent use.
func (s *Sets) Problem(set string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if set == "" {
		return s.problem
	}
	return s.problems[set]
}

// Fill writes all sets of the next state before modules meet them. What is not desired any more stays: see Retain. A
// set that fails keeps no other one from being written. An error of selected services is a Problem alone: services
// change their addresses themselves, and reconciliation tries again.
func (s *Sets) Fill(now resource.State, next State) error {
	failed, selected, err := s.fillAll(now, next)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problem, s.problems = cmp.Or(err, selected), failed
	return err
}

func (s *Sets) fillAll(now resource.State, next State) (failed map[string]error, selected, err error) {
	if s.Kernel == nil {
		s.Kernel, err = s.open(len(next.references()) > 0)
		if err == nil && s.Kernel == nil {
			return nil, nil, nil
		}
	}
	failed = map[string]error{}
	if err != nil {
		for name := range resource.Set.All(next.Desired) {
			failed[name] = err
		}
		return failed, nil, err
	}
	var errs []error
	for name, set := range resource.Set.All(next.Desired) {
		if err := s.fill(now, set); err != nil {
			failed[name] = fmt.Errorf("set %s: %w", name, err)
			errs = append(errs, failed[name])
		}
	}
	if len(errs) > 0 {
		return failed, nil, errors.Join(errs...)
	}
	return failed, s.fillSelected(next), nil
}

// fill puts the elements of a set into the kernel, unless they are there. From a set whose elements are known only the
// difference is written.
func (s *Sets) fill(now resource.State, set v1.Set) error {
	name := set.Metadata.Name
	id, revision := sdk.SetReference{Set: name}.ID(), s.revision(set)
	if s.Kernel.Has(id, revision) {
		return nil
	}
	var old *dataplane.Elements
	if before, ok := resource.Set.Get(now, name); ok && s.Kernel.Has(id, s.revision(before)) {
		elements := elementsOf(before.Spec.Type, before.Spec.Elements)
		old = &elements
	}
	return s.Kernel.Replace(id, revision, elementsOf(set.Spec.Type, set.Spec.Elements), old)
}

// Change changes elements of a set. If that fails, Fill is to restore it.
func (s *Sets) Change(before, after v1.Set, added, removed []string) error {
	if s.Kernel == nil {
		return nil
	}
	if err := s.change(before, after, added, removed); err != nil {
		return &apierrors.Unavailable{Resource: "Set " + after.Metadata.Name, Reason: err.Error()}
	}
	return nil
}

func (s *Sets) change(before, after v1.Set, added, removed []string) error {
	name, kind := after.Metadata.Name, after.Spec.Type
	id, revision := sdk.SetReference{Set: name}.ID(), s.revision(before)
	if !s.Kernel.Has(id, revision) {
		if err := s.Kernel.Replace(id, revision, elementsOf(kind, before.Spec.Elements), nil); err != nil {
			return err
		}
	}
	s.hashes[name] = elementsHash{after.Spec.Elements, s.hashes[name].sum + sumOf(added...) - sumOf(removed...)}
	return s.Kernel.Change(id, s.revision(after), elementsOf(kind, added).List, elementsOf(kind, removed).List)
}

// elementsHash is a hash of elements, whatever their order is.
type elementsHash struct {
	of  []string // not changed, only replaced
	sum uint64
}

func sumOf(elements ...string) (sum uint64) {
	for _, e := range elements {
		h := fnv.New64a()
		h.Write([]byte(e))
		sum += h.Sum64()
	}
	return sum
}

// revision is that of a set in the kernel. It depends on the type and the elements alone: a store that is older than
// the kernel, or was re-created, uses a metadata.generation again for other elements.
func (s *Sets) revision(set v1.Set) uint64 {
	h, now := s.hashes[set.Metadata.Name], set.Spec.Elements
	if len(h.of) != len(now) || unsafe.SliceData(h.of) != unsafe.SliceData(now) {
		h = elementsHash{now, sumOf(now...)}
		s.hashes[set.Metadata.Name] = h
	}
	return h.sum + sumOf(set.Spec.Type) | 1
}

// elementsOf returns elements, which are valid, as the kernel has them.
func elementsOf(kind string, elements []string) dataplane.Elements {
	out := dataplane.Elements{Prefixes: kind == sdk.SetPrefixes, List: make([]netip.Prefix, 0, len(elements))}
	for _, text := range elements {
		if p, err := resource.ParseElement(kind, text); err == nil {
			out.List = append(out.List, p)
		}
	}
	return out
}

// fillSelected writes the addresses of services by label.
func (s *Sets) fillSelected(next State) error {
	used := map[string]sdk.SetReference{}
	for _, all := range next.references() {
		for _, r := range all {
			if r.Services != "" {
				used[r.Services] = r
			}
		}
	}
	if len(used) == 0 {
		return nil
	}
	own, leftOut := ownAddresses(next.Services)
	if len(leftOut) > 0 && !slices.Equal(leftOut, s.leftOut) {
		s.log.Warn("addresses that services have are not in the sets of services", "leftOut", leftOut)
	}
	s.leftOut = leftOut
	var errs []error
	for _, selector := range slices.Sorted(maps.Keys(used)) {
		if err := s.fillServices(used[selector], next.Desired, own); err != nil {
			errs = append(errs, fmt.Errorf("addresses of services %q: %w", selector, err))
		}
	}
	return errors.Join(errs...)
}

// fillServices writes the addresses of the services that a selector selects.
func (s *Sets) fillServices(r sdk.SetReference, next resource.State, own map[string][]netip.Prefix) error {
	selector, err := service.ParseSelector(r.Services)
	if err != nil {
		return err
	}
	var now []netip.Prefix
	for name, selected := range resource.Service.All(next) {
		if selector.Matches(selected.Metadata.Labels) {
			now = append(now, own[name]...)
		}
	}
	slices.SortFunc(now, netip.Prefix.Compare)
	now = slices.Compact(now)
	h := fnv.New64a()
	fmt.Fprint(h, now)
	id, revision := r.ID(), h.Sum64()|1
	before, known := s.services[id]
	switch {
	case s.Kernel.Has(id, revision):
	case known:
		err = s.Kernel.Change(id, revision, missingFrom(now, before), missingFrom(before, now))
	default:
		err = s.Kernel.Replace(id, revision, dataplane.Elements{List: now}, nil)
	}
	if err != nil {
		delete(s.services, id)
		return err
	}
	s.services[id] = now
	return nil
}

// missingFrom returns the elements of all that are not in others, which is sorted.
func missingFrom(all, others []netip.Prefix) (out []netip.Prefix) {
	for _, p := range all {
		if _, found := slices.BinarySearchFunc(others, p, netip.Prefix.Compare); !found {
			out = append(out, p)
		}
	}
	return out
}

// Retain removes the sets that are not desired from the kernel.
func (s *Sets) Retain(now State) {
	if s.Kernel == nil || s.keepAll() {
		return
	}
	keep := map[uint64]bool{}
	for id := range now.ids() {
		keep[id] = true
	}
	maps.DeleteFunc(s.hashes, func(name string, _ elementsHash) bool {
		return !keep[sdk.SetReference{Set: name}.ID()]
	})
	maps.DeleteFunc(s.services, func(id uint64, _ []netip.Prefix) bool { return !keep[id] })
	if err := s.Kernel.Retain(keep); err != nil {
		s.log.Warn("sets that were deleted remain in the kernel", "error", err)
	}
}
