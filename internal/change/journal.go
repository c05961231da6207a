// SPDX-License-Identifier: Apache-2.0

package change

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/serve"
	"github.com/kerb-edge/kerb/internal/view"
)

// journal logs changes and keeps them in the change history.
type journal struct{ *view.Views }

// record logs a change and keeps it in the change history, unless it changed nothing.
func (j journal) record(q *grouped) {
	if q.result.DryRun {
		return
	}
	j.audit(q.ctx, q.result, q.err)
	r := v1.ChangeRecord{Time: q.began.UTC(), By: serve.Caller(q.ctx, j.ProcessName).String(),
		Owner: cmp.Or(q.By.Owner, v1.OwnerUser), Outcome: v1.OutcomeDone, Reverts: q.reverts,
		Took: time.Since(q.began).Nanoseconds(), Steps: q.result.Steps, Changes: []v1.Change{}}
	var was []resource.Object
	for _, c := range q.result.Changes {
		if c.Action == "unchanged" {
			continue
		}
		r.Changes = append(r.Changes, c)
		if o := q.before[c.Kind][c.Name]; o != nil && q.err == nil {
			was = append(was, o)
		}
	}
	switch {
	case q.err != nil:
		r.Outcome, r.Error = v1.OutcomeRefused, q.err.Error()
		j.EventLog.Refused(r)
	case len(r.Changes) == 0:
		return
	}
	j.ChangeLog.Add(r, was)
}

// Revert restores the resources of a change to their previous state: all of them or none.
func (s *Requests) Revert(ctx context.Context, r v1.RevertRequest) (result v1.ApplyResult, err error) {
	back, err := s.ChangeLog.Reverse(r)
	if err != nil {
		return result, err
	}
	s.Exclusive.Lock()
	defer s.Exclusive.Unlock()
	if !r.Force {
		if err := s.ChangeLog.CheckSince(back.Of, s.Now.Desired); err != nil {
			return result, err
		}
	}
	next := resource.Request{Resources: back.Put, DryRun: r.DryRun, By: resource.Writer{Owner: back.Owner, Force: true}}
	next.Remove = slices.DeleteFunc(back.Remove, func(gone resource.Ref) bool {
		return s.Now.Desired[gone.Kind][gone.Name] == nil
	})
	q := &grouped{Request: next, reverts: r.Number, ctx: ctx}
	s.executeAlone(q)
	return q.result, q.err
}

// audit logs a change with its client, resources and outcome.
func (j journal) audit(ctx context.Context, result v1.ApplyResult, err error) {
	if result.DryRun {
		return
	}
	by := slog.Any("by", serve.Caller(ctx, j.ProcessName))
	logged := false
	for _, c := range result.Changes {
		switch {
		case c.Action == "unchanged":
			continue
		case err != nil:
			why := refusalOf(c, err)
			j.Log.Warn("change refused", by, "action", c.Action, "kind", c.Kind, "name", c.Name, "error", why)
		default:
			j.Log.Info("change", by, "action", c.Action, "kind", c.Kind, "name", c.Name, "outcome", "done")
		}
		logged = true
	}
	if err != nil && !logged {
		j.Log.Warn("change refused", by, "error", err)
	}
}

// refusalOf returns the part of a request's error that concerns one of its resources.
func refusalOf(c v1.Change, err error) error {
	all := apierrors.Invalids(err)
	if len(all) == 0 {
		return err
	}
	var own []error
	for _, one := range all {
		if one.Resource == c.Kind+" "+c.Name || one.Resource == "" {
			own = append(own, one)
		}
	}
	return cmp.Or(errors.Join(own...), errOthersRefused)
}

var errOthersRefused = errors.New("other resources of the request were refused")
