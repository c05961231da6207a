// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/bench/internal/benchtest"
	"github.com/kerb-edge/kerb/bench/internal/path"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
)

func TestMain(m *testing.M) { os.Exit(benchtest.Main(m)) }

// Each config reaches the server, in both address families, and reports every figure.
func TestEveryWayLeadsToTheServer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for load, virtual := range virtual {
		for _, c := range configs {
			t.Run(load+"/"+c.name, func(t *testing.T) {
				g, err := open(c, virtual)
				if errors.Is(err, exec.ErrNotFound) {
					t.Skip(err)
				}
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := g.Close(); err != nil {
						t.Error(err)
					}
				}()
				samples, err := g.measure(true)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range samples {
					if s.Metric != "lost" && s.Metric != "jitter" && s.Value <= 0 {
						t.Errorf("%s: %v", s.Metric, s.Value)
					}
				}
			})
		}
	}
}

// The CPU time of a group includes that of its processes only.
func TestGroupCountsItsProcesses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	g, err := path.NewGroup("kbpxtest")
	if err != nil {
		t.Fatal(err)
	}
	busy := g.Adopt(exec.Command("sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"))
	sleep := func() error { time.Sleep(time.Millisecond); return nil } // uses no CPU time
	if err := errors.Join(busy.Run(), traffic.RunOnCPU(0, sleep)); err != nil {
		t.Fatal(err)
	}
	used, err := g.CPU()
	if err != nil || used < time.Millisecond {
		t.Errorf("%v, %v", used, err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}
