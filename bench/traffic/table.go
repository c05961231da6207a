// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bufio"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// labels assign classes to windows.
type labels struct {
	normal string
	all    []label
}

// label is the class of a source during an interval in seconds.
type label struct {
	class, source string
	from, to      float64 // 0, 0: unlimited
}

// of returns the class of a window of a length: that of the first label whose interval overlaps it.
func (l *labels) of(w Window, length time.Duration) string {
	end := time.Duration(w.Time).Seconds()
	for _, one := range l.all {
		always := one.from == 0 && one.to == 0
		if one.source == w.Source && (always || one.from < end && one.to >= end-length.Seconds()) {
			return one.class
		}
	}
	return l.normal
}

func (l *labels) known() bool { return len(l.all) > 0 }

// parseLabels reads the flag --label, CLASS=SOURCE,..., and a file with lines "CLASS SOURCE" or "CLASS SOURCE FROM TO",
// in seconds of the capture's clock.
func parseLabels(normal string, flags []string, file string) (*labels, error) {
	out := &labels{normal: normal}
	for _, text := range flags {
		class, sources, ok := strings.Cut(text, "=")
		if !ok || class == "" || sources == "" {
			return nil, fmt.Errorf("label %q: want CLASS=SOURCE,...", text)
		}
		for one := range strings.SplitSeq(sources, ",") {
			out.all = append(out.all, label{class: class, source: one})
		}
	}
	if file == "" {
		return out, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || words[0][0] == '#' {
			continue
		}
		one, err := parseLabel(words)
		if err != nil {
			return nil, fmt.Errorf("labels %s, line %d: %w", file, n, err)
		}
		out.all = append(out.all, one)
	}
	return out, lines.Err()
}

func parseLabel(words []string) (out label, err error) {
	if len(words) != 2 && len(words) != 4 {
		return out, fmt.Errorf("%q: want CLASS SOURCE, or CLASS SOURCE FROM TO", strings.Join(words, " "))
	}
	out.class, out.source = words[0], words[1]
	if len(words) == 4 {
		if out.from, err = strconv.ParseFloat(words[2], 64); err == nil {
			out.to, err = strconv.ParseFloat(words[3], 64)
		}
		if err == nil && out.to <= out.from {
			err = fmt.Errorf("TO %s is before FROM", words[3])
		}
	}
	return out, err
}

// table writes windows as CSV: time, source, a column per feature, and the class if there are labels.
type table struct {
	*csv.Writer
	labels *labels
	length time.Duration
	rows   map[string]int // by class
}

func newTable(w io.Writer, features []string, l *labels, length time.Duration) *table {
	t := &table{csv.NewWriter(w), l, length, map[string]int{}}
	heading := append([]string{"time", "source"}, features...)
	if l.known() {
		heading = append(heading, "label")
	}
	_ = t.Write(heading) // Flush returns an error
	return t
}

func (t *table) add(w Window) error {
	row := []string{seconds(w.Time), w.Source}
	for _, v := range w.Values {
		row = append(row, strconv.FormatInt(v, 10))
	}
	class := t.labels.of(w, t.length)
	t.rows[class]++
	if t.labels.known() {
		row = append(row, class)
	}
	return t.Write(row)
}

func (t *table) end() error {
	t.Flush()
	return t.Error()
}
