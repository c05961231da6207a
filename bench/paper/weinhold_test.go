// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"fmt"
	"testing"

	"github.com/kerb-edge/kerb/bench"
)

// publishedWeinhold returns a report with the published figures.
func publishedWeinhold() *Report {
	times, loss, threads := &bench.Report{}, &bench.Report{}, &bench.Report{}
	for _, c := range []struct {
		config                         string
		p50, stddev, lowest, highest   float64
		lossfree, intercept, perClient float64
	}{
		{"user", 1886.8, 160.8, 1600, 2300, 139, 0, 15},
		{"mixed", 1078.4, 87.8, 900, 1280, 265, 250, 9},
		{"kernel", 1325.2, 81.8, 1100, 1550, 270, 125, 9.5},
	} {
		add := func(r *bench.Report, load, metric, stat string, v float64) {
			r.Cells = append(r.Cells, bench.Cell{Config: c.config, Load: load, Metric: metric, Stat: stat, Value: v})
		}
		for stat, v := range map[string]float64{"p50": c.p50, "stddev": c.stddev, "min": c.lowest, "max": c.highest} {
			add(times, "published/120", "thread_mean", stat, v)
		}
		times.Series = append(times.Series, bench.Series{Config: c.config, Load: "published/120", Metric: "thread_mean",
			Rounds: [][]float64{{c.lowest, c.p50, c.lowest * 1.4}}})
		add(loss, "until-loss/400", "lossfree_threads", "p50", c.lossfree)
		for n := 50; n <= 250; n += 100 {
			add(threads, fmt.Sprintf("threads/%d", n), "thread_mean", "p50", c.intercept+c.perClient*float64(n))
		}
	}
	return &Report{Work: "weinhold", Parts: []Part{{Table: "times", Report: times}, {Table: "loss", Report: loss},
		{Table: "threads", Report: threads}}}
}

// All claims hold for the published figures, and each fails separately for others.
func TestClaimsOfWeinhold(t *testing.T) {
	for _, c := range weinholdClaims {
		if v := c.evaluate(publishedWeinhold()); c.Evaluate != nil && v.outcome != holds {
			t.Errorf("%s: %+v", c.Text, v)
		}
	}
	busy := publishedWeinhold()
	busy.Parts[0].Report.Machine, busy.Parts[0].Report.CPUs = &bench.Machine{Load: 2}, 2
	if v := weinholdClaims[0].evaluate(busy); v.outcome != holds+", but other programs used the CPUs" {
		t.Errorf("on a busy machine: %+v", v)
	}
	for n, spoil := range []func(times, loss, threads *bench.Report){
		func(times, _, _ *bench.Report) { set(times, "kernel", "thread_mean", "p50", 1400) },
		func(times, _, _ *bench.Report) { set(times, "kernel", "thread_mean", "max", 1601) },
		func(times, _, _ *bench.Report) { set(times, "mixed", "thread_mean", "stddev", 161) },
		func(times, _, _ *bench.Report) { times.Series[1].Rounds[0][0] *= 2 },
		func(_, loss, _ *bench.Report) { set(loss, "kernel", "lossfree_threads", "p50", 269) },
		func(_, _, threads *bench.Report) {
			for i := range threads.Cells {
				threads.Cells[i].Value = float64(1 + i%3)
			}
		},
	} {
		r := publishedWeinhold()
		spoil(r.Parts[0].Report, r.Parts[1].Report, r.Parts[2].Report)
		for i, c := range weinholdClaims {
			if v := c.evaluate(r); c.Evaluate != nil && (v.outcome == holdsNot) != (i == n) {
				t.Errorf("with figure %d spoilt, %s: %+v", n, c.Text, v)
			}
		}
	}
}

func set(r *bench.Report, config, metric, stat string, v float64) {
	for i := range r.Cells {
		if c := &r.Cells[i]; c.Config == config && c.Metric == metric && c.Stat == stat {
			c.Value = v
		}
	}
}
