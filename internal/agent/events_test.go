// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
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
	if err := explain(failed); !errors.Is(err, failed) || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("the client reads: %v", err)
	}
}
