// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func testRun(e Experiment, rounds int) *Run {
	return NewRun(e, false, rounds, e.Loads, io.Discard)
}

func TestStatistics(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	for _, tc := range []struct {
		name      string
		got, want float64
	}{
		{"median odd", Median(values), 3},
		{"median even", Median([]float64{4, 1, 2, 3}), 2.5},
		{"p99", Percentile(values, 99), 5},
		{"p20", Percentile(values, 20), 1},
		{"p21", Percentile(values, 21), 2},
		{"p0", Percentile(values, 0), 1},
		{"stddev", Stddev([]float64{2, 4, 4, 4, 5, 5, 7, 9}), 2.138},
		{"stddev of one", Stddev([]float64{7}), 0},
		{"sum", merge("sum", values), 15},
		{"max", merge("max", values), 5},
		{"min", merge("min", values), 1},
		{"p50", merge("p50", values), 3},
	} {
		if math.Abs(tc.got-tc.want) > 0.001 {
			t.Errorf("%s = %v, want %v", tc.name, tc.got, tc.want)
		}
	}
	if !math.IsNaN(Median(nil)) || !math.IsNaN(Percentile(nil, 50)) {
		t.Error("statistics of nothing are numbers")
	}
	if !slices.Equal(values, []float64{5, 1, 4, 2, 3}) {
		t.Error("input was reordered")
	}
}

func TestInterleaveOrderAndMedian(t *testing.T) {
	run := testRun(Experiment{Name: "x", Baseline: "a"}, 5)
	var order []string
	trial := func(config string, values ...float64) Trial {
		i := -1
		return Trial{Config: config, Measure: func(context.Context) ([]Sample, error) {
			i++
			order = append(order, config)
			return []Sample{{"time", "p50", "ns", values[i]}, {"lost", "sum", "count", 1}}, nil
		}}
	}
	if err := run.Interleave(t.Context(), "l/1", trial("a", 1, 2, 9, 3, 4), trial("b", 5, 5, 5, 5, 50)); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(order, ""); got != "abbaabbaab" {
		t.Errorf("order %s", got)
	}
	a, _ := run.report.Find("a", "l/1", "time", "p50")
	lost, _ := run.report.Find("b", "l/1", "lost", "sum")
	if a.Value != 3 || !slices.Equal(a.Rounds, []float64{1, 2, 9, 3, 4}) || lost.Value != 5 {
		t.Errorf("cells %+v %+v", a, lost)
	}
	var out bytes.Buffer
	run.report.setRatios()
	if err := run.report.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "(2.50x, 1.67-5.00)") {
		t.Errorf("no ratio 5/2 in\n%s", out.String())
	}
}

func TestInterleaveStopsAtAnError(t *testing.T) {
	run := testRun(Experiment{Name: "x"}, 5)
	boom := errors.New("boom")
	fails := func(context.Context) ([]Sample, error) { return nil, boom }
	err := run.Interleave(t.Context(), "l", Trial{Config: "a", Measure: fails})
	if !errors.Is(err, boom) || len(run.report.Cells) != 0 {
		t.Errorf("err %v, cells %v", err, run.report.Cells)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run.Interleave(ctx, "l", Trial{Config: "a"}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled run: %v", err)
	}
}

// withExperiment registers e during a test.
func withExperiment(t *testing.T, e Experiment) {
	Register(e)
	t.Cleanup(func() { delete(experiments, e.Name) })
}

func TestCommandWritesTableJSONAndPlots(t *testing.T) {
	withExperiment(t, Experiment{
		Name: "toy", Short: "toy", Baseline: "a", Loads: []string{"x/1", "x/2", "x/4", "other"}, QuickLoads: []string{"x/1"},
		Run: func(ctx context.Context, run *Run) error {
			for i, load := range run.Loads() {
				run.Record("a", load, Sample{"time", "p50", "ns", float64(i + 1)})
				run.Record("b", load, Sample{"time", "p50", "ns", float64(2*i + 2)})
			}
			return nil
		},
	})
	dir := t.TempDir()
	jsonFile, plots := filepath.Join(dir, "toy.json"), filepath.Join(dir, "plots")
	out, err := runCommand("toy", "--loads", "x/1,x/2,x/4", "--out", jsonFile, "--plots", plots)
	if err != nil || !strings.Contains(out, "(2.00x)") {
		t.Fatalf("%v\n%s", err, out)
	}
	data, err := os.ReadFile(jsonFile)
	if err != nil {
		t.Fatal(err)
	}
	var report Report
	if err := json.Unmarshal(data, &report); err != nil {
		t.Fatal(err)
	}
	if c, ok := report.Find("b", "x/4", "time", "p50"); !ok || c.Value != 6 || report.Kernel == "" || report.CPUs < 1 {
		t.Errorf("report %+v", report)
	}
	checkPlot(t, filepath.Join(plots, "toy-time-p50-x"))
}

func runCommand(args ...string) (string, error) {
	cmd := Command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

func TestCommandRefuses(t *testing.T) {
	withExperiment(t, Experiment{Name: "toy", Loads: []string{"x/1"}, Configs: []string{"a", "a-b", "a-c"},
		Run: func(ctx context.Context, run *Run) error {
			if want := []string{"a-b", "a-c", "a"}; !slices.Equal(run.Configs, want) {
				t.Errorf("contenders %q, want %q", run.Configs, want)
			}
			return errors.New("must not run")
		}})
	if _, err := runCommand("toy", "--contenders", "a-*,a"); err == nil || !strings.Contains(err.Error(), "must not run") {
		t.Error(err)
	}
	for _, args := range [][]string{{"toy", "--loads", "y"}, {"toy", "--rounds", "4"}, {"toy", "extra"},
		{"toy", "--contenders", "a-"}, {"toy", "--contenders", "["}, {"toy", "--contenders", "a,"}} {
		if _, err := runCommand(args...); err == nil || strings.Contains(err.Error(), "must not run") {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestUnsoundRunShowsItsFiguresAndFails(t *testing.T) {
	withExperiment(t, Experiment{Name: "toy", Loads: []string{"x"}, Run: func(ctx context.Context, run *Run) error {
		run.Record("a", "x", Sample{"time", "p50", "ns", 42})
		run.Invalidate("%d packets vanished", 3)
		return nil
	}})
	out, err := runCommand("toy")
	if !errors.Is(err, ErrInvalid) || !strings.Contains(out, "42") || !strings.Contains(out, "3 packets vanished") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestFigures(t *testing.T) {
	for _, tc := range []struct {
		loads    []string
		families []string
		lines    bool
	}{
		{[]string{"tc/1", "tc/2", "tc/4", "xdp/1", "xdp/2", "xdp/4"}, []string{"tc", "xdp"}, true},
		{[]string{"100", "500"}, []string{""}, false},
		{[]string{"same-node/ipv4", "same-node/ipv6"}, []string{""}, false},
		{[]string{"100kpps"}, []string{""}, false},
		{[]string{"veth/echo-64", "veth/echo-4K", "veth/echo-1M"}, []string{"veth/echo"}, true},
		{[]string{"veth/file", "veth/http"}, []string{""}, false},
	} {
		tab := &table{cells: map[[2]string]Cell{}}
		for _, load := range tc.loads {
			tab.add(Cell{Config: "a", Load: load, Value: 1})
		}
		var families []string
		for _, f := range tab.figures() {
			families = append(families, f.family)
			if f.lines != tc.lines {
				t.Errorf("%v: lines %v", tc.loads, f.lines)
			}
		}
		if !slices.Equal(families, tc.families) {
			t.Errorf("%v: families %q", tc.loads, families)
		}
	}
}

func TestRegisterTwicePanics(t *testing.T) {
	withExperiment(t, Experiment{Name: "toy"})
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	Register(Experiment{Name: "toy"})
}

func TestObject(t *testing.T) {
	files := fstest.MapFS{"bad.bpf.o": {Data: []byte("not an ELF")}}
	if _, err := Object(files, "gone.bpf.o"); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("missing object: %v", err)
	}
	if _, err := Object(files, "bad.bpf.o"); err == nil || errors.Is(err, ErrNotBuilt) {
		t.Errorf("broken object: %v", err)
	}
}

// Until some rounds are complete, the remaining time is the expected one. Then it is estimated from these rounds.
func TestTimeLeft(t *testing.T) {
	var progress bytes.Buffer
	run := NewRun(Experiment{Name: "x"}, false, 4, []string{"a", "b"}, &progress)
	run.Expected, run.Configs = time.Hour, []string{"c"}
	var left []string
	measure := func(context.Context) ([]Sample, error) {
		left = append(left, run.left(5*time.Minute, time.Minute).String())
		return []Sample{{"m", "p50", "s", 1}}, nil
	}
	if err := run.Interleave(t.Context(), "a", Trial{Config: "c", Measure: measure},
		Trial{Config: "unwanted", Measure: measure}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(left, " "); got != "55m0s 7m0s 3m0s 1m40s" || len(run.report.configs()) != 1 {
		t.Errorf("left %s, %d cells", got, len(run.Report().Cells))
	}
	if n := strings.Count(progress.String(), "left\n"); n != 4 || strings.Count(progress.String(), " [") != 4 {
		t.Errorf("%d lines of progress have the time left: %s", n, &progress)
	}
	if got := bar(time.Minute, 3*time.Minute); got != "[#####...............]" {
		t.Errorf("a quarter is %s", got)
	}
}

// A config that cannot be measured is left out with a note. Opened configs are closed in reverse order, also after a
// later one failed to open.
func TestInterleaveOpens(t *testing.T) {
	var events []string
	opening := func(config string, wrong error) Trial {
		return Trial{Config: config,
			Open: func() (io.Closer, error) {
				events = append(events, "open "+config)
				return &Closers{func() error { events = append(events, "close "+config); return nil }}, wrong
			},
			Measure: func(context.Context) ([]Sample, error) { events = append(events, config); return nil, nil }}
	}
	run := testRun(Experiment{Name: "x"}, 1)
	absent := fmt.Errorf("%w: no driver", ErrLeftOut)
	if err := run.Interleave(t.Context(), "l", opening("a", nil), opening("b", absent), opening("c", nil)); err != nil {
		t.Fatal(err)
	}
	want := []string{"open a", "open b", "open c", "a", "c", "close c", "close a"}
	if !slices.Equal(events, want) || !slices.Equal(run.report.Notes, []string{"b is left out: " + absent.Error()}) {
		t.Errorf("%q, want %q; notes %q", events, want, run.report.Notes)
	}
	events = nil
	broken := errors.New("broken")
	if err := run.Interleave(t.Context(), "l", opening("a", nil), opening("b", broken)); !errors.Is(err, broken) {
		t.Error(err)
	}
	if want = []string{"open a", "open b", "close a"}; !slices.Equal(events, want) {
		t.Errorf("%q, want %q", events, want)
	}
}
