// SPDX-License-Identifier: Apache-2.0

// Package status records the conditions of resources, so that each has the time of its last transition.
package status

import (
	"context"
	"slices"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

// Resource identifies the object of conditions. The agent itself has no name.
type Resource struct{ Kind, Name string }

// Recorder holds the conditions of all resources since the start of the agent. It is safe for concurrent use and makes
// no calls while it holds its lock.
type Recorder struct {
	// OnTransition is called when a condition has become False, or False for another reason, or is no longer False; may
	// be nil.
	OnTransition func(of Resource, now v1.Condition)

	mu      sync.Mutex
	known   map[Resource][]v1.Condition
	stale   map[Resource]bool
	wake    chan struct{}
	version int64
}

// NewRecorder returns a recorder without conditions.
func NewRecorder() *Recorder {
	return &Recorder{known: map[Resource][]v1.Condition{}, stale: map[Resource]bool{}, wake: make(chan struct{}, 1),
		version: time.Now().UnixMilli()}
}

// Version returns a number that changes when a condition changes, when something happens that conditions depend on, and
// when the agent starts.
func (r *Recorder) Version() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.version
}

// Record stores the current conditions of a resource, evaluated for a generation of its spec, and returns them with
// their transition times.
func (r *Recorder) Record(of Resource, generation int64, now []v1.Condition) []v1.Condition {
	r.mu.Lock()
	before := r.known[of]
	now = v1.Transition(before, now)
	for i := range now {
		now[i].ObservedGeneration = generation
	}
	if !slices.EqualFunc(before, now, alike) {
		r.version++
	}
	r.known[of] = now
	now = slices.Clone(now)
	r.mu.Unlock()
	if r.OnTransition != nil {
		r.report(of, before, now)
	}
	return now
}

func alike(a, b v1.Condition) bool {
	return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason
}

// report reports new problems, and those that are resolved.
func (r *Recorder) report(of Resource, before, now []v1.Condition) {
	for _, c := range now {
		var was v1.Condition // unknown
		for _, b := range before {
			if b.Type == c.Type {
				was = b
			}
		}
		if !alike(was, c) && (c.Status == "False" || was.Status == "False") {
			r.OnTransition(of, c)
		}
	}
}

// Forget removes the conditions of resources that no longer exist.
func (r *Recorder) Forget(all ...Resource) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range all {
		delete(r.known, of)
	}
}

// Problems counts the conditions that were False when they were last evaluated. The agent's ControlPlanes, which
// summarizes conditions of modules, is not counted.
func (r *Recorder) Problems() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for of, conditions := range r.known {
		for _, c := range conditions {
			if c.Status == "False" && (of != Itself || c.Type != "ControlPlanes") {
				n++
			}
		}
	}
	return n
}

// Enqueue queues resources whose conditions are to be evaluated because their inputs have changed.
func (r *Recorder) Enqueue(all ...Resource) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.version++
	for _, of := range all {
		r.stale[of] = true
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// EnqueueKind returns a function that queues a resource of a kind.
func (r *Recorder) EnqueueKind(kind string) func(name string) {
	return func(name string) { r.Enqueue(Resource{Kind: kind, Name: name}) }
}

// gather is how long queued resources are collected: evaluating conditions takes CPU time from successive changes.
// Conditions that are read are evaluated immediately.
const gather = 100 * time.Millisecond

// Run calls evaluate for queued resources until ctx ends. A resource that was queued several times is evaluated once.
func (r *Recorder) Run(ctx context.Context, evaluate func(Resource)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		if !sdk.Pause(ctx, gather) {
			return
		}
		for of := range r.takeStale() {
			evaluate(of)
		}
	}
}

func (r *Recorder) takeStale() map[Resource]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	stale := r.stale
	r.stale = map[Resource]bool{}
	return stale
}
