// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/classbench"
)

// benchConfig returns the config of a stateless firewall with a rule set.
func benchConfig(t testing.TB, kind string, n int, v4 bool) map[string]any {
	t.Helper()
	set, err := classbench.Rules(kind, n, v4)
	if err != nil {
		t.Fatal(err)
	}
	rules := make([]any, n)
	for i := range set {
		rules[i] = benchRule(&set[i])
	}
	return map[string]any{"rules": rules, "state": map[string]any{"enabled": false}, "antiSpoof": false}
}

func benchRule(r *classbench.Rule) map[string]any {
	out := map[string]any{"action": action(r.Allow).String()}
	if r.Protocol != classbench.Any {
		out["protocol"] = r.Protocol
	}
	if r.Src.IsValid() {
		out["src"] = r.Src.String()
	}
	if r.Dst.IsValid() {
		out["dst"] = r.Dst.String()
	}
	if r.SrcPort != classbench.AnyPort {
		out["srcPort"] = fmt.Sprintf("%d-%d", r.SrcPort.Low, r.SrcPort.High)
	}
	if r.DstPort != classbench.AnyPort {
		out["dstPort"] = fmt.Sprintf("%d-%d", r.DstPort.Low, r.DstPort.High)
	}
	return out
}
