// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// A module that runs nowhere says what may be the matter; with XDP that may be the direction.
func TestNoAttachPoint(t *testing.T) {
	a := &Agent{metrics: newMetrics()}
	for hook, hint := range map[v1.Hook]bool{v1.HookXDP: true, v1.HookTC: false} {
		d := &deployment{}
		d.resource.Spec.Hook = hook
		if c := a.moduleReady(d, 0); c.Reason != "NoAttachPoint" || strings.Contains(c.Message, "hook: tc") != hint {
			t.Errorf("hook %s: %+v", hook, c)
		}
	}
}
