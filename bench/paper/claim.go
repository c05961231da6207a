// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kerb-edge/kerb/bench"
)

// Claim is a sentence of the work about its results.
type Claim struct {
	Text, Where string
	// Judge says whether it holds for the figures found, and why. It is not asked when a figure is missing that it
	// looked for. Nil stands for a claim that nothing here measures, for the reason NotMeasured.
	Judge       func(*found) (holds bool, why string)
	NotMeasured string
}

// verdict is a claim's, with the reason.
type verdict struct{ outcome, why string }

const (
	holds       = "holds"
	holdsNot    = "does not hold"
	notMeasured = "not measured here"
)

// judge never calls a claim true or false of a report that lacks the figures.
func (c Claim) judge(r *Report) verdict {
	if c.Judge == nil {
		return verdict{notMeasured, c.NotMeasured}
	}
	if r.Mode == Quick {
		return verdict{notMeasured, "figures of a smoke run mean nothing"}
	}
	f := &found{report: r}
	good, why := c.Judge(f)
	if len(f.missing) > 0 {
		return verdict{notMeasured, "this report does not have " + strings.Join(f.missing, ", ")}
	}
	outcome := holdsNot
	if good {
		outcome = holds
	}
	if f.busy {
		outcome += ", on a machine that did other work"
	}
	return verdict{outcome, why}
}

// found is what a claim is judged by; it notes what was looked for in vain.
type found struct {
	report  *Report
	missing []string
	busy    bool // there are reasons to distrust a table that was looked at
}

func (f *found) part(table string) *Part {
	p := f.report.part(table)
	if p != nil && len(p.Report.Warnings()) > 0 {
		f.busy = true
	}
	return p
}

// of is a figure of a table; 0 if it is missing, which settles the verdict.
func (f *found) of(table, config, load, metric, stat string) float64 {
	if p := f.part(table); p != nil {
		if c, ok := p.Report.Match(config, load, metric, stat); ok {
			return c.Value
		}
	}
	f.miss(fmt.Sprintf("%s %s of %s in %s", metric, stat, config, table))
	return 0
}

// line is the regression of a metric over loads.
func (f *found) line(table, config, metric, stat string) (l bench.Line) {
	if p := f.part(table); p != nil {
		if l, ok := p.Report.Regression(config, metric, stat); ok {
			return l
		}
	}
	f.miss(fmt.Sprintf("%s of %s in %s at two loads or more", metric, config, table))
	return l
}

// each are the medians of a series, place by place.
func (f *found) each(table, config, load, metric string) []float64 {
	if p := f.part(table); p != nil {
		for _, s := range p.Report.Series {
			if s.Config == config && s.Load == load && s.Metric == metric {
				return s.Each()
			}
		}
	}
	f.miss(fmt.Sprintf("single values of %s of %s in %s", metric, config, table))
	return []float64{0}
}

func (f *found) miss(what string) {
	if !slices.Contains(f.missing, what) {
		f.missing = append(f.missing, what)
	}
}
