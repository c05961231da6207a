// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"cmp"
	"errors"
	"slices"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// Request is a set of resources to apply and to delete together. Resources to apply have passed the schema, and have
// defaults and no status. metadata.resourceVersion is the version that the client has seen.
type Request struct {
	Resources   []Object
	Remove      []Ref // and delete these, if their versions match
	By          Writer
	Prune       bool // delete all other resources of the owner
	IfUnchanged bool // only if the version of each of Resources matches, or it does not exist and names no version
	DryRun      bool // compute the result without any effect
	Verify      bool // with DryRun: also have the kernel verify what would be new
	Measure     bool // with Verify: also measure modules that would change
}

// Change applies the request to the desired state, and adds the changes to the result.
func (r Request) Change(desired State, result *v1alpha1.ApplyResult) (Changes, error) {
	if err := desired.CheckUnchanged(slices.Concat(r.expected(), r.Remove)); err != nil {
		return Changes{}, err
	}
	changes, err := desired.Apply(r.Resources, r.By, result)
	for _, refs := range [][]Ref{r.pruned(desired), r.Remove} {
		if err != nil {
			break
		}
		var removed Changes
		removed, err = desired.Delete(refs, r.By, result)
		changes.Remove = append(changes.Remove, removed.Remove...)
	}
	return changes, err
}

// OnlyDeletes reports whether the request does nothing but delete the resources that it names.
func (r Request) OnlyDeletes() bool { return len(r.Resources) == 0 && !r.Prune }

// pruned returns the resources that the request deletes without naming them.
func (r Request) pruned(desired State) []Ref {
	if !r.Prune {
		return nil
	}
	return desired.Others(r.Resources, r.By)
}

// expected returns the resources to apply with the versions that they must have for the request to be executed.
func (r Request) expected() []Ref {
	if !r.IfUnchanged {
		return nil
	}
	refs := Refs(r.Resources)
	for i, o := range r.Resources {
		refs[i].ResourceVersion = cmp.Or(o.Meta().ResourceVersion, Absent)
	}
	return refs
}

// SetRequest is a change of elements of a set.
type SetRequest struct {
	Name string
	By   Writer
	v1alpha1.SetChange
}

// Change applies the request to a set, and returns what it adds and removes.
func (r SetRequest) Change(set *v1alpha1.Set) (added, removed []string, err error) {
	if err := r.By.Check(set); err != nil {
		return nil, nil, err
	}
	add, wrong := NormalElements(set.Spec.Type, r.Add, "add")
	remove, alsoWrong := NormalElements(set.Spec.Type, r.Delete, "delete")
	if err := errors.Join(wrong, alsoWrong); err != nil {
		return nil, nil, err
	}
	set.Spec.Elements, added, removed = ChangeElements(set.Spec.Elements, add, remove)
	if len(added)+len(removed) > 0 {
		set.Metadata.Generation++
	}
	return added, removed, nil
}
