// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
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
