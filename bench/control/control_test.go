// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/benchtest"
)

func TestMain(m *testing.M) { os.Exit(benchtest.Main(m)) }

func TestSweep(t *testing.T) {
	for _, capacity := range []float64{5_000, 70_000, 600_000} {
		got, err := sweep(6, func(rate float64) (float64, bool, error) { return rate, rate > capacity, nil })
		if err != nil || got > capacity || got < capacity*0.97 {
			t.Errorf("capacity %v: %v, %v", capacity, got, err)
		}
	}
	if _, err := sweep(4, func(float64) (float64, bool, error) { return 0, true, nil }); err == nil {
		t.Error("what always loses has a rate")
	}
	if got, err := sweep(4, func(rate float64) (float64, bool, error) { return rate, false, nil }); err != nil ||
		got < highestRate/2 {
		t.Errorf("what never loses: %v, %v", got, err)
	}
	broken := errors.New("broken")
	if _, err := sweep(4, func(float64) (float64, bool, error) { return 0, false, broken }); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

func TestHavePython(t *testing.T) {
	dir := t.TempDir()
	if havePython(dir) == nil {
		t.Error("python3 in an empty directory")
	}
	if err := os.WriteFile(filepath.Join(dir, "python3"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := havePython("/nonexistent", dir); err != nil {
		t.Error(err)
	}
}

// Each load reports all its metrics, with a real agent.
func TestLoads(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	g, err := newTopology("kbctt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}()
	for name, metrics := range map[string][]string{
		"counter":     {"start", "memory", totalMemory},
		"all-builtin": {"start", "configure", "memory", totalMemory},
		"python":      {"start", "configure", "memory", totalMemory, "event_rate"},
		"constants":   {"start", "configure", totalMemory},
	} {
		t.Run(name, func(t *testing.T) {
			if err := missing(name); err != nil {
				t.Skip(err)
			}
			checkLoad(t, g, &bench.Run{Quick: true}, name, metrics)
		})
	}
}

func checkLoad(t *testing.T, g *topology, r *bench.Run, name string, metrics []string) {
	t.Helper()
	samples, err := g.measure(t.Context(), r, name)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range samples {
		got = append(got, s.Metric)
		if !(s.Value > 0) {
			t.Errorf("%+v", s)
		}
	}
	if !slices.Equal(got, metrics) {
		t.Errorf("metrics %v, want %v", got, metrics)
	}
}
