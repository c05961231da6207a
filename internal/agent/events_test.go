// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/history"
)

// That an agent has started is on disk before it runs, so that one which crashes at once leaves an event each time.
func TestStartIsStored(t *testing.T) {
	n := newNode(t)
	n.stop()
	starts := 0
	n.opened = func(*Agent) {
		stored := history.OpenEvents(n.cfg.Paths.History(), func(err error) { t.Error(err) })
		request := v1.EventsRequest{Kind: v1.EventAgent, Limit: history.MaxEvents}
		if err := stored.Read(t.Context(), request, func(e v1.Event) error {
			if e.Reason == "Started" {
				starts = e.Count
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	n.start(t)
	if starts != 2 {
		t.Errorf("%d starts are stored while the second agent begins, want 2", starts)
	}
}

// An event does not claim that the kernel is as before when undoing failed, and the client does not read that only its
// request was wrong.
func TestFailedUndoIsNoRollback(t *testing.T) {
	cause := errors.Join(chain.ErrBusy, errors.New("eth0"))
	reason, message := rolledBack(cause)
	if reason != "RolledBack" || !strings.HasPrefix(message, "the kernel is as before") {
		t.Errorf("undone: %s: %s", reason, message)
	}
	failed := &apply.RollbackError{Undo: errors.New("undo: no memory"), Err: cause}
	reason, message = rolledBack(errors.Join(failed))
	undo, after := strings.Index(message, "no memory"), strings.Index(message, "eth0")
	if reason != "RollbackFailed" || strings.Contains(message, "is as before") || undo < 0 || after < undo {
		t.Errorf("not undone: %s: %s", reason, message)
	}
	if err := forOperator(failed); !errors.Is(err, failed) || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("the client reads: %v", err)
	}
}
