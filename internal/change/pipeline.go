// SPDX-License-Identifier: Apache-2.0

// Package change executes changes: requests of clients and reconciliations are serialized. Each is planned, executed
// and committed, completely or not at all.
package change

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/observe"
	"github.com/kerb-edge/kerb/internal/resolve"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/internal/sets"
	"github.com/kerb-edge/kerb/internal/view"
)

// Pipeline executes changes. Its exported fields are set before it runs.
type Pipeline struct {
	*view.Views // what the API reads; Now is written only here, with both Exclusive and Lock held
	Observer    *observe.Observer
	Preparer    *deploy.Preparer
	Watcher     *service.Watcher
	Bindings    *service.Bindings // of interfaces to services
	Virtual     *resolve.Table
	Control     *control.Manager
	Sets        *sets.Sets     // guarded by Exclusive
	Budgets     *apply.Budgets // guards itself
	Slower      time.Duration  // slow packets that chains keep without a trace

	Functions atomic.Bool // from the config: the next reconciliation keeps modules as functions
	Exclusive mutex       // held during a change, which may wait for control planes

	wake       chan struct{}         // asks for a reconciliation
	converged  chan struct{}         // there may be chains without a timed copy
	selected   chan struct{}         // modules may select other cgroups now
	reconciled chan struct{}         // closed after the first one, whether it succeeded or not
	busy       map[chain.Point]error // points whose chain is blocked by another program
	tracer     *Tracer
}

// New returns a pipeline that changes the state of views.
func New(views *view.Views) *Pipeline {
	p := &Pipeline{Views: views, Exclusive: make(mutex, 1), wake: make(chan struct{}, 1),
		converged: make(chan struct{}, 1), selected: make(chan struct{}, 1), reconciled: make(chan struct{})}
	p.tracer = &Tracer{Pipeline: p}
	views.Look = p.observeCached
	return p
}

// Tracer returns the tracer of the pipeline's chains.
func (p *Pipeline) Tracer() *Tracer { return p.tracer }

// Restore sets the desired state that the store has. Modules are used as they were accepted.
func (p *Pipeline) Restore() {
	for _, all := range p.Now.Desired {
		p.announce(resource.Changes{Put: slices.Collect(maps.Values(all))})
	}
	p.Virtual.Restore()
	for name, m := range resource.Module.All(p.Now.Desired) {
		p.Now.Modules[name] = p.Preparer.Accepted(m)
	}
	p.Watcher.Set(specs(p.Now.Desired))
	if _, err := p.observeKernel(); err != nil { // for views, until the first reconciliation is done
		p.Log.Warn("cannot read the state of the kernel", "error", err)
	}
}

// Run reconciles, and does slow work after changes, until ctx ends.
func (p *Pipeline) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { p.follow(ctx) })
	wg.Go(func() { Calm{p, map[string]bool{}}.run(ctx) })
	wg.Go(func() { p.Budgets.Run(ctx, p.candidates, p.Now.Recorder.EnqueueKind(v1.KindModule)) })
	wg.Go(func() { observe.WatchCgroups(ctx, p.selected, p.selectedCgroups, p.RequestReconcile) })
	wg.Wait()
}
