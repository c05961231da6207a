// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/dataplane"
)

// Contents that cannot be taken over are a conflict with what runs, not a fault of the agent.
func TestMigrationIsConflict(t *testing.T) {
	cause := fmt.Errorf("module m: %w", &dataplane.MigrationError{Map: "flows", Reason: "too many"})
	var conflict *apierrors.Conflict
	if err := forOperator(cause); !errors.As(err, &conflict) || conflict.Reason != cause.Error() {
		t.Errorf("%v", err)
	}
}
