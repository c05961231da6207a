// SPDX-License-Identifier: Apache-2.0

// Package paper implements `kerb bench paper`, which repeats the experiments of the published works that Kerb
// implements, with their metrics, and compares the results. A work is a list of tables; each is measured by an
// experiment that also exists as `kerb bench NAME`, with the published number of repetitions or a fraction of it, and
// is stored as a separate report, so that a work can be repeated in parts.
package paper

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/bench"
)

// Work is a published work.
type Work struct {
	Name   string // on the command line
	Title  string
	Tables []Table
	// Figures are bars, of a metric of the rows of several tables.
	Figures []bench.Figure
	Claims  []Claim
}

// Table is a table or figure of the work's results, or several that show the same measurement.
type Table struct {
	Name  string // of its file
	Title string // starts with its number in the work
	Shows string // in one line
	// Experiment measures Configs under Loads; a mode may have fewer of them.
	Experiment string
	Loads      [modes][]string
	Rounds     [modes]int
	Counts     [modes]string        // of a round
	Takes      [modes]time.Duration // on two CPUs
	Configs    []Config
	Rows       []Row
	// Figures are plots of the experiment's report; those of kind bars show the rows of a metric, or ratioOf a metric.
	Figures []bench.Figure
	// Differs describes the differences from the work.
	Differs string
}

// Config is a config of the experiment, with its name in the work. Ratios refer to the first config.
type Config struct{ Name, Published string }

// Row is one figure of all configs.
type Row struct {
	Label string
	// Group joins the bars of several rows with different metrics. If it is empty, the row has a separate group.
	Group string
	// The cell in the experiment's report; Load may be a pattern. Values are multiplied by By to get Unit.
	Load, Metric, Stat string
	Unit               string
	By                 float64
	// Over is mean, median or stddev if the work publishes that of its repetitions. If it is empty, the cell's own value
	// is used.
	Over string
	// Configs are the configs of the row, if they differ from the table's.
	Configs []Config
	// Published are the values by config. Ratios has published ratios, if only the difference between configs is
	// published, or with more digits.
	Published, Ratios map[string]float64
}

// Mode selects the number of repetitions: that of the work or fewer.
type Mode int

// The modes; the order is that of Table's fields.
const (
	Published Mode = iota
	Short
	Quick
	modes
)

var modeNames = [modes]string{"published", "short", "quick"}

// String returns the mode's name in reports.
func (m Mode) String() string { return modeNames[m] }

// MarshalText implements encoding.TextMarshaler.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Mode) UnmarshalText(text []byte) error {
	i := slices.Index(modeNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("unknown mode of a report %q; modes are %s", text, strings.Join(modeNames[:], ", "))
	}
	*m = Mode(i)
	return nil
}

// scale returns the fraction of the published counts.
func (m Mode) scale() float64 { return [modes]float64{1, 0.1, 0.001}[m] }

// text describes the mode for users.
func (m Mode) text() string {
	return [modes]string{"the published number of repetitions", "fewer or shorter repetitions where a table states two " +
		"numbers",
		"few repetitions: a smoke run, whose results mean nothing"}[m]
}

// counts returns the counts of the modes.
func counts(published, short, quick string) [modes]string {
	return [modes]string{published, short, quick}
}

// Same returns the same value for all modes.
func Same[T any](v T) [modes]T { return [modes]T{v, v, v} }

var works []*Work

// register adds a work; it is called from init.
func register(w *Work) { works = append(works, w) }

func find(name string) (*Work, error) {
	var names []string
	for _, w := range works {
		if w.Name == name {
			return w, nil
		}
		names = append(names, w.Name)
	}
	slices.Sort(names)
	return nil, fmt.Errorf("unknown work %q; works are %s", name, strings.Join(names, ", "))
}

func (w *Work) table(name string) (*Table, error) {
	var names []string
	for i := range w.Tables {
		if w.Tables[i].Name == name {
			return &w.Tables[i], nil
		}
		names = append(names, w.Tables[i].Name)
	}
	return nil, fmt.Errorf("%s has no table %q; it has %s", w.Name, name, strings.Join(names, ", "))
}

// configs returns the configs of a row.
func (t *Table) configs(row Row) []Config {
	if row.Configs != nil {
		return row.Configs
	}
	return t.Configs
}

func (t *Table) configNames() (names []string) {
	for _, c := range t.Configs {
		names = append(names, c.Name)
	}
	return names
}
