// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/history"
	"github.com/kerb-edge/kerb/internal/status"
)

// recordEvents has the changes of conditions recorded as events, and the start of the agent.
func recordEvents(r *status.Recorder, events *history.Events) {
	r.OnTransition = func(of status.Resource, c v1.Condition) {
		if c.Type == v1.EventControlPlane || c.Reason == "Starting" {
			return // its control plane's events have more
		}
		events.Add(v1.Event{Kind: cmp.Or(of.Kind, v1.EventAgent), Name: of.Name, Type: c.Type, Reason: c.Reason,
			Message: c.Message})
	}
	events.OfAgent(v1.EventAgent, "Started", "")
	events.Flush() // of an agent that crashes again and again, each start is seen
}
