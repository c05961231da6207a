// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/sdk"
)

// A module that runs nowhere says what may be the matter; with XDP that may be the direction.
func TestNoAttachPoint(t *testing.T) {
	a := &Agent{metrics: newMetrics()}
	for hook, hint := range map[v1.Hook]bool{v1.HookXDP: true, v1.HookTC: false} {
		d := &deployment{}
		d.Resource.Spec.Hook = hook
		if c := a.moduleReady(d, 0, ""); c.Reason != "NoAttachPoint" || strings.Contains(c.Message, "hook: tc") != hint {
			t.Errorf("hook %s: %+v", hook, c)
		}
	}
}

// A control plane is reported to run when it has said that it is well, not before.
func TestControlPlaneIsStartingUntilItAnswers(t *testing.T) {
	for _, c := range []struct {
		state          control.State
		status, reason string
	}{
		{control.State{Running: true}, "False", "Starting"},
		{control.State{Running: true, Started: true}, "False", "Starting"},
		{control.State{Running: true, Started: true, HealthKnown: true}, "False", "Unhealthy"},
		{control.State{Running: true, Started: true, HealthKnown: true, Healthy: true}, "True", "Running"},
	} {
		if got := controlCondition(c.state); got.Status != c.status || got.Reason != c.reason {
			t.Errorf("%+v: %s (%s)", c.state, got.Status, got.Reason)
		}
	}
}

// A config that is wrong as a whole is told by its own name.
func TestConfigErrorOfNoField(t *testing.T) {
	d := &deployment{}
	for field, want := range map[string]string{"": "spec.config", "rules[0].port": "spec.config.rules[0].port"} {
		var invalid *fault.Invalid
		if err := d.configError(&sdk.ConfigError{Field: field, Reason: "missing rules"}); !errors.As(err, &invalid) || invalid.Field != want {
			t.Errorf("%v, want field %s", err, want)
		}
	}
}
