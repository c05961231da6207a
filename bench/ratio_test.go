// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"path/filepath"
	"strings"
	"testing"
)

// Ratios are computed from adjacent rounds: a machine that slows down by half during the run changes none.
func TestRatios(t *testing.T) {
	cell := func(stat string, value float64, rounds ...float64) Cell {
		return Cell{Stat: stat, Value: value, Rounds: rounds}
	}
	for _, tc := range []struct {
		c, base Cell
		want    Ratio
	}{
		{cell("p50", 11, 11, 11, 11, 22, 22), cell("p50", 20, 10, 10, 20, 20, 20), Ratio{1.1, 1.1, 1.1}},
		{cell("p50", 3, 1, 2, 3, 4, 5), cell("p50", 1, 1, 1, 1, 1, 1), Ratio{3, 2, 4}},
		{cell("p50", 3, 1, 2, 3), cell("p50", 2, 1, 2), Ratio{1.5, 1.5, 1.5}}, // one was left out of a round
		{cell("p50", 3), cell("p50", 2), Ratio{1.5, 1.5, 1.5}},
		{cell("p50", 3, 3, 3, 9), cell("p50", 2, 0, 2, 2), Ratio{1.5, 1.5, 1.5}},
		{cell("sum", 6, 1, 2, 3), cell("sum", 3, 1, 1, 1), Ratio{2, 2, 2}},
	} {
		if got, ok := tc.c.ratioTo(tc.base); !ok || got != tc.want {
			t.Errorf("%+v to %+v: %+v, want %+v", tc.c, tc.base, got, tc.want)
		}
	}
	if _, ok := cell("sum", 1).ratioTo(cell("sum", 0)); ok {
		t.Error("a ratio to nothing")
	}
}

// The table of a kept report shows whether a config is not slower, also without the baseline.
func TestTableCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "toy.json.gz")
	cell := func(config, load string, rounds ...float64) Cell {
		return Cell{Config: config, Load: load, Metric: "time", Stat: "p50", Unit: "ns", Value: Median(rounds),
			Rounds: rounds}
	}
	report := Report{Experiment: "toy", Baseline: "a", Cells: []Cell{cell("a", "x/1", 10, 10, 20, 20, 20),
		cell("b", "x/1", 9, 11, 24, 24, 22), cell("b", "x/2", 7, 7, 7, 7, 7)}}
	if err := WriteJSON(file, report); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, "ratio to a (median and quartiles of the rounds) load a b x/1 20 ±5.48 22 ±7.38 (1.10x, 1.10-1.20) x/2 - " +
			"7 ±0"},
		{[]string{"--configs", "b", "--loads", "x/1"}, "(1.10x, 1.10-1.20)"},
	} {
		out, err := runCommand(append([]string{"table", file}, tc.args...)...)
		if text := strings.Join(strings.Fields(out), " "); err != nil || !strings.Contains(text, tc.want) {
			t.Errorf("table %v: %v\n%s", tc.args, err, out)
		}
	}
	if out, err := runCommand("table", file, "--configs", "c"); err == nil {
		t.Errorf("no figures, no error: %s", out)
	}
}
