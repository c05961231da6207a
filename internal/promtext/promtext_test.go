// SPDX-License-Identifier: Apache-2.0

package promtext_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/testing/protocmp"

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
	text, err := s.Encode()
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
		_, before := s.Encode()
		add()
		if _, after := s.Encode(); problems(after) != problems(before)+1 {
			t.Errorf("%s is not reported", name)
		}
	}
	if text, _ := s.Encode(); string(text) != "# HELP good Good.\n# TYPE good gauge\ngood{module=\"a\"} 1\n" {
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

// Prometheus reads each label value and each number as it was written.
func FuzzText(f *testing.F) {
	f.Add("web", 1.5)
	f.Add("a\\b\"c\nd\te{}=,#", math.Inf(-1))
	f.Add("", math.NaN())
	f.Fuzz(func(t *testing.T, label string, value float64) {
		label = strings.ToValidUTF8(label, "?")
		var s promtext.Set
		s.Gauge("g", label, value, "l", label, "m", "2")
		text, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		checkSample(t, families["g"].GetMetric()[0], label, value)

		p := promtext.Set{Protobuf: true}
		p.Gauge("g", label, value, "l", label, "m", "2")
		g := decode(t, &p)["g"]
		checkSample(t, g.GetMetric()[0], label, value)
		if g.GetHelp() != label {
			t.Errorf("help %q, want %q", g.GetHelp(), label)
		}
	})
}

// decode has Prometheus read a set in its format.
func decode(t *testing.T, s *promtext.Set) map[string]*dto.MetricFamily {
	t.Helper()
	data, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	format := expfmt.ResponseFormat(http.Header{"Content-Type": {s.ContentType()}})
	decoder := expfmt.NewDecoder(bytes.NewReader(data), format)
	out := map[string]*dto.MetricFamily{}
	for {
		var f dto.MetricFamily
		err := decoder.Decode(&f)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("%s: %v", format, err)
		}
		out[f.GetName()] = &f
	}
}

// Both formats have the same families, types, labels and values.
func TestFormatsAgree(t *testing.T) {
	fill := func(s *promtext.Set) *promtext.Set {
		s.Counter("c_total", "Counter.", 1<<60)
		s.Gauge("g", "Gauge, \\ and \n.", -1.5, "l", "x")
		s.Gauge("g", "Gauge, \\ and \n.", math.Inf(1), "l", "y")
		s.Buckets("h", "Histogram.", []float64{1, 2}, []uint64{300, 0, 4}, 9.5, nil, "l", "x")
		s.Process()
		return s
	}
	text, protobuf := decode(t, fill(&promtext.Set{})), decode(t, fill(&promtext.Set{Protobuf: true}))
	for name := range text { // what the process uses changes meanwhile
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			for _, f := range []*dto.MetricFamily{text[name], protobuf[name]} {
				f.Metric = f.GetMetric()[:min(1, len(f.GetMetric()))]
				f.Metric[0].Gauge, f.Metric[0].Counter = nil, nil
			}
		}
	}
	if diff := cmp.Diff(text, protobuf, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

// A native histogram has each value in its bucket, and as many as the classic one.
func TestNative(t *testing.T) {
	values := map[float64]uint64{0: 2, 1e-9: 1, 15e-9: 70_000, 18e-9: 3, 0.25: 1, 0.25001: 4, 1: 5, 1.001: 6}
	var native promtext.Native
	for v, n := range values {
		native.Add(v, n)
	}
	s := promtext.Set{Protobuf: true}
	s.Buckets("h", "Histogram.", []float64{1}, []uint64{70_016, 6}, 7, &native)
	h := decode(t, &s)["h"].GetMetric()[0].GetHistogram()
	got, index, at, count, total := map[int]uint64{}, 0, 0, int64(0), h.GetZeroCount()
	for _, span := range h.GetPositiveSpan() {
		index += int(span.GetOffset())
		for range span.GetLength() {
			count += h.GetPositiveDelta()[at]
			got[index] = uint64(count)
			total += uint64(count)
			index++
			at++
		}
	}
	if at != len(h.GetPositiveDelta()) || total != h.GetSampleCount() || total != 70_022 || h.GetZeroCount() != 2 {
		t.Errorf("%d of %d deltas, %d of %d values, %d zeros", at, len(h.GetPositiveDelta()), total, h.GetSampleCount(),
			h.GetZeroCount())
	}
	width := math.Exp2(math.Exp2(-float64(h.GetSchema())))
	want := map[int]uint64{}
	for v, n := range values {
		for i := -200; i < 10 && v > 0; i++ {
			if upper := math.Pow(width, float64(i)); v <= upper && v > upper/width {
				want[i] += n
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func checkSample(t *testing.T, m *dto.Metric, label string, value float64) {
	t.Helper()
	labels, got := map[string]string{}, m.GetGauge().GetValue()
	for _, l := range m.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	same := got == value || math.IsNaN(got) && math.IsNaN(value)
	if !same || len(labels) != 2 || labels["l"] != label || labels["m"] != "2" {
		t.Errorf("%q %v was read as %v", label, value, m)
	}
}

func TestProcess(t *testing.T) {
	var s promtext.Set
	s.Process()
	all := decode(t, &s)
	if len(all) < 16 {
		t.Error(len(all))
	}
	for name, f := range all {
		value := f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		if value <= 0 && name != "go_gc_cycles_total" && name != "go_memstats_heap_released_bytes" {
			t.Errorf("%s %v", name, value)
		}
	}
}
