// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/memtrim"
	"github.com/kerb-edge/kerb/internal/resource"
)

// restoreSets restores the sets in the kernel to their state before a change that has failed. If that fails,
// reconciliations retry it.
func (p *Pipeline) restoreSets(failed error) {
	if failed == nil {
		return
	}
	if err := p.Sets.Fill(p.Now.Desired, p.Now.Sets()); err != nil {
		p.Log.Error("sets cannot be restored; trying again", "error", err)
		p.RequestReconcile()
	}
	p.Sets.Retain(p.Now.Sets())
}

// ChangeSet adds and deletes elements of a set, first in the kernel, then in the store. If either fails, both are
// restored.
func (s *Requests) ChangeSet(ctx context.Context, r resource.SetRequest) (result v1.SetChanged, err error) {
	defer func() {
		s.journal.audit(ctx, v1.ApplyResult{Changes: []v1.Change{{Action: "update", Kind: v1.KindSet, Name: r.Name}}}, err)
	}()
	s.Exclusive.Lock()
	defer s.Exclusive.Unlock()
	memtrim.Busy() // the elements are copied
	before, ok := resource.Set.Get(s.Now.Desired, r.Name)
	if !ok {
		return result, &apierrors.NotFound{Kind: v1.KindSet, Name: r.Name}
	}
	set := before
	added, removed, err := r.Change(&set)
	result = v1.SetChanged{Added: len(added), Deleted: len(removed), Elements: len(set.Spec.Elements)}
	if err != nil || len(added)+len(removed) == 0 {
		return result, err
	}
	next := s.Now.Desired.Clone()
	next.Put(resource.ObjectOf(set))
	if err := resource.CheckElements(next, r.Name); err != nil {
		return result, err
	}
	defer func() { s.restoreSets(err) }()
	if err := s.Sets.Change(before, set, added, removed); err != nil {
		return result, err
	}
	if err := s.Store.CommitParts(resource.ObjectOf(set), added, removed); err != nil {
		return result, err
	}
	s.Lock.Lock()
	defer s.Lock.Unlock()
	s.Now.Desired = next
	return result, nil
}
