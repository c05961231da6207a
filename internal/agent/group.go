// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/memtrim"
	"github.com/kerb-edge/kerb/internal/observe"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/internal/status"
)

// Requests that only add, change or delete services and arrive while another change is executed share one plan, one
// commit and one grace period: orchestrators start and end many services at once. Each is all or nothing, and answered
// when its services are protected.

// grouped is a request that waits for its group.
type grouped struct {
	resource.Request
	before  resource.State // when it is its turn
	began   time.Time
	reverts int64           // number of the change that it reverts
	ctx     context.Context // of the client
	result  v1.ApplyResult
	err     error
	done    chan struct{}
	changes resource.Changes // as part of a group
	points  map[int]bool     // interfaces of services that it deletes
}

// change makes the desired state what the client asks for.
func (q *grouped) change(desired resource.State, result *v1.ApplyResult) (changes resource.Changes, err error) {
	if changes, err = q.Change(desired, result); err == nil {
		result.Warnings, err = desired.CheckAll(q.Resources, changes)
	}
	return changes, err
}

// group is the requests that wait for the change before them.
type group struct {
	mu      sync.Mutex
	waiting []*grouped
}

// add reports whether q is the first one, which executes the group.
func (g *group) add(q *grouped) (first bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, q)
	return len(g.waiting) == 1
}

func (g *group) take() []*grouped {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := g.waiting
	g.waiting = nil
	return all
}

// canShare reports whether a request may be executed together with others.
func canShare(r resource.Request) bool {
	other := func(ref resource.Ref) bool { return ref.Kind != v1.KindService }
	refs := slices.Concat(resource.Refs(r.Resources), r.Remove)
	return !r.DryRun && !r.Prune && len(refs) > 0 && !slices.ContainsFunc(refs, other)
}

// Apply creates, updates and deletes resources: all of them or none. It returns when the request was executed, alone
// or, if it may be, with others.
func (a *Agent) Apply(ctx context.Context, r resource.Request) (v1.ApplyResult, error) {
	q := &grouped{Request: r, ctx: ctx}
	if !canShare(r) {
		a.changes.Lock()
		defer a.changes.Unlock()
		a.executeAlone(q)
		return q.result, q.err
	}
	q.err, q.done = errors.New("the agent failed to execute the change"), make(chan struct{})
	a.lookAhead(q.Resources)
	if a.group.add(q) {
		a.applyGroup()
	}
	<-q.done
	return q.result, q.err
}

// executeAlone executes and records a request. a.changes is held: numbers follow the order in which changes were made.
func (a *Agent) executeAlone(q *grouped) {
	q.before, q.began = a.now.Desired, time.Now()
	q.result, q.err = a.apply(q.Request)
	a.journal.record(q)
}

// lookAhead looks up services that a request creates or moves, while others may be executed.
func (a *Agent) lookAhead(all []resource.Object) {
	specs := map[string]v1.ServiceSpec{}
	a.mu.Lock()
	for _, s := range resource.Service.Of(all) {
		now, exists := resource.Service.Get(a.now.Desired, s.Metadata.Name)
		if !exists || !reflect.DeepEqual(now.Spec, s.Spec) {
			specs[s.Metadata.Name] = s.Spec
		}
	}
	a.mu.Unlock()
	a.observer.LookAhead(specs)
}

// applyGroup executes all requests that have arrived before it is their turn. Those that cannot be executed with the
// others are executed alone, so that each gets its own error.
func (a *Agent) applyGroup() {
	a.changes.Lock()
	defer a.changes.Unlock()
	all := a.group.take()
	defer func() {
		for _, q := range all {
			close(q.done)
		}
	}()
	alone := all
	if len(all) > 1 {
		alone = a.applyTogether(all)
	}
	for _, q := range alone {
		a.executeAlone(q)
	}
}

// applyTogether executes requests as one change. It returns those that it has not executed.
func (a *Agent) applyTogether(all []*grouped) (rest []*grouped) {
	memtrim.Busy()
	next, accepted, rest := merge(&a.now, all)
	if len(accepted) < 2 {
		return all
	}
	seen, err := a.observer.Observe(a.now.Observation(next))
	if err != nil {
		return all
	}
	isLost := func(q *grouped) bool { return checkServices(q.newIn(seen)) != nil }
	if lost := slices.DeleteFunc(slices.Clone(accepted), func(q *grouped) bool { return !isLost(q) }); len(lost) > 0 {
		return slices.Concat(rest, lost, a.applyTogether(slices.DeleteFunc(accepted, isLost)))
	}
	var changes resource.Changes
	for _, q := range accepted {
		changes.Put = append(changes.Put, q.changes.Put...)
		changes.Remove = append(changes.Remove, q.changes.Remove...)
	}
	done, err := a.change(a.target(next, nil, seen), changes, nil, execute, a.store.RecoveryPending())
	if err != nil {
		return all
	}
	warnings := slices.Concat(done.warnings, a.now.ModuleWarnings(nil), a.now.ReplyWarnings())
	for _, q := range accepted {
		q.err, q.result.Steps = nil, texts(q.stepsOf(done.steps, seen))
		q.result.Warnings = append(q.result.Warnings, warnings...)
		a.journal.record(q)
	}
	return rest
}

// newIn is the snapshot with no other new services than those of the request.
func (q *grouped) newIn(seen observe.Snapshot) observe.Snapshot {
	seen.New = slices.DeleteFunc(slices.Clone(seen.New), func(name string) bool {
		return !slices.ContainsFunc(q.Resources, func(o resource.Object) bool { return o.Meta().Name == name })
	})
	return seen
}

// stepsOf leaves out steps on attach points of other services.
func (q *grouped) stepsOf(steps []plan.Step, seen observe.Snapshot) (out []plan.Step) {
	own := map[int]bool{0: true} // no attach point: shared by all
	maps.Copy(own, q.points)
	for _, o := range q.Resources {
		for _, l := range seen.Services[o.Meta().Name].Links {
			own[l.Ifindex] = true
		}
	}
	for _, s := range steps {
		if own[s.Point.Ifindex] {
			out = append(out, s)
		}
	}
	return out
}

// merge applies requests to the desired state in their order, without those that it refuses.
func merge(now *status.Node, all []*grouped) (next resource.State, accepted, rest []*grouped) {
	next = now.Desired.Clone()
	put := map[string]bool{}
	for _, q := range all {
		q.before, q.began = next, time.Now()
		trial, result := next.Clone(), v1.ApplyResult{}
		changes, err := q.change(trial, &result)
		if err != nil || slices.ContainsFunc(changes.Remove, func(r resource.Ref) bool { return put[r.Name] }) {
			rest = append(rest, q) // of what one change puts and removes, the store would keep what is put
			continue
		}
		for _, o := range changes.Put {
			put[o.Meta().Name] = true
		}
		next, q.result, q.changes, q.points = trial, result, changes, interfacesOf(now.Services, changes.Remove)
		accepted = append(accepted, q)
	}
	return next, accepted, rest
}

// interfacesOf returns the interfaces of services.
func interfacesOf(now map[string]service.State, services []resource.Ref) map[int]bool {
	out := map[int]bool{}
	for _, r := range services {
		for _, l := range now[r.Name].Links {
			out[l.Ifindex] = true
		}
	}
	return out
}

func texts(steps []plan.Step) (out []string) {
	for _, s := range steps {
		out = append(out, s.String())
	}
	return out
}
