// SPDX-License-Identifier: Apache-2.0

package change

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
// commit and one grace period: orchestrators start and stop many services at once. Each request succeeds or fails as a
// whole, and is answered when its services are protected.

// grouped is a request that waits for its group to be executed.
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
	points  map[int]bool     // ifindexes of services that it deletes
}

// change applies the client's request to the desired state.
func (q *grouped) change(desired resource.State, result *v1.ApplyResult) (changes resource.Changes, err error) {
	if changes, err = q.Change(desired, result); err == nil {
		result.Warnings, err = desired.CheckAll(q.Resources, changes)
	}
	return changes, err
}

// Requests executes and records requests of clients.
type Requests struct {
	*Pipeline
	journal journal
	mu      sync.Mutex
	waiting []*grouped // wait for the current change
}

// NewRequests returns Requests that a pipeline executes.
func NewRequests(p *Pipeline) *Requests { return &Requests{Pipeline: p, journal: journal{p.Views}} }

// add reports whether q is the first request of a group, whose caller executes the group.
func (s *Requests) add(q *grouped) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, q)
	return len(s.waiting) == 1
}

func (s *Requests) take() []*grouped {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.waiting
	s.waiting = nil
	return all
}

// Waiting returns how many requests wait to share a change.
func (s *Requests) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}

// canShare reports whether a request may be executed together with others.
func canShare(r resource.Request) bool {
	other := func(ref resource.Ref) bool { return ref.Kind != v1.KindService }
	refs := slices.Concat(resource.Refs(r.Resources), r.Remove)
	return !r.DryRun && !r.Prune && len(refs) > 0 && !slices.ContainsFunc(refs, other)
}

// Apply creates, updates and deletes resources: all of them or none. It returns when the request was executed, alone
// or, if possible, together with others.
func (s *Requests) Apply(ctx context.Context, r resource.Request) (v1.ApplyResult, error) {
	q := &grouped{Request: r, ctx: ctx}
	if !canShare(r) {
		s.Exclusive.Lock()
		defer s.Exclusive.Unlock()
		s.executeAlone(q)
		return q.result, q.err
	}
	q.err, q.done = errors.New("the agent failed to execute the change"), make(chan struct{})
	s.prefetchServices(q.Resources)
	if s.add(q) {
		s.applyGroup()
	}
	<-q.done
	return q.result, q.err
}

// executeAlone executes and records a request. The caller holds Exclusive: numbers follow the order of the changes.
func (s *Requests) executeAlone(q *grouped) {
	q.before, q.began = s.Now.Desired, time.Now()
	q.result, q.err = s.apply(q.Request)
	s.journal.record(q)
}

// prefetchServices looks up services that a request creates or moves, while other requests may be executed.
func (s *Requests) prefetchServices(all []resource.Object) {
	specs := map[string]v1.ServiceSpec{}
	s.Lock.Lock()
	for _, next := range resource.Service.Of(all) {
		now, exists := resource.Service.Get(s.Now.Desired, next.Metadata.Name)
		if !exists || !reflect.DeepEqual(now.Spec, next.Spec) {
			specs[next.Metadata.Name] = next.Spec
		}
	}
	s.Lock.Unlock()
	s.Observer.Prefetch(specs)
}

// applyGroup waits for its turn and executes all requests that have arrived until then. Those that cannot be executed
// with the others are executed alone, so that each gets its own error.
func (s *Requests) applyGroup() {
	s.Exclusive.Lock()
	defer s.Exclusive.Unlock()
	all := s.take()
	defer func() {
		for _, q := range all {
			close(q.done)
		}
	}()
	alone := all
	if len(all) > 1 {
		alone = s.applyTogether(all)
	}
	for _, q := range alone {
		s.executeAlone(q)
	}
}

// applyTogether executes requests as one change. It returns those that were not executed.
func (s *Requests) applyTogether(all []*grouped) (rest []*grouped) {
	memtrim.Busy()
	next, accepted, rest := merge(s.Now, all)
	if len(accepted) < 2 {
		return all
	}
	seen, err := s.Observer.Observe(s.Now.Observation(next))
	if err != nil {
		return all
	}
	isLost := func(q *grouped) bool { return checkServices(q.newIn(seen)) != nil }
	if lost := slices.DeleteFunc(slices.Clone(accepted), func(q *grouped) bool { return !isLost(q) }); len(lost) > 0 {
		return slices.Concat(rest, lost, s.applyTogether(slices.DeleteFunc(accepted, isLost)))
	}
	var changes resource.Changes
	for _, q := range accepted {
		changes.Put = append(changes.Put, q.changes.Put...)
		changes.Remove = append(changes.Remove, q.changes.Remove...)
	}
	done, err := s.change(s.target(next, nil, seen), changes, nil, execute, s.Store.RecoveryPending())
	if err != nil {
		return all
	}
	warnings := slices.Concat(done.warnings, s.Now.ModuleWarnings(nil), s.Now.ReplyWarnings())
	for _, q := range accepted {
		q.err, q.result.Steps = nil, texts(q.stepsOf(done.steps, seen))
		q.result.Warnings = append(q.result.Warnings, warnings...)
		s.journal.record(q)
	}
	return rest
}

// newIn returns the snapshot without new services of other requests.
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

// merge applies requests in order to the desired state, except those that it rejects.
func merge(now *status.Node, all []*grouped) (next resource.State, accepted, rest []*grouped) {
	next = now.Desired.Clone()
	put := map[string]bool{}
	for _, q := range all {
		q.before, q.began = next, time.Now()
		trial, result := next.Clone(), v1.ApplyResult{}
		changes, err := q.change(trial, &result)
		if err != nil || slices.ContainsFunc(changes.Remove, func(r resource.Ref) bool { return put[r.Name] }) {
			rest = append(rest, q) // if one change puts and removes a resource, the store keeps what was put
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
