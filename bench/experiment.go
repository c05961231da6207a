// SPDX-License-Identifier: Apache-2.0

// Package bench is the frame of `kerb bench`: experiments register themselves
// from directories of their own, and get interleaved rounds, medians, the
// common JSON, a table for people and plots from here. An experiment measures
// Kerb against its references in the same run; the exit status says whether
// the run was sound, never whether the figures please.
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
	// Name is the word after `kerb bench`, Short its help line.
	Name, Short string
	// Baseline is the config that ratios in the table are against. A table
	// without cells of it shows no ratios.
	Baseline string
	// Loads are all loads in order, QuickLoads those of --quick. LongLoads are
	// measured only when --loads names them.
	Loads, QuickLoads, LongLoads []string
	// Configs are those that --contenders picks from. Without them there is no such flag.
	Configs []string
	// Flags adds the experiment's own to those that all have. Nil is none.
	Flags func(*cobra.Command)
	// Run measures the loads of the run. An error means that the run is void.
	Run func(ctx context.Context, run *Run) error
}

var experiments = map[string]Experiment{}

// Register adds an experiment. It is called from init, and a name taken twice
// is a bug in the build.
func Register(e Experiment) {
	if _, taken := experiments[e.Name]; taken {
		panic("bench: two experiments have the name " + e.Name)
	}
	experiments[e.Name] = e
}

// Find returns the experiment of a name.
func Find(name string) (Experiment, bool) {
	e, ok := experiments[name]
	return e, ok
}

func names() []string { return slices.Sorted(maps.Keys(experiments)) }

// pick resolves --loads; a load is named in full, or by a pattern such as veth/*, which takes them in their own order.
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
