// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/kerb-edge/kerb/bench"
)

// Kerb is measured at rising rates and over time, on one node and on two, with the agents' memory.
func TestLongLoads(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip(err)
	}
	e, _ := bench.Find("proxy")
	for load, metrics := range map[string][]string{
		"sweep/two-nodes":   {"bottleneck"},
		"timeline/one-node": {"memory_idle", "cpu_load", "memory_load", "memory_after"},
	} {
		r := bench.NewRun(e, true, 1, []string{load}, io.Discard)
		r.Configs = []string{"kerb"}
		if err := e.Run(t.Context(), r); err != nil {
			t.Fatalf("%s: %v", load, err)
		}
		for _, metric := range metrics {
			if c, ok := r.Report().Find("kerb", load, metric, "p50"); !ok || !(c.Value > 0) {
				t.Errorf("%s: %s is %v", load, metric, c.Value)
			}
		}
		if c, ok := r.Report().Find("kerb", load, "memory_idle", "p50"); ok && c.Value < 10 {
			t.Errorf("%s: agent and control planes have %v MiB of memory", load, c.Value)
		}
		for _, s := range r.Report().Series {
			if len(s.Rounds) != 1 || len(s.Rounds[0]) != 90 {
				t.Errorf("%s: %s has %v samples", load, s.Metric, s.Rounds)
			}
		}
	}
}
