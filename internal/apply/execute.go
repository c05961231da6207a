// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/plan"
)

// execution executes steps and records how to undo them. Removals come last and only after the change is committed:
// they cannot be undone, and nothing depends on them.
type execution struct {
	kernel  Kernel
	log     *slog.Logger
	skip    func(chain.Point) bool // see Policy
	busy    map[chain.Point]error  // the points that were skipped
	gone    []chain.Point          // the points that vanished
	undo    []func() error
	cleanup []plan.Step
}

// run executes the steps up to the removals. After an error the kernel is in its previous state, unless the error is a
// *RollbackError.
func (e *execution) run(steps []plan.Step) error {
	for len(steps) > 0 {
		s, batch := steps[0], sameAction(steps)
		steps = steps[len(batch):]
		if s.Action == plan.RemoveChain || s.Action == plan.RemoveMapSet {
			e.cleanup = append(e.cleanup, batch...)
			continue
		}
		var err error
		if s.Action == plan.CreateChain {
			err = e.createChains(batch)
		} else {
			err = e.executeAll(batch)
		}
		if err != nil {
			return e.rollback(fmt.Errorf("%s: %w", s.Action, err))
		}
	}
	return nil
}

// sameAction returns the leading steps that have the same action.
func sameAction(steps []plan.Step) []plan.Step {
	n := slices.IndexFunc(steps, func(s plan.Step) bool { return s.Action != steps[0].Action })
	if n < 0 {
		return steps
	}
	return steps[:n]
}

// createChains uses all CPUs: verifying a chain takes the largest part of a change, and chains are independent of each
// other.
func (e *execution) createChains(steps []plan.Step) error {
	var work errgroup.Group
	work.SetLimit(runtime.NumCPU())
	for _, s := range steps {
		e.log.Debug("step", "step", s.String())
		e.undo = append(e.undo, func() error { return e.kernel.RemoveChainSpec(s.Chain) })
		work.Go(func() error { return e.kernel.CreateChain(s.Chain) })
	}
	return work.Wait()
}

// executeAll executes the steps of one phase. It records and skips a vanished attach point, and a busy one if the
// caller permits that; any other error ends the phase.
func (e *execution) executeAll(steps []plan.Step) (err error) {
	if a := steps[0].Action; a == plan.Attach || a == plan.Detach {
		restore := e.kernel.Expedite()
		defer func() { err = errors.Join(err, restore()) }()
	}
	if onInterfaces(steps) {
		return e.executeTogether(steps)
	}
	for _, s := range steps {
		if err := e.note(s, e.execute(s)); err != nil {
			return err
		}
	}
	return nil
}

// concurrency is the number of attach points that change at once. Each change waits for the kernel's lock of network
// configuration in a queue with all other processes, of which there are a hundred while many pods start.
const concurrency = 8

// onInterfaces reports whether all steps are on hooks of interfaces, which are independent of each other.
func onInterfaces(steps []plan.Step) bool {
	return !slices.ContainsFunc(steps, func(s plan.Step) bool { return s.Point.Ifindex == 0 })
}

// executeTogether executes steps on different attach points concurrently. After an error it starts no further steps.
// Results are recorded in the order of the steps, so that the order of undoing them is always the same.
func (e *execution) executeTogether(steps []plan.Step) error {
	var work errgroup.Group
	var failed atomic.Bool
	work.SetLimit(concurrency)
	begun, results := make([]bool, len(steps)), make([]error, len(steps))
	for i, s := range steps {
		work.Go(func() error {
			if failed.Load() {
				return nil
			}
			begun[i] = true
			if results[i] = e.execute(s); e.isFatal(s, results[i]) {
				failed.Store(true)
			}
			return nil
		})
	}
	_ = work.Wait()
	var errs []error
	for i, s := range steps {
		if begun[i] {
			errs = append(errs, e.note(s, results[i]))
		}
	}
	return errors.Join(errs...)
}

// isFatal reports whether the result of a step ends its phase.
func (e *execution) isFatal(s plan.Step, err error) bool {
	return err != nil && !errors.Is(err, chain.ErrGone) && !(errors.Is(err, chain.ErrBusy) && e.skip(s.Point))
}

// note records the result of a step: how to undo it, or why it was skipped. It returns errors that end the phase.
func (e *execution) note(s plan.Step, err error) error {
	switch {
	case e.isFatal(s, err):
		return err
	case errors.Is(err, chain.ErrGone):
		e.log.Info("attach point vanished while it was being changed", "step", s.String())
		e.gone = append(e.gone, s.Point)
	case err != nil:
		e.busy[s.Point] = err
	default:
		e.undoLater(s)
	}
	return nil
}

// execute performs one step.
func (e *execution) execute(s plan.Step) error {
	e.log.Debug("step", "step", s.String())
	switch s.Action {
	case plan.CreateMapSet:
		// Registered before it is created, so that a partly created one is removed as well.
		e.undo = append(e.undo, func() error { return e.kernel.RemoveMapSet(s.Module, s.MapSet) })
		return e.kernel.CreateMapSet(s.Module, s.MapSet, s.Values, s.From)
	case plan.SetValues:
		return e.kernel.SetValues(s.Module, s.MapSet, s.Values)
	case plan.Attach, plan.Replace:
		return e.kernel.Attach(s.Point, s.Chain)
	case plan.Detach:
		return e.kernel.Detach(s.Point)
	}
	return nil
}

// undoLater records how to undo an executed step.
func (e *execution) undoLater(s plan.Step) {
	switch s.Action {
	case plan.SetValues:
		e.undo = append(e.undo, func() error { return e.kernel.SetValues(s.Module, s.MapSet, s.OldValues) })
	case plan.Attach:
		e.undo = append(e.undo, func() error { return e.kernel.Detach(s.Point) })
	case plan.Replace, plan.Detach:
		e.restoreOld(s)
	}
}

// restoreOld restores the chain that ran before a step, unless its pins no longer exist: then there is nothing to
// restore.
func (e *execution) restoreOld(s plan.Step) {
	if s.Old.ID != "" {
		e.undo = append(e.undo, func() error { return e.kernel.AttachPinned(s.Point, s.Old) })
	}
}

// RollbackError reports a change that could not be undone: the kernel is in neither the desired nor the previous state.
type RollbackError struct {
	Undo error // what could not be undone, and why
	Err  error // why it was to be undone
}

func (e *RollbackError) Error() string {
	return fmt.Sprintf("%v\nthe kernel is not as before, as undoing this failed, too: %v", e.Err, e.Undo)
}

// Unwrap returns both errors.
func (e *RollbackError) Unwrap() []error { return []error{e.Err, e.Undo} }

// rollback undoes all steps after an error, the last one first. It returns that error, or a *RollbackError.
func (e *execution) rollback(because error) error {
	var errs []error
	for _, undo := range slices.Backward(e.undo) {
		if err := undo(); err != nil && !errors.Is(err, chain.ErrGone) {
			errs = append(errs, fmt.Errorf("undo: %w", err))
		}
	}
	e.undo = nil
	if len(errs) == 0 {
		return because
	}
	if because == nil {
		because = errors.New("programs that were loaded for verification only are not removed")
	}
	return &RollbackError{Undo: errors.Join(errs...), Err: because}
}

// finish removes what is no longer used. It returns the number of removals that wait for connections. The next plan
// contains these again, and those that failed.
func (e *execution) finish() (draining int) {
	kept := map[chain.Member]bool{}
	for _, s := range e.cleanup {
		e.log.Debug("step", "step", s.String())
		if kept[chain.Member{Name: s.Module, ID: s.MapSet}] {
			draining++
			continue
		}
		err := e.remove(s)
		var wait *chain.DrainingError
		if errors.As(err, &wait) {
			e.log.Debug("step waits", "step", s.String(), "reason", err)
			draining++
			for _, m := range wait.Modules {
				kept[chain.Member{Name: m.Name, ID: m.ID}] = true
			}
		} else if err != nil {
			e.log.Warn("could not remove", "step", s.String(), "error", err)
		}
	}
	return draining
}

func (e *execution) remove(s plan.Step) error {
	if s.Action == plan.RemoveChain {
		return e.kernel.RemoveChain(s.Old)
	}
	return e.kernel.RemoveMapSet(s.Module, s.MapSet)
}
