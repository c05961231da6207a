// SPDX-License-Identifier: Apache-2.0

package history

import (
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/resource"
)

// Reversal makes the resources of a change what they were before it.
type Reversal struct {
	Of     v1alpha1.ChangeRecord
	Put    []resource.Object
	Remove []resource.Ref
	Owner  string // of all
}

// Reverse returns the reversal of a change. Resources get back the owner that they had.
func (l *Log) Reverse(r v1alpha1.RevertRequest) (Reversal, error) {
	record, was, err := l.Was(r.Number)
	if err != nil {
		return Reversal{}, err
	}
	back := Reversal{Of: record, Put: was, Owner: record.Owner}
	conflict := func(why string) (Reversal, error) {
		return back, &apierrors.Conflict{Reason: fmt.Sprintf("change %d %s", r.Number, why)}
	}
	if record.Outcome != v1alpha1.OutcomeDone {
		return conflict("was refused: there is nothing to revert")
	}
	if record.Owner != v1alpha1.OwnerUser && !r.Force {
		return conflict("was made by " + record.Owner + ", which would make it again: revert it there, or with " +
			"--force (force=true)")
	}
	for i, o := range was {
		if i > 0 && resource.OwnerOf(o) != back.Owner {
			return conflict("concerns resources of several owners: apply the former ones with their owners")
		}
		back.Owner = resource.OwnerOf(o)
	}
	for _, c := range record.Changes {
		if c.Action == "create" {
			back.Remove = append(back.Remove, resource.Ref{Kind: c.Kind, Name: c.Name})
		}
	}
	if len(back.Remove)+len(was) != len(record.Changes) {
		return conflict("has no record of the previous state of all its resources")
	}
	return back, nil
}

// CheckSince returns *apierrors.Conflict if a resource is not as a change has left it.
func (l *Log) CheckSince(record v1alpha1.ChangeRecord, present resource.State) error {
	for _, c := range record.Changes {
		var now any
		if o := present[c.Kind][c.Name]; o != nil {
			now = resource.KindOf(o).Summary(o)
			if owner := resource.OwnerOf(o); owner != record.Owner {
				return &apierrors.Conflict{Reason: fmt.Sprintf("%s %s belongs to %s since change %d: change it there, or make it "+
					"with --force (force=true) what it was before", c.Kind, c.Name, owner, record.Number)}
			}
		}
		same, err := SameJSON(now, c.After)
		if err != nil {
			return err
		}
		if same {
			continue
		}
		why := ""
		if later := l.List(v1alpha1.ChangesRequest{Kind: c.Kind, Name: c.Name, Limit: 1}); len(later) > 0 &&
			later[0].Number > record.Number {
			why = fmt.Sprintf(", but as change %d did", later[0].Number)
		}
		return &apierrors.Conflict{Reason: fmt.Sprintf("%s %s is not as change %d left it%s: revert later changes first, "+
			"or make it with --force (force=true) what it was before change %d", c.Kind, c.Name, record.Number, why,
			record.Number)}
	}
	return nil
}

// SameJSON reports whether two values are the same as JSON.
func SameJSON(a, b any) (bool, error) {
	var both [2]any
	for i, v := range []any{a, b} {
		data, err := json.Marshal(v)
		if err == nil {
			err = json.Unmarshal(data, &both[i])
		}
		if err != nil {
			return false, err
		}
	}
	return reflect.DeepEqual(both[0], both[1]), nil
}
