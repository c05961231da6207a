// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/serve"
	"github.com/kerb-edge/kerb/internal/server"
)

// attempt is what a request meets when it is its turn.
type attempt struct {
	before  resource.Set
	began   time.Time
	reverts int64 // number of the change that it reverts
}

// begin is called with a.changes held.
func (a *Agent) begin() attempt { return attempt{before: a.now.Desired, began: time.Now()} }

// record logs a change and keeps it in the history, unless it has changed nothing. a.changes is held: numbers follow
// the order in which changes were made.
func (a *Agent) record(ctx context.Context, by resource.Writer, at attempt, result v1.ApplyResult, err error) {
	if result.DryRun {
		return
	}
	a.audit(ctx, result, err)
	r := v1.ChangeRecord{Time: at.began.UTC(), By: serve.Caller(ctx, a.integrations.NameOf).String(),
		Owner: cmp.Or(by.Owner, v1.OwnerUser), Outcome: v1.OutcomeDone, Reverts: at.reverts,
		Took: time.Since(at.began).Seconds(), Steps: result.Steps, Changes: []v1.Change{}}
	var was []resource.Object
	for _, c := range result.Changes {
		if c.Action == "unchanged" {
			continue
		}
		r.Changes = append(r.Changes, c)
		if o := at.before[c.Kind][c.Name]; o != nil && err == nil {
			was = append(was, o)
		}
	}
	switch {
	case err != nil:
		r.Outcome, r.Error = v1.OutcomeRefused, err.Error()
		a.EventLog.Refused(r)
	case len(r.Changes) == 0:
		return
	}
	a.ChangeLog.Add(r, was)
}

// Revert makes the resources of a change what they were before it: all of them or none.
func (a *Agent) Revert(ctx context.Context, r v1.RevertRequest) (result v1.ApplyResult, err error) {
	record, was, err := a.ChangeLog.Was(r.Number)
	if err != nil {
		return result, err
	}
	next, err := reverse(record, was, r)
	if err != nil {
		return result, err
	}
	a.changes.Lock()
	defer a.changes.Unlock()
	if !r.Force {
		if err := a.checkSince(record); err != nil {
			return result, err
		}
	}
	next.Remove = slices.DeleteFunc(next.Remove, func(gone resource.Ref) bool {
		return a.now.Desired[gone.Kind][gone.Name] == nil
	})
	at := a.begin()
	at.reverts = r.Number
	defer func() { a.record(ctx, next.By, at, result, err) }()
	return a.apply(next)
}

// reverse returns the request that reverts a change. Resources get back the owner that they had.
func reverse(record v1.ChangeRecord, was []resource.Object, r v1.RevertRequest) (next server.Request, err error) {
	conflict := func(why string) error {
		return &apierrors.Conflict{Reason: fmt.Sprintf("change %d %s", r.Number, why)}
	}
	if record.Outcome != v1.OutcomeDone {
		return next, conflict("was refused: there is nothing to revert")
	}
	if record.Owner != v1.OwnerUser && !r.Force {
		return next, conflict("was made by " + record.Owner + ", which would make it again: revert it there, or with " +
			"--force (force=true)")
	}
	next = server.Request{Resources: was, DryRun: r.DryRun, By: resource.Writer{Owner: record.Owner, Force: true}}
	for i, o := range was {
		if i > 0 && resource.OwnerOf(o) != next.By.Owner {
			return next, conflict("concerns resources of several owners: apply the former ones with their owners")
		}
		next.By.Owner = resource.OwnerOf(o)
	}
	for _, c := range record.Changes {
		if c.Action == "create" {
			next.Remove = append(next.Remove, resource.Ref{Kind: c.Kind, Name: c.Name})
		}
	}
	if len(next.Remove)+len(was) != len(record.Changes) {
		return next, conflict("has no record of what all of its resources were before")
	}
	return next, nil
}

// checkSince returns *apierrors.Conflict if a resource is not as a change has left it.
func (a *Agent) checkSince(record v1.ChangeRecord) error {
	for _, c := range record.Changes {
		var now any
		if o := a.now.Desired[c.Kind][c.Name]; o != nil {
			now = resource.KindOf(o).Summary(o)
			if owner := resource.OwnerOf(o); owner != record.Owner {
				return &apierrors.Conflict{Reason: fmt.Sprintf("%s %s belongs to %s since change %d: change it there, or make it "+
					"with --force (force=true) what it was before", c.Kind, c.Name, owner, record.Number)}
			}
		}
		same, err := sameJSON(now, c.After)
		if err != nil {
			return err
		}
		if same {
			continue
		}
		why := ""
		if later := a.ChangeLog.List(v1.ChangesRequest{Kind: c.Kind, Name: c.Name, Limit: 1}); len(later) > 0 &&
			later[0].Number > record.Number {
			why = fmt.Sprintf(", but as change %d did", later[0].Number)
		}
		return &apierrors.Conflict{Reason: fmt.Sprintf("%s %s is not as change %d left it%s: revert later changes first, "+
			"or make it with --force (force=true) what it was before change %d", c.Kind, c.Name, record.Number, why,
			record.Number)}
	}
	return nil
}

// sameJSON reports whether two values are the same as JSON.
func sameJSON(a, b any) (bool, error) {
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
