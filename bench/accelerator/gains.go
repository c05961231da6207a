// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"fmt"
	"math"

	"github.com/kerb-edge/kerb/bench"
)

// judgedMetrics are the metrics in which the accelerator must not be worse than plain TCP.
var judgedMetrics = []struct {
	metric, stat string
	more         bool
}{
	{"latency", "p50", false}, {"latency", "mean", false}, {"latency", "p99", false}, {"rate", "p50", true},
	{"throughput", "p50", true}, {"cpu_op", "p50", false}, {"cpu_byte", "p50", false}, {"cpu", "p50", false},
}

// maxLoss is the fraction by which a figure may be worse.
const maxLoss = 0.03

// gain compares a config with plain; above 1 the config is better.
type gain struct {
	load, metric, stat string
	value, noise       float64 // ratio of the medians, and the standard error of the ratios of rounds
}

func (g gain) String() string {
	return fmt.Sprintf("%s %s %s %.2f ±%.2f", g.load, g.metric, g.stat, g.value, g.noise)
}

func (g gain) worse() bool   { return g.value < 1-maxLoss }
func (g gain) certain() bool { return g.value+2*g.noise < 1-maxLoss }

// gains returns the gains of a config in all these metrics.
func gains(r *bench.Report, config string) []gain {
	var all []gain
	for _, cell := range r.Cells {
		for _, j := range judgedMetrics {
			plain, ok := r.Find("plain", cell.Load, cell.Metric, cell.Stat)
			if cell.Config == config && cell.Metric == j.metric && cell.Stat == j.stat && ok {
				all = append(all, gainOf(plain, cell, j.more))
			}
		}
	}
	return all
}

func gainOf(plain, cell bench.Cell, more bool) gain {
	better := func(plain, value float64) float64 {
		if more {
			return value / plain
		}
		return plain / value
	}
	var ratios []float64
	for i := range min(len(plain.Rounds), len(cell.Rounds)) {
		ratios = append(ratios, better(plain.Rounds[i], cell.Rounds[i]))
	}
	// The standard error of a median is that of the mean times sqrt(pi/2).
	noise := bench.Stddev(ratios) * math.Sqrt(math.Pi/2/float64(len(ratios)))
	return gain{cell.Load, cell.Metric, cell.Stat, better(plain.Value, cell.Value), noise}
}

// notes lists the figures that are worse than plain TCP's, and how many are worse when plain TCP is measured again.
func (e *experiment) notes() {
	r := e.run.Report()
	for _, config := range e.configs {
		all, worse, certain := gains(r, config), 0, 0
		if config == "plain" || config == "unix" || len(all) == 0 {
			continue
		}
		for _, g := range all {
			if g.worse() {
				worse++
				e.run.Note("%s is worse: %s", config, g)
			}
			if g.certain() {
				certain++
			}
		}
		e.run.Note("%s: %d of %d results are worse than plain TCP by more than %.0f%%, %d of them by more than twice their "+
			"noise", config, worse, len(all), maxLoss*100, certain)
	}
	e.addNotes(e)
}

func (e *experiment) noteCosts() {
	e.run.Note("cpu is the CPU time of the cgroup with client, server and proxies; the proxies are %s", e.proxy)
}
