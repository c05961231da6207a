// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/kerb-edge/kerb/bench"
)

// Claim is a statement of the work about its results.
type Claim struct {
	Text, Where string
	// Evaluate reports whether the claim holds for the results, and why. Its verdict is ignored if a result that it reads
	// is missing. It is nil for a claim that is not measured, for the reason NotMeasured.
	Evaluate    func(*results) (holds bool, why string)
	NotMeasured string
}

// verdict is the result of a claim, with the reason.
type verdict struct{ outcome, why string }

const (
	holds       = "holds"
	holdsNot    = "does not hold"
	notMeasured = "not measured here"
)

// evaluate returns the verdict, which is notMeasured if the report lacks results.
func (c Claim) evaluate(r *Report) verdict {
	if c.Evaluate == nil {
		return verdict{notMeasured, c.NotMeasured}
	}
	if r.Mode == Quick {
		return verdict{notMeasured, "results of a smoke run mean nothing"}
	}
	f := &results{report: r}
	good, why := c.Evaluate(f)
	if len(f.unsound) > 0 {
		return verdict{notMeasured, "the run is invalid: " + strings.Join(f.unsound, "; ")}
	}
	if len(f.missing) > 0 {
		return verdict{notMeasured, "missing in this report: " + strings.Join(f.missing, ", ")}
	}
	outcome := holdsNot
	if good {
		outcome = holds
	}
	if f.busy {
		outcome += ", but other programs used the CPUs"
	}
	return verdict{outcome, why}
}

// results gives a claim access to the figures of a report, and records missing ones.
type results struct {
	report  *Report
	missing []string
	unsound []string // why tables that were read are invalid
	busy    bool     // there are warnings about a table that was read
}

func (f *results) part(table string) *Part {
	p := f.report.part(table)
	if p == nil {
		return nil
	}
	f.busy = f.busy || len(p.Report.Warnings()) > 0
	for _, why := range p.Report.Unsound {
		if why = table + ": " + why; !slices.Contains(f.unsound, why) {
			f.unsound = append(f.unsound, why)
		}
	}
	return p
}

// of returns a result of a table, or 0 if it is missing, in which case the verdict is notMeasured.
func (f *results) of(table, config, load, metric, stat string) float64 {
	if p := f.part(table); p != nil {
		if c, ok := p.Report.Match(config, load, metric, stat); ok && !math.IsNaN(c.Value) && !math.IsInf(c.Value, 0) {
			return c.Value
		}
	}
	f.miss(fmt.Sprintf("%s %s of %s in %s", metric, stat, config, table))
	return 0
}

// positive returns a result that cannot be 0, such as a time: 0 comes from a failed run. Ratios use these.
func (f *results) positive(table, config, load, metric, stat string) float64 {
	v := f.of(table, config, load, metric, stat)
	if v <= 0 {
		f.miss(fmt.Sprintf("%s %s of %s in %s", metric, stat, config, table))
	}
	return v
}

// line returns the regression over loads of a metric that cannot be 0.
func (f *results) line(table, config, metric, stat string) (l bench.Line) {
	if p := f.part(table); p != nil {
		good := !slices.ContainsFunc(p.Report.Cells, func(c bench.Cell) bool {
			return c.Config == config && c.Metric == metric && c.Stat == stat && !isPositive(c.Value)
		})
		if l, ok := p.Report.Regression(config, metric, stat); ok && good {
			return l
		}
	}
	f.miss(fmt.Sprintf("%s of %s in %s under two or more loads", metric, config, table))
	return l
}

// each returns the medians of a series by position, none of which can be 0.
func (f *results) each(table, config, load, metric string) []float64 {
	if p := f.part(table); p != nil {
		for _, s := range p.Report.Series {
			if s.Config != config || s.Load != load || s.Metric != metric {
				continue
			}
			bad := func(v float64) bool { return !isPositive(v) }
			if all := s.Each(); len(all) > 0 && !slices.ContainsFunc(all, bad) {
				return all
			}
		}
	}
	f.miss(fmt.Sprintf("individual values of %s of %s in %s", metric, config, table))
	return []float64{0}
}

func isPositive(v float64) bool { return v > 0 && !math.IsInf(v, 1) }

// rounding is the relative error of a ratio that equals a published one, since both are computed by division.
const rounding = 1e-9

func atMost(v, limit float64) bool { return v <= limit*(1+rounding) }

func atLeast(v, limit float64) bool { return v >= limit*(1-rounding) }

// publishedRatio returns the ratio of two configs in the row of a label.
func (t *Table) publishedRatio(label, a, b string) float64 {
	i := slices.IndexFunc(t.Rows, func(r Row) bool { return r.Label == label })
	if t.Rows[i].Ratios != nil {
		return t.Rows[i].Ratios[a] / t.Rows[i].Ratios[b]
	}
	return t.Rows[i].Published[a] / t.Rows[i].Published[b]
}

func (f *results) miss(what string) {
	if !slices.Contains(f.missing, what) {
		f.missing = append(f.missing, what)
	}
}
