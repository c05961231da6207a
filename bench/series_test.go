// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Each kind of plot shows all configs, and every file is valid SVG.
func TestFiguresOfWorks(t *testing.T) {
	run := testRun(Experiment{Name: "x"}, 5)
	for i, config := range []string{"old", "new"} {
		f := float64(i + 1)
		run.Keep(config, "l/1", "time", "us", []float64{1 / f, 2 / f, 30 / f})
		run.Keep(config, "l/1", "time", "us", []float64{3 / f, 2 / f, 10 / f})
		for _, load := range []string{"l/10", "l/20", "l/30"} {
			_, n, _ := splitLoad(load)
			run.Record(config, load, Sample{"time", "p50", "us", (5 + 2*n) / f})
		}
		run.Spread(Histogram{Config: config, Load: "l/1", Metric: "delay", Unit: "us",
			Bins: []Bin{{4, 60}, {12, 30}, {90, 10}}})
	}
	r := run.Report()
	if each := r.Series[0].Each(); !slices.Equal(each, []float64{2, 2, 20}) {
		t.Errorf("medians by place %v", each)
	}
	if each := (Series{}).Each(); len(each) > 0 {
		t.Errorf("medians of no rounds: %v", each)
	}
	if each := (Series{Rounds: [][]float64{{}, {3, 5}}}).Each(); !slices.Equal(each, []float64{3, 5}) {
		t.Errorf("medians after an empty round: %v", each)
	}
	if l, ok := r.Regression("old", "time", "p50"); !ok || math.Abs(l.Slope-2) > 1e-9 || math.Abs(l.Intercept-5) > 1e-9 {
		t.Errorf("regression %+v %v", l, ok)
	}
	if got := smooth([]float64{10, 0, 0}, 0.2); !slices.Equal(got, []float64{10, 8, 6.4}) {
		t.Errorf("the moving average of 10, 0, 0 is %v", got)
	}
	if _, ok := r.Regression("old", "nothing", "p50"); ok {
		t.Error("a line without points")
	}
	got := r.Histograms[0].fixed(4, 5)
	for i, want := range []float64{60, 5, 25, 0, 10} { // a sixth of those up to 12 is below 10
		if math.Abs(got[i]-want) > 1e-9 {
			t.Errorf("bins of 5 have %v %%", got)
		}
	}
	for _, f := range []Figure{
		{Kind: "box", Metric: "time"}, {Kind: "box", Metric: "time", Stat: "p50"},
		{Kind: "each", Computed: []Series{{Config: "old", Rounds: [][]float64{{1, 2}}}, {Config: "new",
			Rounds: [][]float64{{3, 2}}}}},
		{Kind: "cdf", Metric: "time"}, {Kind: "each", Metric: "time"},
		{Kind: "each", Metric: "time", Step: 0.5, Smooth: 0.2}, {Kind: "regression", Metric: "time", Stat: "p50"},
		{Kind: "rates", Metric: "time", Stat: "p50"}, {Kind: "rates", Metric: "time", Stat: "p50", Logarithmic: true},
		{Kind: "histogram", Metric: "delay", Width: 5, Below: 20}, {Kind: "bars", Metric: "time", Stat: "p50"}} {
		path := filepath.Join(t.TempDir(), f.Kind)
		if err := r.Draw(f, path); err != nil {
			t.Fatalf("%s: %v", f.Kind, err)
		}
		svg, err := os.ReadFile(path + "-dark.svg")
		if err != nil || !strings.Contains(string(svg), ">old") || !strings.Contains(string(svg), ">new") {
			t.Errorf("%s: %v, %d bytes without a config", f.Kind, err, len(svg))
		}
	}
	if err := r.Draw(Figure{Kind: "pie"}, filepath.Join(t.TempDir(), "x")); err == nil {
		t.Error("a figure of no kind was drawn")
	}
}
