// SPDX-License-Identifier: Apache-2.0

// Package doctor examines a node before or while Kerb runs on it: what the
// kernel can do, what this process may do, where things are mounted and what
// else runs on the interfaces. Each finding that is not good comes with what a
// person can type against it. It changes nothing.
package doctor

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/kerb-edge/kerb/internal/paths"
)

// Status of a check.
type Status string

// Statuses.
const (
	OK   Status = "ok"
	Warn Status = "warn" // Kerb works; something is slower, missing or about to run out
	Fail Status = "fail" // Kerb does not work
)

// Check is one finding.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Found  string `json:"found"`            // what is there, and what it means
	Remedy string `json:"remedy,omitempty"` // what to type or do; never empty unless Status is ok
}

// Options say where Kerb keeps its things; the zero value means the defaults.
type Options struct {
	Paths paths.Paths
}

// Run examines the node. It takes some seconds, or stops early with what it
// has when ctx ends.
func Run(ctx context.Context, opts Options) []Check {
	if opts.Paths == (paths.Paths{}) {
		opts.Paths = paths.Default()
	}
	var all []Check
	for _, part := range []func(Options) []Check{
		memlock, // first: the limit would make the probes fail
		capabilities,
		kernel,
		features,
		mounts,
		confinement,
		unit,
		redirected,
		interfaces,
		limits,
	} {
		if ctx.Err() != nil {
			return all
		}
		all = append(all, part(opts)...)
	}
	return all
}

// Worst is the worst status of checks.
func Worst(checks []Check) Status {
	worst := OK
	for _, c := range checks {
		if c.Status == Fail || worst == OK {
			worst = c.Status
		}
	}
	return worst
}

// Print writes checks for people, each remedy below its finding. failures is what those with status Fail are.
func Print(w io.Writer, checks []Check, failures string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	count := map[Status]int{}
	for _, c := range checks {
		count[c.Status]++
		fmt.Fprintf(tw, "%s\t%s\t%s\n", c.Status, c.Name, c.Found)
		if c.Remedy != "" {
			fmt.Fprintf(tw, "\t\t-> %s\n", c.Remedy)
		}
	}
	fmt.Fprintf(tw, "\n%d ok, %d warnings, %d %s\n", count[OK], count[Warn], count[Fail], failures)
	return tw.Flush()
}

func ok(name, format string, args ...any) Check {
	return Check{Name: name, Status: OK, Found: fmt.Sprintf(format, args...)}
}

// bad makes a finding that is not ok.
func bad(status Status, name, remedy, format string, args ...any) Check {
	return Check{Name: name, Status: status, Found: fmt.Sprintf(format, args...), Remedy: remedy}
}
