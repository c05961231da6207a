// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"errors"
	"iter"
	"maps"
	"reflect"
	"slices"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
)

// State is a desired state: resources by kind and name. They are not changed, only replaced.
type State map[string]map[string]Object

// StateOf returns a state with these resources.
func StateOf(all ...Object) State {
	s := State{}
	for _, o := range all {
		s.Put(o)
	}
	return s
}

// Clone returns a copy; the resources in it are shared.
func (s State) Clone() State {
	out := State{}
	for kind, all := range s {
		out[kind] = maps.Clone(all)
	}
	return out
}

// Put adds a resource, and replaces the one of the same kind and name.
func (s State) Put(o Object) {
	kind := KindOf(o).Names().Kind
	if s[kind] == nil {
		s[kind] = map[string]Object{}
	}
	s[kind][o.Meta().Name] = o
}

// Names lists the resources of a kind, sorted.
func (s State) Names(kind Kind) []string { return slices.Sorted(maps.Keys(s[kind.Names().Kind])) }

// Len returns the number of resources of a kind.
func (s State) Len(kind Kind) int { return len(s[kind.Names().Kind]) }

// Get returns a resource of the kind.
func (d *Definition[T]) Get(s State, name string) (r T, ok bool) {
	o, ok := s[d.Name][name]
	if !ok {
		return r, false
	}
	return *typed[T](o), true
}

// All iterates over the resources of the kind by name, in no order.
func (d *Definition[T]) All(s State) iter.Seq2[string, T] { return all[T](s, d.Name) }

func all[T any](s State, kind string) iter.Seq2[string, T] {
	return func(yield func(string, T) bool) {
		for name, o := range s[kind] {
			if !yield(name, *typed[T](o)) {
				return
			}
		}
	}
}

// Of returns those of the kind.
func (d *Definition[T]) Of(all []Object) (out []T) {
	for _, o := range all {
		if d.IsKind(o) {
			out = append(out, *typed[T](o))
		}
	}
	return out
}

// Ref names a resource.
type Ref struct {
	Kind string `json:"kind" doc:"Kind of resource"`
	Name string `json:"name" minLength:"1" doc:"Its name"`

	ResourceVersion string `json:"resourceVersion,omitempty" doc:"Delete only if metadata.resourceVersion is still this"`
}

// RefOf names a resource, whatever its version is.
func RefOf(o Object) Ref { return Ref{Kind: KindOf(o).Names().Kind, Name: o.Meta().Name} }

func (r Ref) String() string { return r.Kind + " " + r.Name }

// Refs names resources.
func Refs(all []Object) []Ref {
	out := make([]Ref, len(all))
	for i, o := range all {
		out[i] = RefOf(o)
	}
	return out
}

// Changes are the resources that an operation puts, as they will be stored, and those that it removes.
type Changes struct {
	Put    []Object
	Remove []Ref
}

// Len returns the number of resources that change.
func (c Changes) Len() int { return len(c.Put) + len(c.Remove) }

// InKernel reports whether one of the changes has to be executed in the kernel.
func (c Changes) InKernel() bool {
	return InKernel(c.Put) || slices.ContainsFunc(c.Remove, func(r Ref) bool {
		k, err := Find(r.Kind)
		return err == nil && k.InKernel()
	})
}

// InKernel reports whether changes of one of the resources have to be executed in the kernel.
func InKernel(all []Object) bool {
	return slices.ContainsFunc(all, func(o Object) bool { return KindOf(o).InKernel() })
}

// OfKind returns the changes of one kind.
func (c Changes) OfKind(kind Kind) (out Changes) {
	for _, o := range c.Put {
		if kind.IsKind(o) {
			out.Put = append(out.Put, o)
		}
	}
	for _, r := range c.Remove {
		if r.Kind == kind.Names().Kind {
			out.Remove = append(out.Remove, r)
		}
	}
	return out
}

// Apply puts resources into the state, and adds the changes to the result. The error is *apierrors.Conflict, joined:
// resources of other owners, unless by force.
func (s State) Apply(all []Object, by Writer, result *v1alpha1.ApplyResult) (c Changes, err error) {
	for _, o := range all {
		kind := KindOf(o)
		ref := RefOf(o)
		old, exists := s[ref.Kind][ref.Name]
		if exists {
			err = errors.Join(err, by.Check(old))
		}
		change := v1alpha1.Change{Action: "create", Kind: ref.Kind, Name: ref.Name, After: kind.Summary(o)}
		next := kind.Copy(o)
		next.ClearStatus()
		next.Meta().ResourceVersion, next.Meta().Generation, next.Meta().Owner = "", 1, by.stored()
		if exists {
			change.Action, change.Before = "update", kind.Summary(old)
			next.Meta().Generation = old.Meta().Generation + 1
		}
		if exists && reflect.DeepEqual(change.Before, change.After) && old.Meta().Owner == next.Meta().Owner {
			change = v1alpha1.Change{Action: "unchanged", Kind: ref.Kind, Name: ref.Name}
		} else {
			s.Put(next)
			c.Put = append(c.Put, next)
		}
		result.Changes = append(result.Changes, change)
	}
	return c, err
}

// WithoutDocuments returns changes without the resources before and after, which are as long as the request.
func WithoutDocuments(changes []v1alpha1.Change) []v1alpha1.Change {
	out := slices.Clone(changes)
	for i := range out {
		out[i].Before, out[i].After = nil, nil
	}
	return out
}

// CheckAll checks the requested resources against all future ones, and returns warnings about what is accepted but
// probably not intended. Errors are *apierrors.Invalid and *apierrors.Conflict, joined.
func (s State) CheckAll(asked []Object, c Changes) (warnings []string, err error) {
	if len(asked)+len(c.Put) == 0 {
		return nil, nil // a deletion
	}
	for _, k := range kinds {
		more, wrong := k.checkAll(s, asked, c.Put)
		warnings, err = append(warnings, more...), errors.Join(err, wrong)
	}
	return warnings, err
}

// Delete removes resources from the state, and adds the changes to the result. The error is *apierrors.NotFound, or
// *apierrors.Conflict for a resource of another owner, unless by force.
func (s State) Delete(refs []Ref, by Writer, result *v1alpha1.ApplyResult) (c Changes, err error) {
	for _, r := range refs {
		old, exists := s[r.Kind][r.Name]
		if !exists {
			return c, &apierrors.NotFound{Kind: r.Kind, Name: r.Name}
		}
		if err := by.Check(old); err != nil {
			return c, err
		}
		delete(s[r.Kind], r.Name)
		change := v1alpha1.Change{Action: "delete", Kind: r.Kind, Name: r.Name, Before: KindOf(old).Summary(old)}
		result.Changes = append(result.Changes, change)
		c.Remove = append(c.Remove, Ref{Kind: r.Kind, Name: r.Name})
	}
	return c, nil
}
