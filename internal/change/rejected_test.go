// SPDX-License-Identifier: Apache-2.0

package change

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/store"
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

// An error of the store is no conflict, even where another program keeps the kernel from being as before.
func TestFullDiskIsNoConflict(t *testing.T) {
	err := forOperator(errors.Join(&commitError{store.ErrFull}, chain.ErrBusy))
	var full *apierrors.ReadOnly
	var conflict *apierrors.Conflict
	if !errors.As(err, &full) || errors.As(err, &conflict) {
		t.Errorf("%T %v", err, err)
	}
}
