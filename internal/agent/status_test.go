// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/deploy"
)

// A module that runs nowhere says what may be the matter; with XDP that may be the direction.
func TestNoAttachPoint(t *testing.T) {
	a := &Agent{metrics: newMetrics()}
	for hook, hint := range map[v1.Hook]bool{v1.HookXDP: true, v1.HookTC: false} {
		d := &deploy.Module{}
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
