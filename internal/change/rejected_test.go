// SPDX-License-Identifier: Apache-2.0

package change

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/status"
	"github.com/kerb-edge/kerb/internal/store"
	"github.com/kerb-edge/kerb/internal/view"
)

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

// Contents that cannot be taken over are a conflict with what runs, not a fault of the agent.
func TestMigrationIsConflict(t *testing.T) {
	cause := fmt.Errorf("module m: %w", &dataplane.MigrationError{Map: "flows", Reason: "too many"})
	var conflict *apierrors.Conflict
	if err := forOperator(cause); !errors.As(err, &conflict) || conflict.Reason != cause.Error() {
		t.Errorf("%v", err)
	}
}

// A chain that cannot carry labels is a conflict with the other modules of the chain, not a fault of the agent.
func TestLostLabelsAreConflict(t *testing.T) {
	cause := fmt.Errorf("create chain: %w", &dataplane.LabelsError{Module: "tap"})
	var conflict *apierrors.Conflict
	if err := forOperator(cause); !errors.As(err, &conflict) || !strings.Contains(conflict.Reason, "set hook: tc") {
		t.Errorf("%v", err)
	}
}

// The module whose labels a chain cannot carry is disabled by its failure policy, once: the kernel accepts it alone.
// The others run on.
func TestModuleWhoseLabelsAreLostIsDisabled(t *testing.T) {
	p := New(&view.Views{Log: slog.New(slog.DiscardHandler), Lock: new(sync.Mutex), Now: &status.Node{}})
	p.Now.Modules = map[string]*deploy.Module{"tap": {Dataplane: dataplane.Module{FailClosed: true}}, "fw": {}}
	lost := fmt.Errorf("create chain: %w", &dataplane.LabelsError{Module: "tap"})
	if !p.disable(lost) {
		t.Fatal("not disabled")
	}
	tap, fw := p.Now.Modules["tap"], p.Now.Modules["fw"]
	if !tap.CannotRun || !tap.Member.FailClosed || !errors.Is(lost, tap.Err) || fw.Err != nil {
		t.Errorf("tap %+v, fw %+v", tap, fw)
	}
	for _, err := range []error{lost, chain.ErrBusy, nil} {
		if p.disable(err) {
			t.Errorf("disabled again for %v", err)
		}
	}
	if next := new(deploy.Preparer).Again(tap); next != nil {
		t.Error("it is tried again every half minute, in the same chain")
	}
}

// An error of the store is no conflict, even where another program keeps the kernel from being as before.
func TestFullDiskIsNoConflict(t *testing.T) {
	err := forOperator(errors.Join(&commitError{store.ErrFull}, chain.ErrBusy))
	var full *apierrors.ReadOnly
	var conflict *apierrors.Conflict
	if !errors.As(err, &full) || errors.As(err, &conflict) {
		t.Errorf("%T %v", err, err)
	}
}
