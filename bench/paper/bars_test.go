// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"slices"
	"testing"

	"github.com/kerb-edge/kerb/bench"
)

// Bars show ratios to the first config, for rows whose ratios are published, with the published ratios. Configs without
// a reference have no ratio. Rows of a group share bars.
func TestBars(t *testing.T) {
	table := Table{
		Configs: []Config{{"plain", "baseline"}, {"kerb", "accelerated"}},
		Rows: []Row{
			{Label: "a b", Load: "l", Metric: "time", Stat: "p25", Unit: "ms", By: 1e-3},
			{Label: "c", Load: "l", Metric: "time", Stat: "p50", Unit: "ms", By: 1e-3, Ratios: change(-40)},
			{Label: "d", Load: "l", Metric: "rate", Stat: "p50", Unit: "1/s", Ratios: change(50)},
			{Label: "e f", Group: "e", Load: "m", Metric: "time", Stat: "p50", Unit: "s", Ratios: change(100),
				Published: map[string]float64{"plain": 3, "kerb": 4}},
		},
	}
	r := &bench.Report{Cells: []bench.Cell{
		{Config: "plain", Load: "l", Metric: "time", Stat: "p25", Value: 1000},
		{Config: "kerb", Load: "l", Metric: "time", Stat: "p25", Value: 750},
		{Config: "plain", Load: "l", Metric: "time", Stat: "p50", Value: 2000},
		{Config: "kerb", Load: "l", Metric: "time", Stat: "p50", Value: 1000},
		{Config: "kerb", Load: "l", Metric: "rate", Stat: "p50", Value: 5},
		{Config: "plain", Load: "m", Metric: "time", Stat: "p50", Value: 4},
		{Config: "kerb", Load: "m", Metric: "time", Stat: "p50", Value: 6},
	}}
	type bar struct {
		config, group, metric string
		value                 float64
	}
	var got []bar
	for _, c := range table.bars(r).Cells {
		got = append(got, bar{c.Config, c.Load, c.Metric, c.Value})
	}
	want := []bar{
		{"plain", "a\nb", "time", 1}, {"kerb", "a\nb", "time", 0.75},
		{"plain", "c", "time", 2}, {"kerb", "c", "time", 1},
		{"plain", "c", "ratio of time", 1}, {"kerb", "c", "ratio of time", 0.5},
		{"published (accelerated)", "c", "ratio of time", 0.6},
		{"kerb", "d", "rate", 5},
		{"plain", "e", "time", 4}, {"kerb", "e", "time", 6},
		{"plain", "e", "ratio of time", 1}, {"kerb", "e", "ratio of time", 1.5},
		{"published (accelerated)", "e", "ratio of time", 2},
	}
	if !slices.Equal(got, want) {
		t.Errorf("bars %v", got)
	}
}
