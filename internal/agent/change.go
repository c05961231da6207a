// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"maps"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/memtrim"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/sets"
	"github.com/kerb-edge/kerb/internal/trace"
)

// apply executes one request.
func (a *Agent) apply(r resource.Request) (result v1.ApplyResult, err error) {
	next := a.now.Desired.Clone()
	result.DryRun = r.DryRun
	changes, err := r.Change(next, &result)
	if err != nil {
		return result, err
	}
	if !slices.ContainsFunc(changes.Put, func(o resource.Object) bool { return isNewModule(a.now.Desired, o) }) {
		memtrim.Busy()
	}
	modules := resource.Module.Of(r.Resources)
	doubts, rejected := next.CheckAll(r.Resources, changes)
	result.Warnings = doubts
	defer func() {
		if err == nil && !r.DryRun {
			result.Warnings = append(append(result.Warnings, a.now.ModuleWarnings(modules)...), a.now.ReplyWarnings()...)
		}
	}()
	if !resource.InKernel(r.Resources) && !changes.InKernel() {
		return result, errors.Join(rejected, a.commitOnly(next, changes, r.DryRun || rejected != nil))
	}
	prepared, err := a.preparer.All(current(next, modules), a.now.Modules, rejected == nil && !r.DryRun)
	seen, unseen := a.observer.Observe(a.now.Observation(next)) // after control planes have started, which may take long
	if unseen == nil {
		unseen = checkServices(seen)
	}
	if err = errors.Join(rejected, unseen, err); err != nil {
		deploy.ReleaseAll(prepared, a.now.Modules)
		return result, err
	}
	keep := a.store.RecoveryPending() && len(modules) == 0
	done, err := a.change(a.target(next, prepared, seen), changes, prepared, runOf(r), keep)
	result.Steps, result.Warnings, result.Costs = texts(done.steps), append(doubts, done.warnings...), done.costs
	return result, err
}

// isNewModule reports whether what is made for a resource stays: a package, maps, a control plane.
func isNewModule(present resource.State, o resource.Object) bool {
	_, exists := resource.Module.Get(present, o.Meta().Name)
	return resource.Module.IsKind(o) && !exists
}

// current returns modules as they are in a desired state, which has their defaults.
func current(desired resource.State, modules []v1.Module) (out []v1.Module) {
	for _, m := range modules {
		m, _ = resource.Module.Get(desired, m.Metadata.Name)
		out = append(out, m)
	}
	return out
}

// run is how far a change goes.
type run int

const (
	execute     run = iota
	planOnly        // a dry run
	verifyOnly      // a dry run in which the kernel verifies what would be new
	measureOnly     // and what would change is measured
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

// outcome is what a change did, or would do.
type outcome struct {
	steps    []plan.Step
	warnings []string
	costs    []v1.CostChange // of measureOnly
}

// change takes the node from the present to the next desired state: kernel first, then the store. If either fails, both
// are as before.
func (a *Agent) change(t target, changes resource.Changes, prepared map[string]*deploy.Module, how run, keep bool) (
	done outcome, err error,
) {
	defer func() {
		if err != nil || how != execute {
			deploy.ReleaseAll(prepared, a.now.Modules)
		}
	}()
	if err := sets.Check(a.now.Sets(), t.sets()); err != nil {
		return done, err
	}
	points, err := t.Place()
	if err != nil {
		return done, orderError(err)
	}
	if err := t.checkLinkTypes(prepared); err != nil {
		return done, err
	}
	warnings, busy, k := t.Warnings(points), a.busy, a.kernelOf(t.modules)
	defer k.Close()
	if err := k.admit(a.now.Modules, t, points, a.budgets); err != nil {
		return done, forOperator(err)
	}
	if how == execute {
		defer func() { a.restoreSets(err) }()
		if err := a.sets.Fill(a.now.Desired, t.sets()); err != nil {
			return done, forOperator(err)
		}
	}
	r, err := a.converge(t, k, points, keep, apply.Policy{
		DryRun: how != execute,
		Verify: how >= verifyOnly,
		Skip:   func(p chain.Point) bool { return busy[p] != nil },
		Commit: func() error {
			if err := apply.AwaitUpgrades(a.base, a.live.Upgrades(a.now.Modules, t.modules)); err != nil {
				return err
			}
			a.log.Debug("step", "step", "store the desired state")
			if err := a.store.CommitNext(t.desired, changes, keep); err != nil {
				return &commitError{err}
			}
			return nil
		},
	})
	done.steps = r.Steps
	if err != nil {
		return done, a.failed(t, k, err)
	}
	done.warnings = warnings
	if how == measureOnly {
		done.costs = k.compareCosts(a.now.Modules, t)
	}
	if how == execute {
		a.Took.Observe(r.Took.Seconds())
		done.warnings = append(done.warnings, a.afterChange(t, changes)...)
	}
	return done, nil
}

// afterChange passes on what a change has made, and returns warnings.
func (a *Agent) afterChange(t target, changes resource.Changes) []string {
	a.budgets.Poke()
	a.watcher.Set(specs(t.desired))
	a.announce(changes)
	problem := a.sets.Problem("")
	if problem == nil {
		return nil
	}
	a.requestReconcile()
	return []string{problem.Error() + "; trying again"}
}

// failed returns the error of a change for its client. What could not be undone is reconciled soon.
func (a *Agent) failed(t target, k kernel, err error) error {
	if isHalfUndone(err) {
		a.requestReconcile()
	}
	return forOperator(findRejected(a.now.Modules, t, k, err))
}

// commitError is an error of the store: whatever the kernel says when the change is undone, it is not what is wrong
// with the request.
type commitError struct{ error }

func (e *commitError) Unwrap() error { return e.error }

// drainPeriod is how soon removals are tried again that wait for connections.
const drainPeriod = 200 * time.Millisecond

// converge is the path of every change and of every reconciliation: it makes the kernel run what t describes, then
// makes t the agent's current state. After an error both are as before, unless it is an *apply.RollbackError.
func (a *Agent) converge(t target, k kernel, points plan.Placements, keep bool, p apply.Policy) (apply.Result, error) {
	a.dp.PermitExpedite(!deliverInTime(a.now.Modules, t.modules))
	defer func() { a.dp.PermitExpedite(!deliverInTime(a.now.Modules)) }()
	r, err := apply.Converge(k, t.Desired(points, keep), p, a.log)
	if err != nil {
		if len(r.Steps) > 0 && !p.DryRun {
			a.Failures.Add(1)
			reason, message := rolledBack(err)
			a.EventLog.OfAgent(v1.EventChange, reason, message)
		}
		return r, err
	}
	if p.DryRun {
		return r, nil
	}
	if r.Draining > 0 {
		time.AfterFunc(drainPeriod, a.requestReconcile)
	}
	if slices.ContainsFunc(r.Steps, changesChains) && len(r.Steps) > r.Draining {
		_, _ = a.observeKernel() // for traces; and for views, should the next change or reconciliation take its time
	}
	a.mu.Lock()
	a.busy = r.Busy
	a.mu.Unlock()
	a.install(t, without(points, r.Busy))
	a.sets.Retain(a.now.Sets())
	poke(a.converged)
	poke(a.selected)
	return r, nil
}

// deliverInTime reports whether a module delivers packets to programs in real time: expedited grace periods would
// interrupt their CPUs.
func deliverInTime(all ...map[string]*deploy.Module) bool {
	for _, modules := range all {
		for _, d := range modules {
			if d != nil && d.Pkg != nil && d.Pkg.HasCapability(pkgs.CapabilityClients) {
				return true
			}
		}
	}
	return false
}

// changesChains reports whether a step can do away with what a trace follows.
func changesChains(s plan.Step) bool { return s.Action != plan.SetValues }

// without deletes the points that another program keeps from their chain.
func without(points plan.Placements, busy map[chain.Point]error) plan.Placements {
	maps.DeleteFunc(points, func(p chain.Point, _ plan.Placement) bool { return busy[p] != nil })
	return points
}

// kernel is the data plane with the modules of one change. Traced chains count as the plain ones that they stand for.
type kernel struct {
	*dataplane.Bound
	observe func() (chain.State, error)
}

var _ apply.Kernel = kernel{}

func (k kernel) Observe() (chain.State, error) { return k.observe() }

// kernelOf returns the data plane for these modules.
func (a *Agent) kernelOf(all map[string]*deploy.Module) kernel {
	return kernel{a.dp.Bind(a.live.Open(all)), a.observeKernel}
}

// commitOnly commits changes that need nothing in the kernel but elements of sets.
func (a *Agent) commitOnly(next resource.State, c resource.Changes, dryRun bool) (err error) {
	now := a.now.Sets()
	then := sets.State{Desired: next, Modules: now.Modules, Services: now.Services}
	if err := sets.Check(now, then); err != nil || dryRun || c.Len() == 0 {
		return err
	}
	defer func() { a.restoreSets(err) }()
	if c.OfKind(resource.Set).Len() > 0 {
		if err := a.sets.Fill(now.Desired, then); err != nil {
			return &apierrors.Unavailable{Reason: err.Error()}
		}
	}
	if err := a.store.CommitChanges(c); err != nil {
		return err
	}
	a.mu.Lock()
	a.now.Desired = next
	a.mu.Unlock()
	a.announce(c)
	return nil
}

// announce passes on what has been committed.
func (a *Agent) announce(c resource.Changes) {
	services, models := c.OfKind(resource.VirtualService), c.OfKind(resource.Model)
	a.virtual.Apply(resource.VirtualService.Of(services.Put), removed(services))
	a.models.Apply(resource.Model.Of(models.Put), removed(models))
	a.sets.Retain(a.now.Sets())
}

// removed returns the names of resources that changes remove.
func removed(c resource.Changes) (names []string) {
	for _, r := range c.Remove {
		names = append(names, r.Name)
	}
	return names
}

// reconcile makes the node what it should be, after services have changed or the agent has started. A module that the
// kernel rejects now is disabled by its failure policy, and a point that another program holds is skipped, instead of
// keeping all others from running.
func (a *Agent) reconcile() error {
	a.mu.Lock()
	a.now.Functions = a.functions.Load()
	a.mu.Unlock()
	seen, err := a.observer.Observe(a.now.Observation(a.now.Desired))
	if err == nil {
		err = a.reconcileTo(a.target(a.now.Desired, nil, seen))
	}
	var rejected *dataplane.RejectedError
	if errors.As(err, &rejected) && a.disable(rejected.Modules) {
		err = a.reconcileTo(a.target(a.now.Desired, nil, seen))
	}
	a.mu.Lock()
	a.now.Problem = err
	a.now.EnqueueAll()
	a.mu.Unlock()
	return err
}

// reconcileTo brings the kernel to t. Unlike a change that a client requests, it skips points that fail: the next
// attempt follows.
func (a *Agent) reconcileTo(t target) error {
	points, err := t.Place()
	if err != nil {
		return err
	}
	k := a.kernelOf(t.modules)
	defer k.Close()
	_ = a.sets.Fill(a.now.Desired, t.sets()) // its Problem keeps no chain from being attached
	r, err := a.converge(t, k, points, a.store.RecoveryPending(), apply.Policy{
		Skip:   func(chain.Point) bool { return true },
		Commit: func() error { a.forgetTraces(); return nil },
	})
	if err != nil {
		return errors.Join(err, a.sets.Problem(""))
	}
	a.mu.Lock()
	for _, text := range a.now.NoteOrder(r, points) {
		a.log.Warn("a chain runs its modules in another order", "chain", text)
	}
	a.mu.Unlock()
	if len(r.Steps) > r.Draining {
		a.log.Info("reconciled", "steps", len(r.Steps), "attachPoints", len(points))
	}
	return errors.Join(append(slices.Collect(maps.Values(r.Busy)), a.sets.Problem(""))...)
}

// forgetTraces removes what a trace of a killed agent has left.
func (a *Agent) forgetTraces() {
	if slices.ContainsFunc(a.traces, (*trace.Session).Runs) {
		return
	}
	if err := a.dp.ForgetTraces(); err != nil {
		a.log.Warn("cannot remove the leftovers of a trace", "error", err)
	}
}
