// SPDX-License-Identifier: Apache-2.0

package promtext_test

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kerb-edge/kerb/internal/promtext"
)

func TestText(t *testing.T) {
	h := promtext.NewHistogram(0.5, 2)
	for _, v := range []float64{0.1, 0.5, 0.7, 3} {
		h.Observe(v)
	}
	var s promtext.Set
	s.Gauge("load", `Per CPU, \ is no path`, 0.25, "cpu", "0")
	s.Histogram("duration_seconds", "Time.", h)
	s.Gauge("load", `Per CPU, \ is no path`, 1e9, "cpu", "a \"b\"\n")
	s.Counter("big_total", "Many.", 1<<60)
	const want = `# HELP big_total Many.
# TYPE big_total counter
big_total 1.152921504606847e+18
# HELP duration_seconds Time.
# TYPE duration_seconds histogram
duration_seconds_bucket{le="0.5"} 2
duration_seconds_bucket{le="1"} 3
duration_seconds_bucket{le="+Inf"} 4
duration_seconds_sum 4.3
duration_seconds_count 4
# HELP load Per CPU, \\ is no path
# TYPE load gauge
load{cpu="0"} 0.25
load{cpu="a \"b\"\n"} 1e+09
`
	text, err := s.Text()
	if diff := cmp.Diff(want, string(text)); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

// What is not valid is left out and reported; the others are written.
func TestInvalidMetrics(t *testing.T) {
	var s promtext.Set
	s.Gauge("good", "Good.", 1, "module", "a")
	for name, add := range map[string]func(){
		"a name":                 func() { s.Gauge("bad-name", "", 1) },
		"a label":                func() { s.Gauge("labels", "", 1, "bad-label", "x") },
		"a label of Prometheus":  func() { s.Gauge("labels", "", 1, "__name__", "good") },
		"a label of digits":      func() { s.Gauge("labels", "", 1, "1", "x") },
		"a label that is double": func() { s.Gauge("labels", "", 1, "module", "a", "module", "b") },
		"bytes":                  func() { s.Gauge("labels", "", 1, "module", "\xff") },
		"the same series":        func() { s.Gauge("good", "Good.", 2, "module", "a") },
		"another type":           func() { s.Counter("good", "Good.", 2, "module", "b") },
		"another help":           func() { s.Gauge("good", "Bad.", 2, "module", "b") },
		"a histogram":            func() { s.Histogram("good", "Good.", promtext.NewHistogram(1, 1)) },
	} {
		_, before := s.Text()
		add()
		if _, after := s.Text(); problems(after) != problems(before)+1 {
			t.Errorf("%s is not reported", name)
		}
	}
	if text, _ := s.Text(); string(text) != "# HELP good Good.\n# TYPE good gauge\ngood{module=\"a\"} 1\n" {
		t.Errorf("%s", text)
	}
}

func problems(err error) int {
	var all interface{ Unwrap() []error }
	if !errors.As(err, &all) {
		return 0
	}
	return len(all.Unwrap())
}

// Prometheus and Parse read each label value and each number as it was written.
func FuzzText(f *testing.F) {
	f.Add("web", 1.5)
	f.Add("a\\b\"c\nd\te{}=,#", math.Inf(-1))
	f.Add("", math.NaN())
	f.Fuzz(func(t *testing.T, label string, value float64) {
		label = strings.ToValidUTF8(label, "?")
		var s promtext.Set
		s.Gauge("g", label, value, "l", label, "m", "2")
		text, err := s.Text()
		if err != nil {
			t.Fatal(err)
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		checkSample(t, sampleOf(families["g"].GetMetric()[0]), label, value)
		all, err := promtext.Parse(text)
		if err != nil || len(all) != 1 {
			t.Fatalf("%v, %v\n%s", all, err, text)
		}
		checkSample(t, all[0], label, value)
	})
}

func sampleOf(m *dto.Metric) promtext.Sample {
	s := promtext.Sample{Name: "g", Labels: map[string]string{}, Value: m.GetGauge().GetValue()}
	for _, l := range m.GetLabel() {
		s.Labels[l.GetName()] = l.GetValue()
	}
	return s
}

func checkSample(t *testing.T, s promtext.Sample, label string, value float64) {
	t.Helper()
	same := s.Value == value || math.IsNaN(s.Value) && math.IsNaN(value)
	if !same || s.Name != "g" || len(s.Labels) != 2 || s.Labels["l"] != label || s.Labels["m"] != "2" {
		t.Errorf("%q %v was read as %+v", label, value, s)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{"name", "name x", `name{l="v"`, `name{l=v} 1`, `name{l="v} 1`, `name{} 1 x`} {
		if all, err := promtext.Parse([]byte("# HELP name\n" + text)); err == nil ||
			!strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: %v, %v", text, all, err)
		}
	}
}

func TestProcess(t *testing.T) {
	var s promtext.Set
	s.Process()
	text, err := s.Text()
	if err != nil {
		t.Fatal(err)
	}
	all, err := promtext.Parse(text)
	if err != nil || len(all) < 16 {
		t.Fatal(err, len(all))
	}
	for _, m := range all {
		if m.Value <= 0 && m.Name != "go_gc_cycles_total" && m.Name != "go_memstats_heap_released_bytes" {
			t.Errorf("%+v", m)
		}
	}
}
