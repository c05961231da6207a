// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"unsafe"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/server"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/sdk"
)

// sets writes sets to the maps that modules share. The maps exist from the first config on that refers to one. A set is
// written before modules refer to it, and removed after they have stopped; the store is written after the kernel, and
// both are compared by the revision of each set when the agent starts.
type sets struct {
	kernel   *dataplane.Sets           // nil: no module has referred to a set; guarded by Agent.changes
	services map[uint64][]netip.Prefix // addresses by selector, as written
	hashes   map[string]elementsHash   // by name of a set
	leftOut  []string                  // addresses that services have and sets do not, as last logged
}

// references lists the sets that modules refer to, by module.
func references(modules map[string]*deploy.Module) map[string][]sdk.SetReference {
	out := map[string][]sdk.SetReference{}
	for name, d := range modules {
		if d != nil && len(d.Dataplane.Settings.Sets) > 0 {
			out[name] = d.Dataplane.Settings.Sets
		}
	}
	return out
}

// checkSets rejects references to sets that do not exist, or are of another type, unless it was so before. A set that
// is deleted or changes its type while modules refer to it is a conflict.
func (a *Agent) checkSets(next resource.Set, modules map[string]*deploy.Module) error {
	var wrong []error
	for module, all := range references(modules) {
		for _, r := range all {
			if err := a.checkReference(next, module, r, modules[module] == a.now.Modules[module]); err != nil {
				wrong = append(wrong, err)
			}
		}
	}
	for name := range resource.NamedSet.All(a.now.Desired) {
		if _, kept := resource.NamedSet.Get(next, name); kept {
			continue
		}
		for module, d := range modules {
			if d != nil && d.Err != nil && names(d.Resource.Spec.Config, name) {
				wrong = append(wrong, &apierrors.Conflict{Reason: fmt.Sprintf("module %s, which cannot run now, names set %s: "+
					"change the module first, or make it run", module, name)})
			}
		}
	}
	return errors.Join(append(wrong, a.checkRoom(next, modules))...)
}

// checkRoom rejects more sets and selectors of services than the kernel has room for: rules that refer to one that is
// missing match nothing. Those that go with the change count, as they stay until the new ones are in use. Without a
// reference nothing of it is in the kernel.
func (a *Agent) checkRoom(next resource.Set, modules map[string]*deploy.Module) error {
	all := setIDs(a.now.Desired, a.now.Modules)
	before := len(all)
	var added string
	for id, what := range setIDs(next, modules) {
		if _, known := all[id]; !known && (added == "" || what < added) {
			added = what
		}
		all[id] = what
	}
	if added == "" || len(all) <= dataplane.MaxSets || len(references(modules)) == 0 {
		return nil
	}
	return &apierrors.Conflict{Reason: fmt.Sprintf("%s: the kernel has room for %d sets and selectors of services, and "+
		"has %d: delete sets that no module uses, or put the elements of several sets into one", added, dataplane.MaxSets,
		before)}
}

// setIDs returns the sets of a state, and what modules select services by, with a description of each.
func setIDs(desired resource.Set, modules map[string]*deploy.Module) map[uint64]string {
	out := map[uint64]string{}
	for name := range resource.NamedSet.All(desired) {
		out[sdk.SetReference{Set: name}.ID()] = "set " + name
	}
	for module, all := range references(modules) {
		for _, r := range all {
			if id := r.ID(); out[id] == "" {
				out[id] = fmt.Sprintf("module %s: spec.config.%s", module, r.Field)
			}
		}
	}
	return out
}

// names reports whether a config, as decoded from JSON, has the text. Which of its fields are sets, only the control
// plane knows.
func names(config any, text string) bool {
	switch c := config.(type) {
	case string:
		return c == text
	case []any:
		return slices.ContainsFunc(c, func(v any) bool { return names(v, text) })
	case map[string]any:
		for _, v := range c {
			if names(v, text) {
				return true
			}
		}
	}
	return false
}

// checkReference checks that the set a config names will exist, with a type that the module accepts. Taking away a set
// in use is a *apierrors.Conflict, a wrong name *apierrors.Invalid; a module that this change does not touch is not
// refused for either.
func (a *Agent) checkReference(next resource.Set, module string, r sdk.SetReference, unchanged bool) error {
	invalid := func(format string, args ...any) error {
		return &apierrors.Invalid{Resource: "Module " + module, Field: "spec.config." + r.Field,
			Reason: fmt.Sprintf(format, args...)}
	}
	if r.Services != "" {
		if _, err := service.ParseSelector(r.Services); err != nil {
			return invalid("%v", err)
		}
		return nil
	}
	before, existed := resource.NamedSet.Get(a.now.Desired, r.Set)
	set, exists := resource.NamedSet.Get(next, r.Set)
	fits := func(s v1.Set) bool { return len(r.Types) == 0 || slices.Contains(r.Types, s.Spec.Type) }
	switch {
	case exists && fits(set):
		return nil
	case existed && fits(before):
		return &apierrors.Conflict{Reason: fmt.Sprintf("set %s is used by module %s (spec.config.%s): change the module "+
			"first", r.Set, module, r.Field)}
	case unchanged:
		return nil
	case exists:
		return invalid("set %s has the type %s, and must have %s", r.Set, set.Spec.Type, strings.Join(r.Types, " or "))
	}
	return invalid("there is no set %s: create it with kerb set load %s FILE, or apply it together with the module", r.Set,
		r.Set)
}

// fillSets writes all sets of a desired state before modules meet them. What is not desired any more stays: see
// retainSets.
func (a *Agent) fillSets(next resource.Set, modules map[string]*deploy.Module,
	services map[string]service.State,
) error {
	failed, err := a.tryFillSets(next, modules)
	problem := err
	if err == nil {
		problem = a.fillSelected(next, modules, services)
	}
	a.mu.Lock()
	a.now.SetsProblem, a.now.SetProblems = problem, failed
	a.mu.Unlock()
	return err
}

// tryFillSets also returns the errors of single sets: a set that fails keeps no other one from being written.
func (a *Agent) tryFillSets(next resource.Set, modules map[string]*deploy.Module) (failed map[string]error, err error) {
	if a.sets.kernel == nil {
		a.sets.kernel, err = a.dp.OpenSets(len(references(modules)) > 0)
		if err == nil && a.sets.kernel == nil {
			return nil, nil
		}
	}
	failed = map[string]error{}
	if err != nil {
		for name := range resource.NamedSet.All(next) {
			failed[name] = err
		}
		return failed, err
	}
	var errs []error
	for name, s := range resource.NamedSet.All(next) {
		if err := a.fillSet(name, s); err != nil {
			failed[name] = fmt.Errorf("set %s: %w", name, err)
			errs = append(errs, failed[name])
		}
	}
	return failed, errors.Join(errs...)
}

// fillSelected writes the addresses of services by label. An error keeps nothing else from running: services change
// their addresses themselves, and reconciliation tries again.
func (a *Agent) fillSelected(next resource.Set, modules map[string]*deploy.Module, services map[string]service.State,
) error {
	used := map[string]sdk.SetReference{}
	for _, all := range references(modules) {
		for _, r := range all {
			if r.Services != "" {
				used[r.Services] = r
			}
		}
	}
	if len(used) == 0 {
		return nil
	}
	own, leftOut := ownAddresses(services)
	if len(leftOut) > 0 && !slices.Equal(leftOut, a.sets.leftOut) {
		a.log.Warn("addresses that services have are not in the sets of services", "leftOut", leftOut)
	}
	a.sets.leftOut = leftOut
	var errs []error
	for _, selector := range slices.Sorted(maps.Keys(used)) {
		if err := a.fillServices(used[selector], next, own); err != nil {
			errs = append(errs, fmt.Errorf("addresses of services %q: %w", selector, err))
		}
	}
	return errors.Join(errs...)
}

// fillSet puts the elements of a set into the kernel, unless they are there. From a set whose elements are known only
// the difference is written.
func (a *Agent) fillSet(name string, s v1.Set) error {
	id, revision := sdk.SetReference{Set: name}.ID(), a.sets.revision(s)
	if a.sets.kernel.Has(id, revision) {
		return nil
	}
	var old *dataplane.Elements
	if before, ok := resource.NamedSet.Get(a.now.Desired, name); ok && a.sets.kernel.Has(id, a.sets.revision(before)) {
		elements := elementsOf(before.Spec.Type, before.Spec.Elements)
		old = &elements
	}
	return a.sets.kernel.Replace(id, revision, elementsOf(s.Spec.Type, s.Spec.Elements), old)
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
func (s *sets) revision(set v1.Set) uint64 {
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

// fillServices writes the addresses of the services that a selector selects.
func (a *Agent) fillServices(r sdk.SetReference, next resource.Set, own map[string][]netip.Prefix) error {
	selector, err := service.ParseSelector(r.Services)
	if err != nil {
		return err
	}
	var now []netip.Prefix
	for name, s := range resource.Service.All(next) {
		if selector.Matches(s.Metadata.Labels) {
			now = append(now, own[name]...)
		}
	}
	slices.SortFunc(now, netip.Prefix.Compare)
	now = slices.Compact(now)
	h := fnv.New64a()
	fmt.Fprint(h, now)
	id, revision := r.ID(), h.Sum64()|1
	before, known := a.sets.services[id]
	switch {
	case a.sets.kernel.Has(id, revision):
	case known:
		err = a.sets.kernel.Change(id, revision, missingFrom(now, before), missingFrom(before, now))
	default:
		err = a.sets.kernel.Replace(id, revision, dataplane.Elements{List: now}, nil)
	}
	if err != nil {
		delete(a.sets.services, id)
		return err
	}
	a.sets.services[id] = now
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

// retainSets removes the sets that are not desired from the kernel. As long as the state of a damaged store is missing,
// what runs may need them.
func (a *Agent) retainSets() {
	if a.sets.kernel == nil || a.store.RecoveryPending() {
		return
	}
	keep := map[uint64]bool{}
	for id := range setIDs(a.now.Desired, a.now.Modules) {
		keep[id] = true
	}
	maps.DeleteFunc(a.sets.hashes, func(name string, _ elementsHash) bool {
		return !keep[sdk.SetReference{Set: name}.ID()]
	})
	maps.DeleteFunc(a.sets.services, func(id uint64, _ []netip.Prefix) bool { return !keep[id] })
	if err := a.sets.kernel.Retain(keep); err != nil {
		a.log.Warn("sets that were deleted remain in the kernel", "error", err)
	}
}

// restoreSets makes the sets in the kernel what they were before a change that failed. If that fails, too,
// reconciliations try it again.
func (a *Agent) restoreSets() {
	if err := a.fillSets(a.now.Desired, a.now.Modules, a.now.Services); err != nil {
		a.log.Error("sets cannot be restored; trying again", "error", err)
		a.requestReconcile()
	}
	a.retainSets()
}

// restoreSetsAfter restores sets if a change has failed.
func (a *Agent) restoreSetsAfter(err error) {
	if err != nil {
		a.restoreSets()
	}
}

// ChangeSet adds and deletes elements of a set.
func (a *Agent) ChangeSet(ctx context.Context, r server.SetRequest) (result v1.SetChanged, err error) {
	defer func() {
		a.audit(ctx, v1.ApplyResult{Changes: []v1.Change{{Action: "update", Kind: v1.KindSet, Name: r.Name}}}, err)
	}()
	a.changes.Lock()
	defer a.changes.Unlock()
	before, ok := resource.NamedSet.Get(a.now.Desired, r.Name)
	if !ok {
		return result, &apierrors.NotFound{Kind: v1.KindSet, Name: r.Name}
	}
	set := before
	added, removed, err := r.Change(&set)
	result = v1.SetChanged{Added: len(added), Deleted: len(removed), Elements: len(set.Spec.Elements)}
	if err != nil || len(added)+len(removed) == 0 {
		return result, err
	}
	next := a.now.Desired.Clone()
	next.Put(resource.ObjectOf(set))
	if err := resource.CheckElements(next, r.Name); err != nil {
		return result, err
	}
	return result, a.changeElements(next, before, set, added, removed)
}

// changeElements changes the kernel, then the store. If either fails, both are as before.
func (a *Agent) changeElements(next resource.Set, before, set v1.Set, added, removed []string) error {
	if k, name := a.sets.kernel, set.Metadata.Name; k != nil {
		id := sdk.SetReference{Set: name}.ID()
		if !k.Has(id, a.sets.revision(before)) {
			if err := a.fillSet(name, before); err != nil {
				a.restoreSets()
				return &apierrors.Unavailable{Resource: "Set " + name, Reason: err.Error()}
			}
		}
		a.sets.hashes[name] = elementsHash{set.Spec.Elements, a.sets.hashes[name].sum + sumOf(added...) - sumOf(removed...)}
		err := k.Change(id, a.sets.revision(set), elementsOf(set.Spec.Type, added).List,
			elementsOf(set.Spec.Type, removed).List)
		if err != nil {
			a.restoreSets()
			return &apierrors.Unavailable{Resource: "Set " + name, Reason: err.Error()}
		}
	}
	if err := a.store.CommitParts(resource.ObjectOf(set), added, removed); err != nil {
		a.restoreSets()
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now.Desired = next
	return nil
}
