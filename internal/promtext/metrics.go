// SPDX-License-Identifier: Apache-2.0

// Package promtext writes the metrics of a scrape in Prometheus's text format (version 0.0.4) or as protobuf.
// Prometheus's client library would link protobuf's, which is a tenth of the agent's binary, and is initialised by each
// control plane.
package promtext

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// textType is the media type of the text.
const textType = "text/plain; version=0.0.4; charset=utf-8"

// Set holds the metrics of one scrape. The zero value is empty.
type Set struct {
	// Protobuf selects the format, before the first metric. Otherwise the format is text.
	Protobuf bool

	families map[string]*family
	problems []error
}

// ContentType is the media type of Encode.
func (s *Set) ContentType() string {
	if s.Protobuf {
		return protobufType
	}
	return textType
}

// family holds all series of one name.
type family struct {
	help, kind string
	series     map[string]bool
	lines      bytes.Buffer // as protobuf: fields of MetricFamily
}

// Gauge adds a value that rises and falls. Labels are pairs of name and value.
func (s *Set) Gauge(name, help string, value float64, labels ...string) {
	s.add(name, help, "gauge", value, labels)
}

// Counter adds a value that only rises while the agent runs.
func (s *Set) Counter(name, help string, value float64, labels ...string) {
	s.add(name, help, "counter", value, labels)
}

func (s *Set) add(name, help, kind string, value float64, labels []string) {
	text, err := labelText(labels)
	if err == nil {
		var f *family
		if f, err = s.family(name, help, kind, text); err == nil {
			f.write(s.Protobuf, name, text, value, labels)
			return
		}
	}
	s.problems = append(s.problems, fmt.Errorf("metric %s: %w", name, err))
}

// family returns the family of a series, which is new in it.
func (s *Set) family(name, help, kind, labels string) (*family, error) {
	if !validName.MatchString(name) {
		return nil, errors.New("not a name of a metric")
	}
	if s.families == nil {
		s.families = map[string]*family{}
	}
	f := s.families[name]
	if f == nil {
		f = &family{help: help, kind: kind, series: map[string]bool{}}
		s.families[name] = f
	}
	switch {
	case f.kind != kind || f.help != help:
		return nil, fmt.Errorf("both a %s (%s) and a %s (%s)", f.kind, f.help, kind, help)
	case f.series[labels]:
		return nil, fmt.Errorf("two values of {%s}", labels)
	}
	f.series[labels] = true
	return f, nil
}

func (f *family) write(protobuf bool, name, text string, value float64, labels []string) {
	if !protobuf {
		f.line(name, text, value)
		return
	}
	var m message
	m.double(1, value)
	f.writeMetric(labels, m)
}

func (f *family) line(name, labels string, value float64) {
	f.lines.WriteString(name)
	if labels != "" {
		f.lines.WriteString("{" + labels + "}")
	}
	f.lines.WriteString(" " + number(value) + "\n")
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

var (
	validName  = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	validLabel = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
)

// Escapes of the format, which has no others.
var (
	escapeValue = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	escapeHelp  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
)

// labelText returns labels in the text format. Names must match the data model of Prometheus, must not begin with two
// underscores (reserved) and must be unique; values must be UTF-8.
func labelText(pairs []string) (string, error) {
	var all []string
	seen := map[string]bool{}
	for pair := range slices.Chunk(pairs, 2) {
		name, value := pair[0], pair[1]
		if !validLabel.MatchString(name) || strings.HasPrefix(name, "__") || seen[name] || !utf8.ValidString(value) {
			return "", fmt.Errorf("label %q=%q: its name is not valid, reserved or comes twice, or its value is not UTF-8",
				name, value)
		}
		seen[name] = true
		all = append(all, name+`="`+escapeValue.Replace(value)+`"`)
	}
	return strings.Join(all, ","), nil
}

// Encode returns the metrics sorted by family. The errors are of those that are left out.
func (s *Set) Encode() ([]byte, error) {
	var out bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(s.families)) {
		f := s.families[name]
		if s.Protobuf {
			out.Write(f.protobuf(name))
			continue
		}
		fmt.Fprintf(&out, "# HELP %s %s\n# TYPE %s %s\n", name, escapeHelp.Replace(f.help), name, f.kind)
		out.Write(f.lines.Bytes())
	}
	return out.Bytes(), errors.Join(s.problems...)
}

// Histogram counts observations by size. Its methods are safe for concurrent use.
type Histogram struct {
	mu     sync.Mutex
	bounds []float64 // upper bounds, rising
	counts []uint64  // one more than bounds
	sum    float64
}

// NewHistogram returns a histogram with n buckets, each of which is twice as wide as the one before.
func NewHistogram(first float64, n int) *Histogram {
	h := &Histogram{counts: make([]uint64, n+1)}
	for i := range n {
		h.bounds = append(h.bounds, math.Ldexp(first, i))
	}
	return h
}

// Observe counts one observation.
func (h *Histogram) Observe(v float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, _ := slices.BinarySearch(h.bounds, v)
	h.counts[i]++
	h.sum += v
}

// Buckets adds a histogram of which the caller has counted the values up to each bound, and behind these all others.
// native has the same values, or is nil; the text has no place for it.
func (s *Set) Buckets(name, help string, bounds []float64, counts []uint64, sum float64, native *Native,
	labels ...string) {
	text, err := labelText(labels)
	var f *family
	if err == nil {
		f, err = s.family(name, help, "histogram", text)
	}
	switch {
	case err != nil:
		s.problems = append(s.problems, fmt.Errorf("metric %s: %w", name, err))
	case s.Protobuf:
		f.writeMetric(labels, histogram(bounds, counts, sum, native))
	default:
		f.buckets(name, text, bounds, counts, sum)
	}
}

// buckets writes a histogram. counts are per bucket; the text format wants them cumulative, and the last bucket is
// +Inf.
func (f *family) buckets(name, labels string, bounds []float64, counts []uint64, sum float64) {
	comma := ""
	if labels != "" {
		comma = ","
	}
	n := uint64(0)
	for i, count := range counts {
		n += count
		f.line(name+"_bucket", labels+comma+`le="`+number(bound(bounds, i))+`"`, float64(n))
	}
	f.line(name+"_sum", labels, sum)
	f.line(name+"_count", labels, float64(n))
}

// bound is the upper bound of a bucket.
func bound(bounds []float64, i int) float64 {
	if i < len(bounds) {
		return bounds[i]
	}
	return math.Inf(1)
}

// Histogram adds a histogram.
func (s *Set) Histogram(name, help string, h *Histogram) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Buckets(name, help, h.bounds, h.counts, h.sum, nil)
}
