// SPDX-License-Identifier: Apache-2.0

package change

import (
	"errors"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/memtrim"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/sets"
)

// apply executes one request.
func (p *Pipeline) apply(r resource.Request) (result v1.ApplyResult, err error) {
	next := p.Now.Desired.Clone()
	result.DryRun = r.DryRun
	changes, err := r.Change(next, &result)
	if err != nil {
		return result, err
	}
	deletes := r.OnlyDeletes() // part of the end of each pod: no warnings, which need a look through the whole node
	isNew := func(o resource.Object) bool { return isNewModule(p.Now.Desired, o) }
	if !deletes && !slices.ContainsFunc(changes.Put, isNew) {
		memtrim.Busy()
	}
	modules := resource.Module.Of(r.Resources)
	doubts, rejected := next.CheckAll(r.Resources, changes)
	result.Warnings = doubts
	defer func() {
		if err == nil && !r.DryRun && !deletes {
			result.Warnings = append(append(result.Warnings, p.Now.ModuleWarnings(modules)...), p.Now.ReplyWarnings()...)
		}
	}()
	if !resource.InKernel(r.Resources) && !changes.InKernel() {
		return result, errors.Join(rejected, p.commitOnly(next, changes, r.DryRun || rejected != nil))
	}
	prepared, err := p.Preparer.All(current(next, modules), p.Now.Modules, rejected == nil && !r.DryRun)
	seen, unseen := p.Observer.Observe(p.Now.Observation(next)) // after the start of control planes, which may take long
	if unseen == nil {
		unseen = checkServices(seen)
	}
	if err = errors.Join(rejected, unseen, err); err != nil {
		deploy.ReleaseAll(prepared, p.Now.Modules)
		return result, err
	}
	keep := p.Store.RecoveryPending() && len(modules) == 0
	done, err := p.change(p.target(next, prepared, seen), changes, prepared, runOf(r), keep)
	result.Steps, result.Warnings, result.Costs = texts(done.steps), append(doubts, done.warnings...), done.costs
	return result, err
}

// isNewModule reports whether a change creates a module, with a package, maps and a control plane that last.
func isNewModule(present resource.State, o resource.Object) bool {
	_, exists := resource.Module.Get(present, o.Meta().Name)
	return resource.Module.IsKind(o) && !exists
}

// current returns the modules of a desired state, with its defaults.
func current(desired resource.State, modules []v1.Module) (out []v1.Module) {
	for _, m := range modules {
		m, _ = resource.Module.Get(desired, m.Metadata.Name)
		out = append(out, m)
	}
	return out
}

// run is how far a change is carried out.
type run int

const (
	execute     run = iota
	planOnly        // a dry run
	verifyOnly      // a dry run in which the kernel verifies what would be new
	measureOnly     // in addition, modules that would change are measured
)

func runOf(r resource.Request) run {
	switch {
	case !r.DryRun:
		return execute
	case r.Verify && r.Measure:
		return measureOnly
	case r.Verify:
		return verifyOnly
	}
	return planOnly
}

// outcome is the result of a change or dry run.
type outcome struct {
	steps    []plan.Step
	warnings []string
	costs    []v1.CostChange // of measureOnly
}

// change brings the node to the next desired state: first the kernel, then the store. If either fails, both are
// restored to their previous state.
func (p *Pipeline) change(t target, changes resource.Changes, prepared map[string]*deploy.Module, how run, keep bool) (
	done outcome, err error,
) {
	defer func() {
		if err != nil || how != execute {
			deploy.ReleaseAll(prepared, p.Now.Modules)
		}
	}()
	if err := sets.Check(p.Now.Sets(), t.sets()); err != nil {
		return done, err
	}
	points, err := t.Place()
	if err != nil {
		return done, orderError(err)
	}
	if err := t.checkLinkTypes(prepared); err != nil {
		return done, err
	}
	warnings, busy, k := t.Warnings(points), p.busy, p.kernelOf(t.modules)
	defer k.Close()
	if err := k.admit(p.Now.Modules, t, points, p.Budgets); err != nil {
		return done, forOperator(err)
	}
	if how == execute {
		defer func() { p.restoreSets(err) }()
		if err := p.Sets.Fill(p.Now.Desired, t.sets()); err != nil {
			return done, forOperator(err)
		}
	}
	r, err := p.converge(t, k, points, keep, apply.Policy{
		DryRun: how != execute,
		Verify: how >= verifyOnly,
		Skip:   func(p chain.Point) bool { return busy[p] != nil },
		Commit: func() error {
			if err := apply.AwaitUpgrades(p.Base, p.Live.Upgrades(p.Now.Modules, t.modules)); err != nil {
				return err
			}
			return p.commit(t.desired, changes, keep)
		},
	})
	done.steps = r.Steps
	if err != nil {
		return done, p.failed(t, k, err)
	}
	done.warnings = warnings
	if how == measureOnly {
		done.costs = k.compareCosts(p.Now.Modules, t)
	}
	if how == execute {
		p.Took.Observe(r.Took.Seconds())
		done.warnings = append(done.warnings, p.afterChange(t, changes)...)
	}
	return done, nil
}

// afterChange publishes the results of a change, and returns warnings.
func (p *Pipeline) afterChange(t target, changes resource.Changes) []string {
	p.Budgets.Poke()
	p.Watcher.Set(specs(t.desired))
	p.announce(changes)
	problem := p.Sets.Problem("")
	if problem == nil {
		return nil
	}
	p.RequestReconcile()
	return []string{problem.Error() + "; trying again"}
}

// failed returns the error of a change for its client. If the change could not be undone, it requests a reconciliation.
func (p *Pipeline) failed(t target, k kernel, err error) error {
	if isHalfUndone(err) {
		p.RequestReconcile()
	}
	return forOperator(findRejected(p.Now.Modules, t, k, err))
}

// commitError is an error of the store. It stays the reported error if undoing the change in the kernel fails as well.
type commitError struct{ error }

func (e *commitError) Unwrap() error { return e.error }

// commit stores the next desired state.
func (p *Pipeline) commit(next resource.State, c resource.Changes, keep bool) error {
	p.Log.Debug("step", "step", "store the desired state")
	if err := p.Store.CommitNext(next, c, keep); err != nil {
		return &commitError{err}
	}
	return nil
}

// commitOnly commits changes that need nothing in the kernel except elements of sets.
func (p *Pipeline) commitOnly(next resource.State, c resource.Changes, dryRun bool) (err error) {
	now := p.Now.Sets()
	then := sets.State{Desired: next, Modules: now.Modules, Services: now.Services}
	if err := sets.Check(now, then); err != nil || dryRun || c.Len() == 0 {
		return err
	}
	defer func() { p.restoreSets(err) }()
	if c.OfKind(resource.Set).Len() > 0 {
		if err := p.Sets.Fill(now.Desired, then); err != nil {
			return &apierrors.Unavailable{Reason: err.Error()}
		}
	}
	if err := p.Store.CommitChanges(c); err != nil {
		return err
	}
	p.Lock.Lock()
	p.Now.Desired = next
	p.Lock.Unlock()
	p.announce(c)
	return nil
}

// announce publishes what has been committed.
func (p *Pipeline) announce(c resource.Changes) {
	services, models := c.OfKind(resource.VirtualService), c.OfKind(resource.Model)
	p.Virtual.Apply(resource.VirtualService.Of(services.Put), removed(services))
	p.Models.Apply(resource.Model.Of(models.Put), removed(models))
	p.Sets.Retain(p.Now.Sets())
}

// removed returns the names of resources that changes remove.
func removed(c resource.Changes) (names []string) {
	for _, r := range c.Remove {
		names = append(names, r.Name)
	}
	return names
}
