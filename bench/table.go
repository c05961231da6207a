// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// table has the cells of one metric and stat: a row per load, a column per config.
type table struct {
	metric, stat, unit string
	loads, configs     []string
	cells              map[[2]string]Cell // by load, config
}

// tables splits a report, in the order of first measurement.
func (r *Report) tables() []*table {
	var all []*table
	index := map[[2]string]*table{}
	for _, c := range r.Cells {
		key := [2]string{c.Metric, c.Stat}
		t := index[key]
		if t == nil {
			t = &table{metric: c.Metric, stat: c.Stat, unit: c.Unit, cells: map[[2]string]Cell{}}
			index[key] = t
			all = append(all, t)
		}
		t.add(c)
	}
	return all
}

func (t *table) add(c Cell) {
	t.loads = appendNew(t.loads, c.Load)
	t.configs = appendNew(t.configs, c.Config)
	t.cells[[2]string{c.Load, c.Config}] = c
}

func appendNew(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

func (t *table) get(load, config string) (Cell, bool) {
	c, ok := t.cells[[2]string{load, config}]
	return c, ok
}

// WriteTable prints the report as text.
func (r *Report) WriteTable(w io.Writer) error {
	fmt.Fprintln(w, r.Where())
	if err := errors.Join(r.writeTables(w), r.writeTails(w)); err != nil {
		return err
	}
	for _, warning := range r.Warnings() {
		fmt.Fprintf(w, "\nwarning: %s", warning)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(w, "\nnote: %s", note)
	}
	for _, why := range r.Unsound {
		fmt.Fprintf(w, "\nINVALID: %s", why)
	}
	_, err := fmt.Fprintln(w)
	return err
}

// writeTables prints a table per metric and stat, or a single table with a line for each if there is only one load.
func (r *Report) writeTables(w io.Writer) error {
	tables := r.tables()
	if loads := r.loads(); len(loads) == 1 && len(tables) > 1 {
		return r.writeOne(w, loads[0], tables)
	}
	for _, t := range tables {
		fmt.Fprintf(w, "\n%s, %s\n", heading(t.metric, t.unit), t.statText(r.Baseline))
		if err := t.write(w); err != nil {
			return err
		}
	}
	return nil
}

// values returns the distinct values of a field of the cells, in order.
func (r *Report) values(of func(Cell) string) (all []string) {
	for _, c := range r.Cells {
		all = appendNew(all, of(c))
	}
	return all
}

func (r *Report) loads() []string   { return r.values(func(c Cell) string { return c.Load }) }
func (r *Report) configs() []string { return r.values(func(c Cell) string { return c.Config }) }

func (r *Report) writeOne(w io.Writer, load string, tables []*table) error {
	configs := r.configs()
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintf(tw, "\n%s\t\t%s\n", load, strings.Join(configs, "\t"))
	for _, t := range tables {
		row := []string{heading(t.metric, t.unit), t.stat}
		for _, config := range configs {
			row = append(row, t.text(load, config))
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

func heading(metric, unit string) string {
	return fmt.Sprintf("%s (%s)", strings.ReplaceAll(metric, "_", " "), unit)
}

// statText explains the columns.
func (t *table) statText(baseline string) string {
	text := t.stat + " ±spread"
	total := slices.Contains(totals, t.stat)
	if total {
		text = t.stat
	}
	hasRatio := func(c Cell) bool { return c.Ratio != nil }
	if slices.ContainsFunc(slices.Collect(maps.Values(t.cells)), hasRatio) {
		text += fmt.Sprintf(", ratio to %s", baseline)
		if !total {
			text += " (median and quartiles of the rounds)"
		}
	}
	return text
}

func (t *table) write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintf(tw, "load\t%s\n", strings.Join(t.configs, "\t"))
	for _, load := range t.loads {
		row := []string{load}
		for _, config := range t.configs {
			row = append(row, t.text(load, config))
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

func (t *table) text(load, config string) string {
	c, ok := t.get(load, config)
	if !ok {
		return "-"
	}
	text := number(c.Value)
	if strings.Contains(t.statText(""), "±") {
		text = c.text()
	}
	if c.Ratio != nil {
		text += " " + c.Ratio.text()
	}
	return text
}

// number formats three significant digits, and all digits of integers.
func number(v float64) string {
	switch a := math.Abs(v); {
	case v == math.Trunc(v) && a < 1e12:
		return fmt.Sprintf("%.0f", v)
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
