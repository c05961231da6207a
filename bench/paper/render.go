// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kerb-edge/kerb/bench"
)

// write prints a report as Markdown, for terminals and for docs/reproduction.md. It links to plots in a directory, if
// figures is not empty.
func (r *Report) write(out io.Writer, w *Work, figures string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, with %s.\n", w.Title, r.Mode.text())
	for i := range w.Tables {
		t := &w.Tables[i]
		if p := r.part(t.Name); p != nil {
			writeTable(&b, t, p)
			writeFigures(&b, w, t.plottedFigure(p), figures)
		} else {
			fmt.Fprintf(&b, "\n**%s.** Not in this report.\n", t.Title)
		}
	}
	writeFigures(&b, w, w.plottedFigure(r), figures)
	if len(w.Claims) > 0 {
		fmt.Fprint(&b, "\n**Claims of the work.**\n\n")
	}
	for _, c := range w.Claims {
		v := c.evaluate(r)
		fmt.Fprintf(&b, "- %s (%s): **%s**; %s.\n", c.Text, c.Where, v.outcome, v.why)
	}
	r.writeNotes(&b)
	_, err := io.WriteString(out, b.String())
	return err
}

func writeTable(b *strings.Builder, t *Table, p *Part) {
	fmt.Fprintf(b, "\n**%s.** %s.", t.Title, t.Shows)
	if t.Differs != "" {
		fmt.Fprintf(b, " Differences from the work: %s.", t.Differs)
	}
	fmt.Fprintf(b, "\n\n%s. %s.\n\n", p.Report.Where(), t.extent(p))
	rows := [][]string{{"", "published", "ours", "ratio published", "ratio ours"}}
	for _, row := range slices.Concat(t.Rows, t.costRows(p)) {
		for _, c := range t.configs(row) {
			if line := row.line(c, t.configs(row)[0], p.Report); slices.ContainsFunc(line[1:3], isPresent) {
				rows = append(rows, line)
			}
		}
	}
	writeAligned(b, rows)
	for _, why := range p.Report.Unsound {
		fmt.Fprintf(b, "\nInvalid: %s.\n", why)
	}
	for _, warning := range p.Report.Warnings() {
		fmt.Fprintf(b, "\nWarning: %s.\n", warning)
	}
}

// costRows returns rows with the resource use of the configs under the last load, for metrics without a row of the
// work.
func (t *Table) costRows(p *Part) (rows []Row) {
	loads := t.Loads[p.Mode]
	if len(loads) == 0 {
		return nil
	}
	for _, c := range bench.Costs {
		if !slices.ContainsFunc(t.Rows, func(r Row) bool { return r.Metric == c.Metric }) {
			rows = append(rows, Row{Label: c.Label, Load: loads[len(loads)-1], Metric: c.Metric, Stat: "p50", Unit: c.Unit})
		}
	}
	return rows
}

// extent describes the number of measured repetitions, and the published one if it differs.
func (t *Table) extent(p *Part) string {
	rounds := 0
	for _, c := range p.Report.Cells {
		rounds = max(rounds, len(c.Rounds))
	}
	text := func(rounds int, counts string) string {
		if rounds == 1 {
			return strings.TrimSuffix("1 round of "+counts, " of ")
		}
		return strings.TrimSuffix(fmt.Sprintf("%d rounds of %s", rounds, counts), " of ")
	}
	ours, all := text(rounds, t.Counts[p.Mode]), text(t.Rounds[Published], t.Counts[Published])
	if ours == all {
		return ours
	}
	return ours + "; without --short or --quick: " + all
}

// writeNotes prints the notes of all parts without duplicates.
func (r *Report) writeNotes(b *strings.Builder) {
	var notes []string
	for _, p := range r.Parts {
		for _, note := range p.Report.Notes {
			if !slices.Contains(notes, note) {
				notes = append(notes, note)
			}
		}
	}
	if len(notes) > 0 {
		fmt.Fprint(b, "\n**Notes on the measurements.**\n\n")
	}
	for _, note := range notes {
		fmt.Fprintf(b, "- %s.\n", strings.TrimSuffix(note, "."))
	}
}

// isPresent reports whether a figure is published or measured.
func isPresent(cell string) bool { return cell != missing }

const missing = "-"

// line returns a row's line for one config, with ratios to the base.
func (row Row) line(c, base Config, r *bench.Report) []string {
	name := c.Name
	if c.Published != "" && c.Published != c.Name {
		name += " (" + c.Published + ")"
	}
	line := []string{fmt.Sprintf("%s, %s: %s", row.Label, row.Unit, name), missing, missing, missing, missing}
	if v, ok := row.Published[c.Name]; ok {
		line[1] = number(v)
		if of, ok := row.Published[base.Name]; ok && of != 0 {
			line[3] = fmt.Sprintf("%.3f", v/of)
		}
	}
	if ratio, ok := row.Ratios[c.Name]; ok {
		line[3] = fmt.Sprintf("%.3f", ratio)
	}
	if v, ok := row.ours(c, r); ok {
		line[2] = number(v)
		if cell, _ := r.Match(c.Name, row.Load, row.Metric, row.Stat); row.Over != "" && len(cell.Rounds) == 1 {
			line[2] += " (one round)"
		}
		if of, ok := row.ours(base, r); ok && of != 0 {
			line[4] = fmt.Sprintf("%.3f", v/of)
		}
	}
	return line
}

func (row Row) ours(c Config, r *bench.Report) (float64, bool) {
	cell, ok := r.Match(c.Name, row.Load, row.Metric, row.Stat)
	switch row.Over {
	case "mean":
		cell.Value = bench.Mean(cell.Rounds)
	case "stddev":
		cell.Value = bench.Stddev(cell.Rounds)
		ok = ok && len(cell.Rounds) > 1
	}
	none := cell.Value == 0 && row.Metric == bench.MemoryMetric // programs whose memory is not counted
	if none || math.IsNaN(cell.Value) || math.IsInf(cell.Value, 0) {
		return 0, false
	}
	by := row.By
	if by == 0 {
		by = 1
	}
	return cell.Value * by, ok
}

// number formats four digits.
func number(v float64) string { return fmt.Sprintf("%.4g", v) }

func writeAligned(b *strings.Builder, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	for n, row := range rows {
		for i, cell := range row {
			fmt.Fprintf(b, "| %-*s ", widths[i], cell)
		}
		b.WriteString("|\n")
		if n == 0 {
			for _, width := range widths {
				b.WriteString("|" + strings.Repeat("-", width+2))
			}
			b.WriteString("|\n")
		}
	}
}

// hasFigure reports whether a report has enough data for a figure, depending on its mode and completeness.
func hasFigure(r *bench.Report, f bench.Figure) bool {
	switch f.Kind {
	case "regression":
		return true
	case "rates", bars:
		return slices.ContainsFunc(r.Cells, func(c bench.Cell) bool { return c.Metric == f.Metric && c.Value > 0 })
	case "histogram":
		return slices.ContainsFunc(r.Histograms, func(h bench.Histogram) bool {
			return h.Metric == f.Metric && (f.Load == "" || f.Load == h.Load) && slices.ContainsFunc(h.Bins,
				func(b bench.Bin) bool { return b.UpTo > 0 && b.Count > 0 })
		})
	}
	return r.HasSeries(f)
}

func writeFigures(b *strings.Builder, w *Work, figures []plottedFigure, dir string) {
	if dir == "" {
		return
	}
	for _, f := range figures {
		path := filepath.ToSlash(filepath.Join(dir, figureName(w, f.Figure)))
		fmt.Fprintf(b, "\n<picture>\n  <source media=\"(prefers-color-scheme: dark)\" srcset=\"%s-dark.svg\">\n"+
			"  <img alt=%q src=\"%s-light.svg\">\n</picture>\n", path, f.Title, path)
	}
}

func figureName(w *Work, f bench.Figure) string { return w.Name + "-" + f.Name }

// draw writes the figures of all parts.
func (r *Report) draw(w *Work, dir string) error {
	all := w.plottedFigure(r)
	for i := range w.Tables {
		if p := r.part(w.Tables[i].Name); p != nil {
			all = append(all, w.Tables[i].plottedFigure(p)...)
		}
	}
	for _, f := range all {
		if err := f.from.Draw(f.Figure, filepath.Join(dir, figureName(w, f.Figure))); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}
