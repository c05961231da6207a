// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/version"
)

// request selects what to measure of a work.
type request struct {
	work     *Work
	mode     Mode
	tables   []string // all, if empty
	resume   resume
	progress io.Writer
	// As in bench.Run.
	serverCPUs      int
	peer, tokenFile string
	bystander       bool
	before          func(*bench.Run) // called for each table; tests reduce runs
}

// chosen returns the tables to measure, in the order of the work.
func (q request) chosen() (all []*Table, err error) {
	for _, name := range q.tables {
		if _, err := q.work.table(name); err != nil {
			return nil, err
		}
	}
	for i := range q.work.Tables {
		t := &q.work.Tables[i]
		named := len(q.tables) == 0 && len(t.Loads[q.mode]) > 0 || slices.Contains(q.tables, t.Name)
		if named {
			all = append(all, t)
		}
	}
	return all, nil
}

// run measures the tables that resume lacks for this program and kernel, and returns all tables.
func (q request) run(ctx context.Context) (*Report, error) {
	tables, err := q.chosen()
	if err != nil {
		return nil, err
	}
	if err := q.resume.open(q.work, q.mode); err != nil {
		return nil, err
	}
	r := &Report{Work: q.work.Name, Mode: q.mode}
	var left time.Duration
	for _, t := range tables {
		fmt.Fprintf(q.progress, "%s: about %v\n", t.Title, t.Takes[q.mode])
		left += t.Takes[q.mode]
	}
	fmt.Fprintf(q.progress, "all tables: about %v on two CPUs, with %s\n", left, q.mode.text())
	for i := range q.work.Tables {
		t := &q.work.Tables[i]
		p, ok, err := q.resume.finished(t.Name)
		if err != nil {
			return nil, err
		}
		if !ok && slices.Contains(tables, t) {
			if p, err = q.measure(ctx, t); err != nil {
				return nil, fmt.Errorf("%s: %w", t.Title, err)
			}
			if err := q.resume.keep(p); err != nil {
				return nil, err
			}
			ok = true
		}
		if ok {
			r.Parts = append(r.Parts, p)
		}
	}
	return r, nil
}

func (q request) measure(ctx context.Context, t *Table) (Part, error) {
	e, ok := bench.Find(t.Experiment)
	if !ok {
		return Part{}, fmt.Errorf("unknown experiment %q", t.Experiment)
	}
	fmt.Fprintf(q.progress, "\n%s\n", t.Title)
	run := bench.NewRun(e, q.mode == Quick, t.Rounds[q.mode], t.Loads[q.mode], q.progress)
	run.ServerCPUs, run.Peer, run.TokenFile, run.Bystander = q.serverCPUs, q.peer, q.tokenFile, q.bystander
	run.Scale, run.Configs, run.Expected = q.mode.scale(), t.configNames(), t.Takes[q.mode]
	if q.before != nil {
		q.before(run)
	}
	start := time.Now()
	if err := e.Measure(ctx, run); err != nil {
		return Part{}, err
	}
	if len(run.Report().Cells) == 0 {
		return Part{}, errors.New("nothing was measured")
	}
	return Part{Work: q.work.Name, Mode: q.mode, Table: t.Name, Version: version.Version(),
		Seconds: time.Since(start).Seconds(), Report: run.Report()}, nil
}
