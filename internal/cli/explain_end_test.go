// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"testing"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// Only a packet with the verdict pass is described as passed, and not one with an unknown verdict.
func TestEndOfExplainedPacket(t *testing.T) {
	for want, out := range map[string]v1alpha1.ExplainedPacket{
		"the packet passes":                            {Verdict: "pass"},
		"the packet is dropped by fw (policy)":         {Verdict: "drop", Module: "fw", Reason: "policy"},
		"the packet is answered by dns":                {Verdict: "reply", Module: "dns"},
		`the packet gets the verdict "invalid" by fw`:  {Verdict: "invalid", Module: "fw"},
		`the packet gets the verdict "divert" by cool`: {Verdict: "divert", Module: "cool"},
	} {
		if got := describeEnd(out); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
