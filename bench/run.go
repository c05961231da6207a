// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// MinRounds is the minimum number of rounds of each trial.
const MinRounds = 5

// Sample is one result of one round. Rounds are merged by stat: "sum", "max" and "min" over all rounds, the median for
// other stats.
type Sample struct {
	Metric, Stat, Unit string
	Value              float64
}

// P50 returns a sample that is merged by the median over the rounds.
func P50(metric, unit string, value float64) Sample { return Sample{metric, "p50", unit, value} }

// Count returns a number of events, which is summed over the rounds.
func Count(metric string, n uint64) Sample { return Sample{metric, "sum", "count", float64(n)} }

// ErrLeftOut is wrapped by the error of a config that cannot be measured on this machine.
var ErrLeftOut = errors.New("cannot be measured here")

// Trial is one config under test. Measure is called once per round.
type Trial struct {
	Config  string
	Measure func(ctx context.Context) ([]Sample, error)
	// Load is the load of the recorded costs for a trial that returns no samples but records them itself under other
	// loads. If it is empty, costs are recorded with samples under the run's load, and not without samples.
	Load string
	// Open sets up the config before the first round of all configs. The returned closer, which may be nil, is closed
	// after the last round. Open may be nil. Errors for LeftOut skip the config.
	Open func() (io.Closer, error)
}

// Run is one execution of an experiment.
type Run struct {
	// Quick requests short measurements: the whole run takes at most 45 seconds.
	Quick bool
	// Rounds is the number of rounds of each trial, at least MinRounds.
	Rounds int
	// Scale is the fraction of the published number of repetitions, if `kerb bench paper` repeats a published experiment;
	// otherwise it is 0, and the experiment uses its own lengths.
	Scale float64
	// Bystander requests an additional round of each trial next to a compute job.
	Bystander bool
	// Configs are the configs to measure; all if empty.
	Configs []string
	// ServerCPUs is the number of CPUs for servers, in experiments with separate CPUs; 0 means half of all.
	ServerCPUs int
	// Peer is the address of `kerb bench peer`, and TokenFile has its token, for experiments whose client can run on
	// another machine. Both may be empty.
	Peer, TokenFile string
	// Expected is the expected duration of the run, for its progress; 0 if unknown.
	Expected time.Duration

	done     float64   // fraction of the rounds
	began    time.Time // the first round
	finished int       // loads
	loads    []string
	report   *Report
	progress io.Writer
	start    time.Time
}

// NewRun returns a run of some of an experiment's loads. Experiments receive it from the command; only tests call it
// directly.
func NewRun(e Experiment, quick bool, rounds int, loads []string, progress io.Writer) *Run {
	return &Run{Quick: quick, Rounds: rounds, loads: loads, report: newReport(e, quick), progress: progress,
		start: time.Now()}
}

// Report returns the results so far.
func (r *Run) Report() *Report { return r.report }

// Loads returns the loads to measure, in order.
func (r *Run) Loads() []string { return r.loads }

// Interleave measures the trials in the order A B C, C B A, A B C ..., and records their samples. A temporary slowdown
// of the machine thus affects all configs, and deferred kernel work of one config does not always affect the same other
// one.
func (r *Run) Interleave(ctx context.Context, load string, trials ...Trial) (err error) {
	defer func() { r.finished++ }()
	var opened Closers
	defer func() { err = errors.Join(err, opened.Close()) }()
	if trials, err = r.open(trials, &opened); err != nil {
		return err
	}
	for round := range r.Rounds {
		for i := range trials {
			t := trials[i]
			if round%2 == 1 {
				t = trials[len(trials)-1-i]
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if r.began.IsZero() {
				r.began = time.Now()
			}
			part := float64(round*len(trials)+i) / float64(r.Rounds*len(trials))
			r.done = (float64(r.finished) + part) / float64(max(1, len(r.loads)))
			r.Progress("%s round %d/%d %s", load, round+1, r.Rounds, t.Config)
			samples, err := t.measureWithCosts(ctx)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", t.Config, load, err)
			}
			r.Record(t.Config, cmp.Or(t.Load, load), samples...)
		}
	}
	if r.Bystander {
		return r.measureBystanders(ctx, load, trials)
	}
	return nil
}

// open sets up the selected trials, and returns those that can be measured.
func (r *Run) open(trials []Trial, opened *Closers) (ready []Trial, err error) {
	for _, t := range trials {
		if !r.Wants(t.Config) {
			continue
		}
		var closer io.Closer
		if t.Open != nil {
			closer, err = t.Open()
		}
		if r.LeftOut(t.Config, err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.Config, err)
		}
		if closer != nil {
			opened.Later(closer.Close)
		}
		ready = append(ready, t)
	}
	return ready, nil
}

// LeftOut reports whether an error means that a config, or a load, cannot be measured on this machine, for example
// because a program is not installed. It then adds a note.
func (r *Run) LeftOut(what string, err error) bool {
	left := errors.Is(err, ErrLeftOut) || errors.Is(err, exec.ErrNotFound)
	if left {
		r.Note("%s is left out: %v", what, err)
	}
	return left
}

// Wants reports whether a config is selected.
func (r *Run) Wants(config string) bool {
	return len(r.Configs) == 0 || slices.Contains(r.Configs, config)
}

// Record adds samples as another round of their cells.
func (r *Run) Record(config, load string, samples ...Sample) {
	for _, s := range samples {
		c := r.cell(config, load, s)
		c.Rounds = append(c.Rounds, s.Value)
		c.Value = merge(s.Stat, c.Rounds)
	}
}

func (r *Run) cell(config, load string, s Sample) *Cell {
	i := slices.IndexFunc(r.report.Cells, func(c Cell) bool {
		return c.Config == config && c.Load == load && c.Metric == s.Metric && c.Stat == s.Stat
	})
	if i >= 0 {
		return &r.report.Cells[i]
	}
	r.report.Cells = append(r.report.Cells, Cell{
		Config: config, Load: load, Metric: s.Metric, Stat: s.Stat, Unit: s.Unit})
	return &r.report.Cells[len(r.report.Cells)-1]
}

// Note adds a note to the report, once.
func (r *Run) Note(format string, args ...any) {
	note := fmt.Sprintf(format, args...)
	if !slices.Contains(r.report.Notes, note) {
		r.report.Notes = append(r.report.Notes, note)
	}
}

// Invalidate marks the run as invalid. The run continues, so that the report shows the other figures.
func (r *Run) Invalidate(format string, args ...any) {
	r.report.Unsound = append(r.report.Unsound, fmt.Sprintf(format, args...))
}

// Progress prints the current step.
func (r *Run) Progress(format string, args ...any) {
	elapsed := time.Since(r.start)
	text := fmt.Sprintf(format, args...)
	if left := r.left(elapsed, time.Since(r.began)); r.Expected > 0 && left > 0 {
		text = fmt.Sprintf("%s %s, about %v left", bar(elapsed, left), text, left.Round(time.Second))
	}
	fmt.Fprintf(r.progress, "%6.1fs  %s\n", elapsed.Seconds(), text)
}

// bar shows how much of the time has passed.
func bar(elapsed, left time.Duration) string {
	const width = 20
	n := int(width * elapsed / (elapsed + left))
	return "[" + strings.Repeat("#", n) + strings.Repeat(".", width-n) + "]"
}

// left estimates the remaining time from the expected duration, and later from the rounds so far. elapsed is the time
// since the start of the run, measured that since the first round.
func (r *Run) left(elapsed, measured time.Duration) time.Duration {
	if r.Expected == 0 || r.done < 0.05 {
		return r.Expected - elapsed
	}
	return time.Duration(float64(measured) * (1 - r.done) / r.done)
}
