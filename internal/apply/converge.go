// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"log/slog"
	"slices"
	"time"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/plan"
)

// Policy is the difference between a requested change and a reconciliation.
type Policy struct {
	// Skip reports whether to skip a point whose hook is held by another program. On all other points that is an error.
	Skip func(chain.Point) bool
	// DryRun ends after the plan.
	DryRun bool
	// Verify makes a dry run create new programs, so that the kernel verifies them, and remove them again. Nothing is
	// attached.
	Verify bool
	// Commit is called when all points run the desired state, before anything is removed. If it returns an error, the
	// change is undone.
	Commit func() error
}

// Result is what Converge did, or would do in a dry run.
type Result struct {
	Steps    []plan.Step
	Busy     map[chain.Point]error // points that were skipped, and why
	Gone     []chain.Point         // points that vanished in the meantime
	Draining int                   // removals that wait for connections: the caller converges again soon
	Took     time.Duration         // all steps
}

// changesPackets reports whether a step affects packets.
func changesPackets(s plan.Step) bool {
	return s.Action != plan.CreateMapSet && s.Action != plan.CreateChain
}

// Converge brings the kernel to the desired state. It creates everything new, switches the attach points, commits, and
// removes what was replaced. After an error the kernel is in its previous state, unless the error is a *RollbackError.
func Converge(k Kernel, want plan.Desired, p Policy, log *slog.Logger) (r Result, err error) {
	have, err := k.Observe()
	if err != nil {
		return r, err
	}
	r.Steps = plan.Steps(want, have)
	if p.DryRun && !p.Verify {
		return r, nil
	}
	begin := time.Now()
	e := &execution{kernel: k, log: log, skip: p.Skip, busy: map[chain.Point]error{}}
	if p.DryRun {
		if err := e.run(slices.DeleteFunc(slices.Clone(r.Steps), changesPackets)); err != nil {
			return r, err
		}
		return r, e.rollback(nil)
	}
	if err := e.run(r.Steps); err != nil {
		return r, err
	}
	if err := p.Commit(); err != nil {
		return r, e.rollback(err)
	}
	r.Busy, r.Gone, r.Draining = e.busy, e.gone, e.finish()
	r.Took = time.Since(begin)
	return r, nil
}
