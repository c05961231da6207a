// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestCompare(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, r Report) string {
		path := filepath.Join(dir, name)
		if err := WriteJSON(path, r); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cell := func(config, load string, value float64) Cell {
		return Cell{Config: config, Load: load, Metric: "latency", Stat: "p50", Unit: "us", Value: value}
	}
	a := write("a.json", Report{Experiment: "x", Kernel: "6.1",
		Cells: []Cell{cell("kerb", "l/1", 4), cell("kerb", "l/2", 5)}})
	b := write("b.json.gz", Report{Experiment: "x", Kernel: "6.12", Machine: &Machine{CPU: "Example 7"},
		Cells: []Cell{cell("kerb", "l/1", 2), cell("plain", "l/1", 7)}})
	other := write("other.json", Report{Experiment: "y", Cells: []Cell{cell("kerb", "l/1", 4)}})
	out, err := runCommand("compare", a, b)
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Join(strings.Fields(out), " ")
	for _, want := range []string{"A: x on Linux 6.1", "B: x on Linux 6.12", "Example 7",
		"latency (us), p50 A B B/A l/1 kerb 4 2 0.50", "2 results are in only one of the reports"} {
		if !strings.Contains(words, want) {
			t.Errorf("%s\nlacks %q", out, want)
		}
	}
	for _, args := range [][]string{{a, other}, {a, filepath.Join(dir, "none")}, {a, b, "--loads", "l/2"}, {a}} {
		if out, err := runCommand(append([]string{"compare"}, args...)...); err == nil {
			t.Errorf("compare %v: no error, %s", args, out)
		}
	}
}
