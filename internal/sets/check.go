// SPDX-License-Identifier: Apache-2.0

package sets

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/sdk"
)

// Check rejects references to sets that do not exist, or are of another type, unless it was so before. A set that is
// deleted or changes its type while modules refer to it is a conflict.
func Check(now, next State) error {
	var wrong []error
	for module, all := range next.references() {
		for _, r := range all {
			if err := checkReference(now, next, module, r); err != nil {
				wrong = append(wrong, err)
			}
		}
	}
	for name := range resource.Set.All(now.Desired) {
		if _, kept := resource.Set.Get(next.Desired, name); kept {
			continue
		}
		for module, d := range next.Modules {
			if d != nil && d.Err != nil && names(d.Resource.Spec.Config, name) {
				wrong = append(wrong, &apierrors.Conflict{Reason: fmt.Sprintf("module %s, which cannot run now, names set %s: "+
					"change the module first, or make it run", module, name)})
			}
		}
	}
	return errors.Join(append(wrong, checkRoom(now, next))...)
}

// references lists the sets that modules refer to, by module.
func (s State) references() map[string][]sdk.SetReference {
	out := map[string][]sdk.SetReference{}
	for name, d := range s.Modules {
		if d != nil && len(d.Dataplane.Settings.Sets) > 0 {
			out[name] = d.Dataplane.Settings.Sets
		}
	}
	return out
}

// checkRoom rejects more sets and selectors of services than the kernel has room for: rules that refer to one that is
// missing match nothing. Those that go with the change count, as they stay until the new ones are in use. Without a
// reference nothing of it is in the kernel.
func checkRoom(now, next State) error {
	all := now.ids()
	before := len(all)
	var added string
	for id, what := range next.ids() {
		if _, known := all[id]; !known && (added == "" || what < added) {
			added = what
		}
		all[id] = what
	}
	if added == "" || len(all) <= dataplane.MaxSets || len(next.references()) == 0 {
		return nil
	}
	return &apierrors.Conflict{Reason: fmt.Sprintf("%s: the kernel has room for %d sets and selectors of services, and "+
		"has %d: delete sets that no module uses, or put the elements of several sets into one", added, dataplane.MaxSets,
		before)}
}

// ids returns the sets of a state, and what modules select services by, with a description of each.
func (s State) ids() map[uint64]string {
	out := map[uint64]string{}
	for name := range resource.Set.All(s.Desired) {
		out[sdk.SetReference{Set: name}.ID()] = "set " + name
	}
	for module, all := range s.references() {
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
func checkReference(now, next State, module string, r sdk.SetReference) error {
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
	before, existed := resource.Set.Get(now.Desired, r.Set)
	set, exists := resource.Set.Get(next.Desired, r.Set)
	fits := func(s v1.Set) bool { return len(r.Types) == 0 || slices.Contains(r.Types, s.Spec.Type) }
	switch {
	case exists && fits(set):
		return nil
	case existed && fits(before):
		return &apierrors.Conflict{Reason: fmt.Sprintf("set %s is used by module %s (spec.config.%s): change the module "+
			"first", r.Set, module, r.Field)}
	case next.Modules[module] == now.Modules[module]:
		return nil
	case exists:
		return invalid("set %s has the type %s, and must have %s", r.Set, set.Spec.Type, strings.Join(r.Types, " or "))
	}
	return invalid("there is no set %s: create it with kerb set load %s FILE, or apply it together with the module", r.Set,
		r.Set)
}
