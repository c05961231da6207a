// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/memtrim"
	"github.com/kerb-edge/kerb/internal/resource"
)

// restoreSets makes the sets in the kernel what they were before a change, if that has failed. If they cannot be
// restored, reconciliations try it again.
func (a *Agent) restoreSets(failed error) {
	if failed == nil {
		return
	}
	if err := a.sets.Fill(a.now.Desired, a.now.Sets()); err != nil {
		a.log.Error("sets cannot be restored; trying again", "error", err)
		a.requestReconcile()
	}
	a.sets.Retain(a.now.Sets())
}

// ChangeSet adds and deletes elements of a set: in the kernel, then in the store. If either fails, both are as before.
func (a *Agent) ChangeSet(ctx context.Context, r resource.SetRequest) (result v1.SetChanged, err error) {
	defer func() {
		a.journal.audit(ctx, v1.ApplyResult{Changes: []v1.Change{{Action: "update", Kind: v1.KindSet, Name: r.Name}}}, err)
	}()
	a.changes.Lock()
	defer a.changes.Unlock()
	memtrim.Busy() // the elements are copied
	before, ok := resource.Set.Get(a.now.Desired, r.Name)
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
	defer func() { a.restoreSets(err) }()
	if err := a.sets.Change(before, set, added, removed); err != nil {
		return result, err
	}
	if err := a.store.CommitParts(resource.ObjectOf(set), added, removed); err != nil {
		return result, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now.Desired = next
	return result, nil
}
