// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"cmp"
	"fmt"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
)

// Writer identifies the author of a change. The zero value is the user.
type Writer struct {
	Owner string // user unless set
	Force bool   // also changes resources of other owners, and takes them over
}

// stored returns metadata.owner for resources that the writer applies. Resources of the user have none, like those that
// were stored before there were owners.
func (w Writer) stored() string {
	if w.Owner == v1alpha1.OwnerUser {
		return ""
	}
	return w.Owner
}

// Check returns *apierrors.Conflict if the resource belongs to another owner.
func (w Writer) Check(o Object) error {
	if w.Force || o.Meta().Owner == w.stored() {
		return nil
	}
	return &apierrors.Conflict{Reason: fmt.Sprintf(
		"%s belongs to %s, which would change it back: change it there, or take it over with --force (force=true)",
		RefOf(o), OwnerOf(o))}
}

// OwnerOf returns the owner of a resource.
func OwnerOf(o Object) string { return cmp.Or(o.Meta().Owner, v1alpha1.OwnerUser) }

// Others names the resources of the writer that are not in all.
func (s State) Others(all []Object, by Writer) (refs []Ref) {
	keep := StateOf(all...)
	for _, kind := range kinds {
		name := kind.Names().Kind
		for _, one := range s.Names(kind) {
			if o := s[name][one]; keep[name][one] == nil && o.Meta().Owner == by.stored() {
				refs = append(refs, RefOf(o))
			}
		}
	}
	return refs
}
