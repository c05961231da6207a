// SPDX-License-Identifier: Apache-2.0

// Package bench is the framework of `kerb bench`. Experiments are packages that register themselves; the framework
// provides interleaved rounds, medians, the common JSON format, tables and plots. An experiment measures Kerb and its
// references in the same run. The exit status reports whether the run was valid, regardless of the results.
package bench

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Experiment is one measurement with a name on the command line.
type Experiment struct {
	// Name is the name of the subcommand, Short its help text.
	Name, Short string
	// Baseline is the config to which ratios in tables refer. Tables without it have no ratios.
	Baseline string
	// Loads are all loads in order, QuickLoads those of --quick. LongLoads are
	// measured only when --loads names them.
	Loads, QuickLoads, LongLoads []string
	// Configs are the possible values of --contenders. If empty, the flag does not exist.
	Configs []string
	// Flags adds flags of the experiment; it may be nil.
	Flags func(*cobra.Command)
	// Run measures the loads of the run. An error aborts the run without a report.
	Run func(ctx context.Context, run *Run) error
}

var experiments = map[string]Experiment{}

// Register adds an experiment. Call it from init. It panics on a duplicate name.
func Register(e Experiment) {
	if _, taken := experiments[e.Name]; taken {
		panic("bench: two experiments have the name " + e.Name)
	}
	experiments[e.Name] = e
}

// Find returns the experiment with a name.
func Find(name string) (Experiment, bool) {
	e, ok := experiments[name]
	return e, ok
}

func names() []string { return slices.Sorted(maps.Keys(experiments)) }

// pick resolves --loads: names, or patterns such as veth/*, whose matches keep the order of the experiment.
func (e Experiment) pick(quick bool, wanted []string) ([]string, error) {
	if len(wanted) == 0 {
		if quick {
			return e.QuickLoads, nil
		}
		return e.Loads, nil
	}
	return e.named("load", wanted, e.allLoads())
}

func (e Experiment) named(kind string, patterns, all []string) (picked []string, err error) {
	for _, pattern := range patterns {
		found := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !matches([]string{pattern}, name) })
		if len(found) == 0 {
			return nil, fmt.Errorf("%s has no %s %q; it has %s", e.Name, kind, pattern, strings.Join(all, ", "))
		}
		picked = append(picked, found...)
	}
	return picked, nil
}

func (e Experiment) allLoads() []string { return slices.Concat(e.Loads, e.LongLoads) }
