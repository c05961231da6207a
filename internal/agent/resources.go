// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"reflect"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/models"
	"github.com/kerb-edge/kerb/internal/resolve"
	"github.com/kerb-edge/kerb/internal/server"
	"github.com/kerb-edge/kerb/internal/store"
)

// kind is what changes know of one kind of resources.
type kind[T any] struct {
	name    string
	meta    func(*T) *v1.ObjectMeta
	content func(*T) any // of the spec: what a difference shows
	bare    func(*T)     // takes the status off
}

var (
	moduleKind = kind[v1.Module]{v1.KindModule,
		func(m *v1.Module) *v1.ObjectMeta { return &m.Metadata }, func(m *v1.Module) any { return m.Spec }, func(m *v1.Module) { m.Status = nil }}
	serviceKind = kind[v1.Service]{v1.KindService,
		func(s *v1.Service) *v1.ObjectMeta { return &s.Metadata }, func(s *v1.Service) any { return s.Spec }, func(s *v1.Service) { s.Status = nil }}
	virtualKind = kind[v1.VirtualService]{v1.KindVirtualService,
		func(s *v1.VirtualService) *v1.ObjectMeta { return &s.Metadata }, func(s *v1.VirtualService) any { return s.Spec },
		func(s *v1.VirtualService) { s.Status = nil }}
	modelKind = kind[v1.Model]{v1.KindModel,
		func(m *v1.Model) *v1.ObjectMeta { return &m.Metadata }, modelContent, func(m *v1.Model) { m.Status = nil }}
)

// modelContent stands for a document that may have megabytes.
func modelContent(m *v1.Model) any {
	return map[string]any{"version": m.Spec.DocumentVersion(), "document": m.Spec.Digest()}
}

// apply puts resources into the next desired state, and returns those that change.
func (k kind[T]) apply(all []T, next map[string]T, result *v1.ApplyResult) (changed []T) {
	for _, r := range all {
		meta := k.meta(&r)
		old, exists := next[meta.Name]
		change := changeOf(k.name, meta.Name, exists, k.sum(&old), k.sum(&r))
		result.Changes = append(result.Changes, change)
		if change.Action == "unchanged" {
			continue
		}
		meta.Generation = k.meta(&old).Generation + 1
		k.bare(&r)
		next[meta.Name] = r
		changed = append(changed, r)
	}
	return changed
}

func changeOf(kind, name string, exists bool, before, after map[string]any) v1.Change {
	switch {
	case !exists:
		return v1.Change{Action: "create", Kind: kind, Name: name, After: after}
	case reflect.DeepEqual(before, after):
		return v1.Change{Action: "unchanged", Kind: kind, Name: name}
	}
	return v1.Change{Action: "update", Kind: kind, Name: name, Before: before, After: after}
}

// delete takes what a reference names out of the next desired state, if it is of this kind and there.
func (k kind[T]) delete(ref server.Ref, next map[string]T, result *v1.ApplyResult) bool {
	old, exists := next[ref.Name]
	if ref.Kind != k.name || !exists {
		return false
	}
	delete(next, ref.Name)
	result.Changes = append(result.Changes, v1.Change{Action: "delete", Kind: ref.Kind, Name: ref.Name, Before: k.sum(&old)})
	return true
}

// sum is what of a resource counts as its content.
func (k kind[T]) sum(r *T) map[string]any {
	return map[string]any{"labels": k.meta(r).Labels, "spec": k.content(r)}
}

// applyPart puts the resources that concern control planes only into the next desired state.
func applyPart(r server.Request, next store.Desired, result *v1.ApplyResult) (p store.Part, err error) {
	p.VirtualServices.Put = virtualKind.apply(r.VirtualServices, next.VirtualServices, result)
	p.Models.Put = modelKind.apply(r.Models, next.Models, result)
	if len(p.VirtualServices.Put) > 0 {
		if err = resolve.CheckTogether(next.VirtualServices, p.VirtualServices.Put); err != nil {
			return p, err
		}
	}
	for _, m := range r.Models {
		result.Warnings = append(result.Warnings, models.Doubts(m, next.Modules)...)
	}
	return p, models.CheckTogether(next.Models, p.Models.Put)
}

// commitPart commits a change of such resources alone: it changes nothing in the kernel, and notifies control planes.
func (a *Agent) commitPart(next store.Desired, p store.Part, dryRun bool) error {
	if dryRun || p.Len() == 0 {
		return nil
	}
	if err := a.store.CommitPart(p); err != nil {
		return err
	}
	a.mu.Lock()
	a.desired = next
	a.mu.Unlock()
	a.notify(p)
	return nil
}

// notify notifies control planes of committed changes.
func (a *Agent) notify(p store.Part) {
	a.virtual.Apply(p.VirtualServices.Put, p.VirtualServices.Remove)
	a.models.Apply(p.Models.Put, p.Models.Remove)
}
