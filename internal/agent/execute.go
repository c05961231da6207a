// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/plan"
)

// execution runs steps and remembers how to undo them. Removals come last and only after commit: they cannot be undone
// and nothing depends on them.
type execution struct {
	dp      *dataplane.Dataplane
	log     *slog.Logger
	modules map[string]dataplane.Module
	spare   func(chain.Point) bool // points whose conflicts with others must not stop the rest
	busy    map[chain.Point]error  // and those that had one
	undo    []func() error
	cleanup []plan.Step
}

// run takes the steps up to the removals. With an error everything is as it was before.
func (e *execution) run(steps []plan.Step) error {
	for len(steps) > 0 {
		s, batch := steps[0], sameAction(steps)
		steps = steps[len(batch):]
		if s.Action == plan.RemoveChain || s.Action == plan.RemoveGeneration {
			e.cleanup = append(e.cleanup, batch...)
			continue
		}
		var err error
		if s.Action == plan.CreateChain {
			err = e.createChains(batch)
		} else {
			err = e.takeAll(batch)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", s.Action, err), e.rollback())
		}
	}
	return nil
}

// sameAction is the steps at the front that have one action.
func sameAction(steps []plan.Step) []plan.Step {
	n := slices.IndexFunc(steps, func(s plan.Step) bool { return s.Action != steps[0].Action })
	if n < 0 {
		return steps
	}
	return steps[:n]
}

// createChains uses all CPUs: verifying a chain is the longest part of a change, and chains do not depend on each other.
func (e *execution) createChains(steps []plan.Step) error {
	var work errgroup.Group
	work.SetLimit(runtime.NumCPU())
	for _, s := range steps {
		e.log.Debug("step", "step", s.String())
		e.undo = append(e.undo, func() error { return e.dp.RemoveChainSpec(s.Chain) })
		work.Go(func() error { return e.dp.CreateChain(s.Chain, e.modules) })
	}
	return work.Wait()
}

func (e *execution) takeAll(steps []plan.Step) (err error) {
	if a := steps[0].Action; a == plan.Attach || a == plan.Detach {
		restore := e.dp.Expedite(len(steps))
		defer func() { err = errors.Join(err, restore()) }()
	}
	for _, s := range steps {
		e.log.Debug("step", "step", s.String())
		err := e.take(s)
		if errors.Is(err, dataplane.ErrGone) {
			e.log.Info("attach point vanished while it was being changed", "step", s.String())
			continue
		}
		if errors.Is(err, dataplane.ErrBusy) && e.spare(s.Point) {
			e.busy[s.Point] = err
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *execution) take(s plan.Step) error {
	switch s.Action {
	case plan.CreateGeneration:
		e.undo = append(e.undo, func() error { return e.dp.RemoveGeneration(s.Module, s.Generation) })
		return e.dp.CreateGeneration(e.modules[s.Module], s.From)
	case plan.Attach:
		if err := e.dp.Attach(s.Point, s.Chain); err != nil {
			return err
		}
		e.undo = append(e.undo, func() error { return e.dp.Detach(s.Point) })
	case plan.Replace:
		if err := e.dp.Attach(s.Point, s.Chain); err != nil {
			return err
		}
		e.undo = append(e.undo, func() error {
			if s.Old.ID == "" { // its pins are gone: there is nothing to go back to
				return nil
			}
			return e.dp.AttachPinned(s.Point, s.Old)
		})
	case plan.Detach:
		if err := e.dp.Detach(s.Point); err != nil {
			return err
		}
		if s.Old.ID != "" {
			e.undo = append(e.undo, func() error { return e.dp.AttachPinned(s.Point, s.Old) })
		}
	}
	return nil
}

// without drops the points that the chains could not be put on.
func (e *execution) without(points map[chain.Point]placement) map[chain.Point]placement {
	maps.DeleteFunc(points, func(p chain.Point, _ placement) bool { return e.busy[p] != nil })
	return points
}

// rollback undoes what was done, the last first.
func (e *execution) rollback() error {
	var errs []error
	for i := len(e.undo) - 1; i >= 0; i-- {
		if err := e.undo[i](); err != nil && !errors.Is(err, dataplane.ErrGone) {
			errs = append(errs, fmt.Errorf("undo: %w", err))
		}
	}
	e.undo = nil
	return errors.Join(errs...)
}

// finish removes what nothing uses any more. What fails is found again by the next plan; how many steps have to wait for
// connections is returned.
func (e *execution) finish() (waits int) {
	kept := map[chain.Member]bool{}
	for _, s := range e.cleanup {
		e.log.Debug("step", "step", s.String())
		var err error
		if s.Action == plan.RemoveChain {
			err = e.dp.RemoveChain(s.Old)
		} else if kept[chain.Member{Name: s.Module, ID: s.Generation}] {
			waits++
			continue
		} else {
			err = e.dp.RemoveGeneration(s.Module, s.Generation)
		}
		if draining, ok := isDraining(err); ok {
			e.log.Debug("step waits", "step", s.String(), "reason", err)
			waits++
			for _, m := range draining.Modules {
				kept[chain.Member{Name: m.Name, ID: m.ID}] = true
			}
		} else if err != nil {
			e.log.Warn("could not remove", "step", s.String(), "error", err)
		}
	}
	return waits
}
