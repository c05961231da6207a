// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/sdk"
)

// The manifest's rules reach the data plane, which knows them by the same words.
func TestMigrationRules(t *testing.T) {
	rules := map[string]string{"a": pkgs.MigrateDiscard, "b": pkgs.MigrateExtend, "c": pkgs.MigrateControl}
	d := &deployment{pkg: &pkgs.Package{Manifest: pkgs.Manifest{Maps: pkgs.MapRoles{Migrate: rules}}}}
	want := map[string]string{"a": dataplane.MigrateDiscard, "b": dataplane.MigrateExtend, "c": dataplane.MigrateControl}
	if got := d.dataplaneModule(sdk.Settings{}).Migrate; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Contents that cannot be taken over are a conflict with what runs, not a fault of the agent.
func TestMigrationIsConflict(t *testing.T) {
	cause := fmt.Errorf("module m: %w", &dataplane.MigrationError{Map: "flows", Reason: "too many"})
	var conflict *fault.Conflict
	if err := explain(cause); !errors.As(err, &conflict) || conflict.Reason != cause.Error() {
		t.Errorf("%v", err)
	}
}
