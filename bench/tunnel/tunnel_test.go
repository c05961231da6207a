// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"os"
	"testing"

	"github.com/kerb-edge/kerb/bench/internal/benchtest"
)

func TestMain(m *testing.M) { os.Exit(benchtest.Main(m)) }

// ready creates the nodes of a config with open or prepare, and closes them after the test.
func ready(t *testing.T, by func(config, load, int) (*topology, error), c config, l load, number int) *topology {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	g, err := by(c, l, number)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// Each config reaches the other node, and reports all metrics.
func TestEveryWayLeadsToTheServer(t *testing.T) {
	for name, load := range loads {
		for i, c := range configsOf(load) {
			t.Run(name+"/"+c.name, func(t *testing.T) {
				g := ready(t, open, c, load, i)
				samples, err := g.path.Measure(true)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range samples {
					t.Logf("%s %s %.3f %s", s.Metric, s.Stat, s.Value, s.Unit)
					if s.Metric != "lost" && s.Metric != "jitter" && s.Value <= 0 {
						t.Errorf("%s: %v", s.Metric, s.Value)
					}
					if s.Metric == "lost" && s.Value != 0 {
						t.Errorf("%v datagrams were lost", s.Value)
					}
				}
			})
		}
	}
}
