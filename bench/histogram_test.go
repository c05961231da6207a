// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

func TestHistogramsAddUpAndAreDrawn(t *testing.T) {
	run := testRun(Experiment{Name: "x", Baseline: "a"}, 5)
	for _, config := range []string{"a", "b"} {
		run.Spread(Histogram{Config: config, Group: config, Load: "l/1", Metric: "delay", Unit: "us",
			Bins: []Bin{{1, 5}, {4, 1}}})
		run.Spread(Histogram{Config: config, Group: config, Load: "l/1", Metric: "delay", Unit: "us",
			Bins: []Bin{{0, 1}, {2, 7}, {4, 2}}})
	}
	data, err := json.Marshal(run.report)
	if err != nil {
		t.Fatal(err)
	}
	var got Report
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	want := []Bin{{0, 1}, {1, 5}, {2, 7}, {4, 3}}
	if len(got.Histograms) != 2 || !reflect.DeepEqual(got.Histograms[1].Bins, want) {
		t.Fatalf("got %+v, want twice %v", got.Histograms, want)
	}
	var table strings.Builder
	if err := run.report.writeTails(&table); err != nil ||
		!regexp.MustCompile(`above +3 +10 .*\nl/1 a +18\.8 +0 .*\nl/1 b +18\.8 `).MatchString(table.String()) {
		t.Errorf("%v: %s", err, &table)
	}
	dir := t.TempDir()
	if err := run.report.writePlots(dir, everyPlot); err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{"a", "b"} {
		checkPlot(t, filepath.Join(dir, "x-delay-histogram-l-1-"+group))
	}
}
