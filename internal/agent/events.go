// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/history"
	"github.com/kerb-edge/kerb/internal/status"
)

// openEvents opens the events, and has those added of conditions that change.
func (a *Agent) openEvents(dir string) {
	a.events = history.OpenEvents(dir, func(err error) { a.log.Warn("events are not stored", "error", err) })
	a.now.Recorder.OnTransition = func(of status.Resource, c v1.Condition) {
		if c.Type == v1.EventControlPlane || c.Reason == "Starting" {
			return // its control plane's events have more
		}
		a.events.Add(v1.Event{Kind: cmp.Or(of.Kind, v1.EventAgent), Name: of.Name, Type: c.Type, Reason: c.Reason,
			Message: c.Message})
	}
	a.agentEvent(v1.EventAgent, "Started", "")
	a.events.Flush() // of an agent that crashes again and again, each start is seen
}

func (a *Agent) agentEvent(kind, reason, message string) {
	a.events.Add(v1.Event{Kind: v1.EventAgent, Type: kind, Reason: reason, Message: message})
}

func (a *Agent) controlEvent(module, reason, message string) {
	a.events.Add(v1.Event{Kind: v1.KindModule, Name: module, Type: v1.EventControlPlane, Reason: reason, Message: message})
}

// rolledBack is what happened to a change that failed after its first step.
func rolledBack(err error) (reason, message string) {
	var failed *apply.RollbackError
	if errors.As(err, &failed) {
		return "RollbackFailed", fmt.Sprintf("the kernel is not as before: %v; after: %v", failed.Undo, failed.Err)
	}
	return "RolledBack", "the kernel is as before: " + err.Error()
}

// isHalfUndone reports whether the kernel is neither as desired nor as before.
func isHalfUndone(err error) bool {
	var failed *apply.RollbackError
	return errors.As(err, &failed)
}

// refusedEvent adds a request that was refused, for its first resource.
func (a *Agent) refusedEvent(r v1.ChangeRecord) {
	e := v1.Event{Kind: v1.EventAgent, Type: v1.EventChange, Reason: "Refused", Message: r.Error}
	if len(r.Changes) > 0 {
		e.Kind, e.Name = r.Changes[0].Kind, r.Changes[0].Name
	}
	a.events.Add(e)
}

// Events passes on what has happened.
func (a *Agent) Events(ctx context.Context, r v1.EventsRequest, tell func(v1.Event) error) error {
	return a.events.Read(ctx, r, tell)
}
