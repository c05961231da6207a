// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/serve"
	"github.com/kerb-edge/kerb/internal/server"
)

// attempt is what a request meets when it is its turn.
type attempt struct {
	before  resource.State
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
		Took: time.Since(at.began).Nanoseconds(), Steps: result.Steps, Changes: []v1.Change{}}
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
	back, err := a.ChangeLog.Reverse(r)
	if err != nil {
		return result, err
	}
	a.changes.Lock()
	defer a.changes.Unlock()
	if !r.Force {
		if err := a.ChangeLog.CheckSince(back.Of, a.now.Desired); err != nil {
			return result, err
		}
	}
	next := server.Request{Resources: back.Put, DryRun: r.DryRun, By: resource.Writer{Owner: back.Owner, Force: true}}
	next.Remove = slices.DeleteFunc(back.Remove, func(gone resource.Ref) bool {
		return a.now.Desired[gone.Kind][gone.Name] == nil
	})
	at := a.begin()
	at.reverts = r.Number
	defer func() { a.record(ctx, next.By, at, result, err) }()
	return a.apply(next)
}
