// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/atomicfile"
)

// Cell is one result: the stat of a metric of one config under one load.
type Cell struct {
	Config string  `json:"config"`
	Load   string  `json:"load"`
	Metric string  `json:"metric"`
	Stat   string  `json:"stat"` // p50, p99, p99.9, stddev, sum, max, ...
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	// Rounds has the values of the rounds, from which Value is computed, in order of time.
	Rounds []float64 `json:"rounds,omitempty"`
	// Ratio is the ratio to the baseline, if there is one.
	Ratio *Ratio `json:"ratio,omitempty"`
}

// Report is the common JSON format of all experiments.
type Report struct {
	Experiment string `json:"experiment"`
	Kernel     string `json:"kernel"` // uname -r
	CPUs       int    `json:"cpus"`
	// Machine is nil in reports from before 0.2.0.
	Machine  *Machine `json:"machine,omitempty"`
	Quick    bool     `json:"quick"`
	Baseline string   `json:"baseline,omitempty"`
	Cells    []Cell   `json:"cells"`
	// Histograms are the distributions of individual values, in experiments about tail latency.
	Histograms []Histogram `json:"histograms,omitempty"`
	// Series are individual values, if plots show them.
	Series []Series `json:"series,omitempty"`
	// Notes describe what was left out or measured differently, and why.
	Notes []string `json:"notes,omitempty"`
	// Unsound lists the reasons why the run is invalid.
	Unsound []string `json:"unsound,omitempty"`

	title, x string // of plots, instead of those from their names
}

func newReport(e Experiment, quick bool) *Report {
	return &Report{
		Experiment: e.Name, Kernel: KernelRelease(), CPUs: runtime.NumCPU(), Machine: readMachine(os.DirFS("/")),
		Quick: quick, Baseline: e.Baseline, Cells: []Cell{},
	}
}

// Where describes the machine on which the report was made.
func (r *Report) Where() string {
	text := fmt.Sprintf("%s on Linux %s, %d CPUs", r.Experiment, r.Kernel, r.CPUs)
	if r.Machine != nil {
		text += fmt.Sprintf(", %s, steal %.1f%%", r.Machine, r.Machine.Steal)
	}
	if r.Quick {
		text += "; a quick run"
	}
	return text
}

// KernelRelease returns the output of uname -r.
func KernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// Warnings returns the reasons why the results may be unreliable.
func (r *Report) Warnings() []string {
	if r.Machine == nil {
		return nil
	}
	return r.Machine.warnings(r.CPUs)
}

// stolenRounds counts the rounds with too much steal time, and all rounds with this figure. Reports of earlier versions
// have none.
func (r *Report) stolenRounds() (stolen, all int) {
	for _, c := range r.Cells {
		if c.Metric != stealMetric {
			continue
		}
		all += len(c.Rounds)
		for _, steal := range c.Rounds {
			if steal > maxSteal {
				stolen++
			}
		}
	}
	return stolen, all
}

// Match returns the first cell whose load matches a pattern, in which * matches anything but a slash.
func (r *Report) Match(config, load, metric, stat string) (Cell, bool) {
	return r.find(func(c Cell) bool {
		return c.Config == config && matches([]string{load}, c.Load) && c.Metric == metric && c.Stat == stat
	})
}

// Find returns the cell of a config, load, metric and stat.
func (r *Report) Find(config, load, metric, stat string) (Cell, bool) {
	return r.find(func(c Cell) bool {
		return c.Config == config && c.Load == load && c.Metric == metric && c.Stat == stat
	})
}

func (r *Report) find(wanted func(Cell) bool) (Cell, bool) {
	if i := slices.IndexFunc(r.Cells, wanted); i >= 0 {
		return r.Cells[i], true
	}
	return Cell{}, false
}

// ErrInvalid is wrapped by the error of a run that completed but is invalid.
var ErrInvalid = errors.New("the run is invalid")

// Err returns nil for a valid run.
func (r *Report) Err() error {
	if len(r.Unsound) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrInvalid, r.Unsound[0])
}

// compressed is the suffix of reports that are compressed with gzip.
const compressed = ".gz"

// WriteJSON replaces a file atomically, compressed if its name ends in .gz.
func WriteJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	data = append(data, '\n')
	if strings.HasSuffix(path, compressed) {
		var packed bytes.Buffer
		w, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // fails for unknown levels only
		if _, err := w.Write(data); err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		data = packed.Bytes()
	}
	return atomicfile.Write(path, data, 0o644)
}

func readReport(path string) (*Report, error) {
	report := &Report{}
	return report, ReadJSON(path, report)
}

// ReadJSON reads a file of WriteJSON.
func ReadJSON(path string, value any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var r io.Reader = bytes.NewReader(data)
	if strings.HasSuffix(path, compressed) {
		if r, err = gzip.NewReader(r); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := json.NewDecoder(r).Decode(value); err != nil {
		return fmt.Errorf("%s is not a benchmark report: %w", path, err)
	}
	return nil
}
