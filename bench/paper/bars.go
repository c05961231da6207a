// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"cmp"
	"strings"

	"github.com/kerb-edge/kerb/bench"
)

const bars = "bars"

// ratioOf returns the metric of bars with a metric's ratios to the first config.
func ratioOf(metric string) string { return "ratio of " + metric }

// plottedFigure is a figure with enough data in a report.
type plottedFigure struct {
	bench.Figure
	from *bench.Report
}

func (t *Table) plottedFigure(p *Part) (all []plottedFigure) {
	for _, f := range t.Figures {
		from := p.Report
		if f.Kind == bars {
			from = t.bars(p.Report)
		}
		if hasFigure(from, f) {
			all = append(all, plottedFigure{f, from})
		}
	}
	return all
}

// plottedFigure returns the figures of several tables, with a group of bars per table.
func (w *Work) plottedFigure(r *Report) (all []plottedFigure) {
	from := &bench.Report{}
	for i := range w.Tables {
		t := &w.Tables[i]
		p := r.part(t.Name)
		if p == nil {
			continue
		}
		for _, row := range t.Rows {
			from.Cells = append(from.Cells, t.rowBars(row, t.Name, p.Report)...)
		}
	}
	for _, f := range w.Figures {
		if hasFigure(from, f) {
			all = append(all, plottedFigure{f, from})
		}
	}
	return all
}

// bars returns a group of bars per row of a table, or per group of rows: the values by metric and, if ratios are
// published, our ratios and the published ones.
func (t *Table) bars(r *bench.Report) *bench.Report {
	b := &bench.Report{}
	for _, row := range t.Rows {
		group := cmp.Or(row.Group, strings.ReplaceAll(row.Label, " ", "\n"))
		cells := t.rowBars(row, group, r)
		b.Cells = append(b.Cells, cells...)
		configs := t.configs(row)
		if row.Ratios == nil || len(cells) == 0 || cells[0].Config != configs[0].Name || cells[0].Value == 0 {
			continue
		}
		add := func(config string, v float64) {
			b.Cells = append(b.Cells, bench.Cell{Config: config, Load: group, Metric: ratioOf(row.Metric), Value: v,
				Unit: "ratio to " + cells[0].Config})
		}
		for _, c := range cells {
			add(c.Config, c.Value/cells[0].Value)
		}
		for _, c := range configs[1:] {
			if v := t.publishedRatio(row.Label, c.Name, configs[0].Name); v > 0 {
				add("published ("+c.Published+")", v)
			}
		}
	}
	return b
}

// rowBars returns a row's values in a group.
func (t *Table) rowBars(row Row, group string, r *bench.Report) (cells []bench.Cell) {
	for _, c := range t.configs(row) {
		if v, ok := row.ours(c, r); ok {
			cells = append(cells, bench.Cell{Config: c.Name, Load: group, Metric: row.Metric, Value: v, Unit: row.Unit})
		}
	}
	return cells
}
