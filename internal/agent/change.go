// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/server"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/internal/store"
)

// Apply creates or updates resources: all of them or none.
func (a *Agent) Apply(ctx context.Context, r server.Request) (result v1.ApplyResult, err error) {
	defer func() { a.audit(ctx, result, err) }()
	a.changes.Lock()
	defer a.changes.Unlock()
	next := a.desired.Clone()
	result.DryRun = r.DryRun
	if err = server.CheckUnchanged(next, r.Expected()); err != nil {
		return result, err
	}
	serviceKind.apply(r.Services, next.Services, &result)
	moduleKind.apply(r.Modules, next.Modules, &result)
	part, refused := applyPart(r, next, &result)
	prepared, err := a.prepareAll(next, r.Modules)
	if err = errors.Join(refused, a.checkServices(next), err); err != nil {
		a.releaseAll(prepared)
		return result, err
	}
	defer func() {
		if err == nil && !r.DryRun {
			result.Warnings = append(append(result.Warnings, a.moduleWarnings(r.Modules)...), a.answerWarnings()...)
		}
	}()
	if len(r.Modules)+len(r.Services) == 0 {
		err = a.commitPart(next, part, r.DryRun)
		return result, err
	}
	keep := a.store.Recovered() && len(r.Modules) == 0
	doubts := result.Warnings
	result.Steps, result.Warnings, err = a.change(next, prepared, r.DryRun, keep)
	result.Warnings = append(doubts, result.Warnings...)
	if err == nil && !r.DryRun {
		a.tell(part)
	}
	return result, err
}

// Delete removes resources: all of them or none.
func (a *Agent) Delete(ctx context.Context, refs []server.Ref, dryRun bool) (result v1.ApplyResult, err error) {
	defer func() { a.audit(ctx, result, err) }()
	a.changes.Lock()
	defer a.changes.Unlock()
	next := a.desired.Clone()
	result.DryRun = dryRun
	if err = server.CheckUnchanged(next, refs); err != nil {
		return result, err
	}
	var part store.Part
	for _, ref := range refs {
		switch {
		case moduleKind.delete(ref, next.Modules, &result), serviceKind.delete(ref, next.Services, &result):
		case virtualKind.delete(ref, next.VirtualServices, &result):
			part.VirtualServices.Remove = append(part.VirtualServices.Remove, ref.Name)
		case modelKind.delete(ref, next.Models, &result):
			part.Models.Remove = append(part.Models.Remove, ref.Name)
		default:
			return result, &fault.NotFound{Kind: ref.Kind, Name: ref.Name}
		}
	}
	if part.Len() == len(refs) {
		return result, a.commitPart(next, part, dryRun)
	}
	result.Steps, result.Warnings, err = a.change(next, nil, dryRun, a.store.Recovered())
	if err == nil && !dryRun {
		a.tell(part)
	}
	return result, err
}

// audit logs a change: who asked for it, what of, and what has become of it.
func (a *Agent) audit(ctx context.Context, result v1.ApplyResult, err error) {
	if result.DryRun {
		return
	}
	by := slog.Any("by", server.Caller(ctx))
	logged := false
	for _, c := range result.Changes {
		switch {
		case c.Action == "unchanged":
			continue
		case err != nil:
			why := refusalOf(c, err)
			a.log.Warn("change refused", by, "action", c.Action, "kind", c.Kind, "name", c.Name, "error", why)
		default:
			a.log.Info("change", by, "action", c.Action, "kind", c.Kind, "name", c.Name, "outcome", "done")
		}
		logged = true
	}
	if err != nil && !logged {
		a.log.Warn("change refused", by, "error", err)
	}
}

// refusalOf returns what an error that refuses a request says of one of its resources.
func refusalOf(c v1.Change, err error) error {
	all := fault.Invalids(err)
	if len(all) == 0 {
		return err
	}
	var own []error
	for _, one := range all {
		if one.Resource == c.Kind+" "+c.Name || one.Resource == "" {
			own = append(own, one)
		}
	}
	return cmp.Or(errors.Join(own...), errOthersRefused)
}

var errOthersRefused = errors.New("other resources of the request were refused")

func changeOf(kind, name string, exists bool, before, after map[string]any) v1.Change {
	switch {
	case !exists:
		return v1.Change{Action: "create", Kind: kind, Name: name, After: after}
	case reflect.DeepEqual(before, after):
		return v1.Change{Action: "unchanged", Kind: kind, Name: name}
	}
	return v1.Change{Action: "update", Kind: kind, Name: name, Before: before, After: after}
}

// checkServices refuses services that cannot be found now: most often a mistake in the path. Later they may go and come.
func (a *Agent) checkServices(next store.Desired) error {
	states, err := a.lookUpNew(next)
	if err != nil {
		return err
	}
	var refused []error
	for _, name := range slices.Sorted(maps.Keys(states)) {
		if err := states[name].Err; err != nil {
			refused = append(refused, &fault.Invalid{Resource: "Service " + name, Field: "spec", Reason: err.Error()})
		}
	}
	return errors.Join(refused...)
}

// lookUpNew looks up the services that the watcher cannot know yet.
func (a *Agent) lookUpNew(next store.Desired) (map[string]service.State, error) {
	wanted := map[string]v1.ServiceSpec{}
	for name, s := range next.Services {
		if before, ok := a.desired.Services[name]; !ok || !reflect.DeepEqual(before.Spec, s.Spec) {
			wanted[name] = s.Spec
		}
	}
	return service.ResolveAll(wanted)
}

// change takes the node from the present to the next desired state: kernel first, then the store. If either fails, both
// are as before.
func (a *Agent) change(next store.Desired, prepared map[string]*deployment, dryRun, keep bool) (
	steps, warnings []string, err error,
) {
	defer func() {
		if err != nil || dryRun {
			a.releaseAll(prepared)
		}
	}()
	w, err := a.worldOf(next, prepared)
	if err != nil {
		return nil, nil, err
	}
	points, err := w.place()
	if err != nil {
		return nil, nil, orderError(err)
	}
	if err := a.admit(w, points, prepared); err != nil {
		return nil, nil, err
	}
	warnings = w.warnings(points)
	busy := a.busy
	r, err := a.converge(w, points, keep, apply.Policy{
		DryRun: dryRun,
		Skip:   func(p chain.Point) bool { return busy[p] != nil },
		Commit: func() error {
			if err := a.awaitUpgrades(w); err != nil {
				return err
			}
			return a.commit(next, keep)
		},
	})
	for _, s := range r.Steps {
		steps = append(steps, s.String())
	}
	if err != nil {
		return steps, nil, a.explain(a.findRejected(w, err))
	}
	if !dryRun {
		a.metrics.changed(r.Took)
		a.costs.poke()
		a.watcher.Set(specs(next))
	}
	return steps, warnings, nil
}

// admit refuses what can be refused before the kernel is changed.
func (a *Agent) admit(w world, points map[chain.Point]placement, prepared map[string]*deployment) error {
	if err := w.checkLinkTypes(prepared); err != nil {
		return err
	}
	if err := a.verifyIdle(w, points); err != nil {
		return a.explain(err)
	}
	return a.checkBudgets(w)
}

// drainPeriod is how soon removals are tried again that wait for connections.
const drainPeriod = 200 * time.Millisecond

// converge is the way of every change and of every reconciliation: it makes the kernel run what w describes, then makes w
// the agent's present state. After an error both are as before.
func (a *Agent) converge(w world, points map[chain.Point]placement, keep bool, p apply.Policy) (apply.Result, error) {
	r, err := apply.Converge(a.kernelOf(w), w.want(points, keep), p, a.log)
	if err != nil {
		if len(r.Steps) > 0 {
			a.metrics.failed()
		}
		return r, err
	}
	if p.DryRun {
		return r, nil
	}
	if r.Draining > 0 {
		time.AfterFunc(drainPeriod, a.poke)
	}
	if len(r.Steps) > r.Draining {
		a.interruptTrace()
	}
	a.mu.Lock()
	a.busy = r.Busy
	a.mu.Unlock()
	a.adopt(w, without(points, r.Busy))
	return r, nil
}

// without deletes the points that another program keeps from their chain.
func without(points map[chain.Point]placement, busy map[chain.Point]error) map[chain.Point]placement {
	maps.DeleteFunc(points, func(p chain.Point, _ placement) bool { return busy[p] != nil })
	return points
}

// kernel is the data plane with the modules of one change. Traced chains count as the plain ones that they stand for.
type kernel struct {
	dataplane.Bound
	observe func() (chain.State, error)
}

var _ apply.Kernel = kernel{}

func (k kernel) Observe() (chain.State, error) { return k.observe() }

func (a *Agent) kernelOf(w world) kernel {
	b := dataplane.Bound{Dataplane: a.dp, Modules: map[string]dataplane.Module{}}
	for name, d := range w.modules {
		b.Modules[name] = d.module
	}
	return kernel{b, a.observe}
}

func (a *Agent) commit(next store.Desired, keep bool) error {
	if a.store.Recovered() && !keep {
		return a.store.Acknowledge(next)
	}
	if reflect.DeepEqual(next, a.desired) {
		return nil
	}
	return a.store.Commit(next)
}

// worldOf returns a desired state with the modules that were prepared for it. All others are taken as they are, also
// those that cannot run: what has become of their package or of the kernel meanwhile must neither change them nor block
// a change of others.
func (a *Agent) worldOf(next store.Desired, prepared map[string]*deployment) (world, error) {
	w := newWorld(next, map[string]*deployment{})
	for name := range next.Modules {
		w.modules[name] = cmp.Or(prepared[name], a.modules[name])
	}
	return w, a.lookAround(&w)
}

// prepareAll prepares the modules of a request and joins the mistakes in all of them. It returns at the first error of
// another kind, so that a request does not wait for each of several control planes that do not answer.
func (a *Agent) prepareAll(next store.Desired, asked []v1.Module) (map[string]*deployment, error) {
	prepared := map[string]*deployment{}
	var refused []error
	for _, m := range asked {
		d, err := a.prepareNext(next.Modules[m.Metadata.Name])
		if err != nil {
			refused = append(refused, err)
			if len(fault.Invalids(err)) == 0 {
				break
			}
			continue
		}
		prepared[m.Metadata.Name] = d
	}
	return prepared, errors.Join(refused...)
}

// prepareNext prepares a module unless what runs is the same.
func (a *Agent) prepareNext(m v1.Module) (*deployment, error) {
	now := a.modules[m.Metadata.Name]
	if now != nil && now.err == nil && reflect.DeepEqual(now.resource, m) && now.pkg.Source == pkgsBuiltin {
		return now, nil
	}
	d, err := a.prepare(m)
	if err != nil {
		return nil, err
	}
	if err := a.checkCgroups(d); err != nil {
		a.release(d)
		return nil, err
	}
	return d, nil
}

// lookAround finds the services and interfaces. Services are looked up by the watcher; those it does not know yet at once.
func (a *Agent) lookAround(w *world) error {
	known := a.watcher.States()
	fresh, err := a.lookUpNew(w.desired)
	if err != nil {
		return err
	}
	missing := map[string]v1.ServiceSpec{} // accepted a moment ago; the watcher has not come to them
	for name, s := range w.desired.Services {
		state, ok := fresh[name]
		if !ok {
			state, ok = known[name]
		}
		if !ok {
			missing[name] = s.Spec
		}
		w.services[name] = state
	}
	late, err := service.ResolveAll(missing)
	if err != nil {
		return err
	}
	maps.Copy(w.services, late)
	w.owners = a.bindings.Hold(w.services)
	maps.Copy(w.interfaces, a.watcher.HostInterfaces())
	for _, d := range w.modules {
		for _, name := range d.resource.Spec.Attach.Interfaces {
			if _, ok := w.interfaces[name]; ok {
				continue
			}
			if state, err := service.Resolve(v1.ServiceSpec{Interface: name}); err == nil && len(state.Links) > 0 {
				w.interfaces[name] = state.Links[0]
			}
		}
	}
	w.sockets, w.cgroup = a.lookAtSockets(*w), a.cgroup
	return nil
}

// verifyIdle loads new modules that no attach point selects, so that a package that the kernel refuses is refused now
// and not when the first service comes.
func (a *Agent) verifyIdle(w world, points map[chain.Point]placement) error {
	used := map[string]bool{}
	for _, p := range points {
		for _, m := range p.chain.Members {
			used[m.Name] = true
		}
	}
	for name, d := range w.modules {
		if used[name] || d.err != nil || a.modules[name] == d {
			continue
		}
		if err := d.verify(); err != nil {
			return err
		}
	}
	return nil
}

// verify loads the module alone on each of its hooks, and lets go of it again.
func (d *deployment) verify() error {
	if d.onSockets() {
		l, err := dataplane.LoadSockets(d.module)
		if err == nil {
			l.Close()
		}
		return err
	}
	for side, dir := range serviceSides {
		if !d.entries[side.Hook()][dir] {
			continue
		}
		l, err := dataplane.Load(side, dir, d.module)
		if err != nil {
			return err
		}
		l.Close()
	}
	return nil
}

// reconcile makes the node what it should be, after services have changed or the agent has started. A module that the
// kernel rejects now is disabled by its failure policy, and a point that another program holds is skipped, instead of
// keeping all others from running.
func (a *Agent) reconcile() error {
	w := newWorld(a.desired, a.modules)
	err := a.lookAround(&w)
	if err == nil {
		err = a.reconcileTo(w)
	}
	var rejected *dataplane.RejectedError
	if errors.As(err, &rejected) && a.disable(w, rejected.Modules) {
		err = a.reconcileTo(w)
	}
	a.mu.Lock()
	a.problem = err
	a.markAll()
	a.mu.Unlock()
	return err
}

func (a *Agent) reconcileTo(w world) error {
	points, err := w.place()
	if err != nil {
		return err
	}
	r, err := a.converge(w, points, a.store.Recovered(), apply.Policy{
		Skip:   func(chain.Point) bool { return true },
		Commit: func() error { a.forgetTraces(); return nil },
	})
	if err != nil {
		return err
	}
	if len(r.Steps) > r.Draining {
		a.log.Info("reconciled", "steps", len(r.Steps), "attachPoints", len(points))
	}
	return errors.Join(slices.Collect(maps.Values(r.Busy))...)
}

// forgetTraces removes what a trace of a killed agent has left.
func (a *Agent) forgetTraces() {
	if a.tracing != nil {
		return
	}
	if err := a.dp.ForgetTraces(); err != nil {
		a.log.Warn("cannot remove the leftovers of a trace", "error", err)
	}
}

// disable disables those of the modules that the kernel rejects by themselves, and reports whether there are any.
func (a *Agent) disable(w world, names []string) bool {
	found := false
	for _, name := range names {
		d := w.modules[name]
		if d == nil || d.err != nil {
			continue
		}
		var rejected *dataplane.RejectedError // not for want of memory or descriptors, which passes
		if err := d.verify(); errors.As(err, &rejected) {
			a.log.Error("module cannot run", "module", name, "error", err)
			if d.plane != nil {
				go d.plane.Close()
			}
			a.mu.Lock() // they are the agent's own
			w.modules[name] = unavailable(d.resource, err, d.module.FailClosed)
			a.mu.Unlock()
			found = true
		}
	}
	return found
}

// findRejected finds the module for which the kernel rejects a chain: of those that are new, the one that it rejects alone.
// If it accepts each of them alone, the error stays that of the chain.
func (a *Agent) findRejected(w world, err error) error {
	var rejected *dataplane.RejectedError
	if !errors.As(err, &rejected) || len(rejected.Modules) < 2 {
		return err
	}
	for _, name := range rejected.Modules {
		d := w.modules[name]
		if d == nil || d.err != nil || a.modules[name] == d {
			continue
		}
		if alone := d.verify(); errors.As(alone, &rejected) {
			return alone
		}
	}
	return err
}

// explain gives kernel errors the form that reaches the operator.
func (a *Agent) explain(err error) error {
	var rejected *dataplane.RejectedError
	if errors.As(err, &rejected) {
		return &fault.Rejected{Plain: rejected.Error(), Log: rejected.Log}
	}
	if errors.Is(err, chain.ErrBusy) {
		return &fault.Conflict{Reason: err.Error()}
	}
	var migration *dataplane.MigrationError
	if errors.As(err, &migration) {
		return &fault.Conflict{Reason: err.Error()}
	}
	for _, kind := range []error{dataplane.ErrNoEntry, dataplane.ErrNoConstant, dataplane.ErrLicense} {
		if errors.Is(err, kind) {
			return &fault.Invalid{Reason: err.Error()}
		}
	}
	return err
}

func orderError(err error) error {
	var cycle *plan.CycleError
	if errors.As(err, &cycle) {
		return &fault.Invalid{Resource: "Module " + cmp.Or(cycle.Modules...), Field: "spec.order", Reason: fmt.Sprint(err)}
	}
	return err
}
