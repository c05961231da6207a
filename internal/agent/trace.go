// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"maps"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/trace"
)

// errChanged ends a trace whose chains have been replaced by a change of the node.
var errChanged = errors.New("the chains changed, which ended the trace")

// Trace reports packets until ctx ends, the request's limits are reached, or the node changes. While it lasts, the
// chains that it is about are slower by some hundred nanoseconds a module.
func (a *Agent) Trace(ctx context.Context, r v1.TraceRequest, show func(v1.TraceLine) error) error {
	filter, err := trace.Filter(r)
	if err != nil {
		return err
	}
	run, err := a.startTrace(ctx, r, filter)
	if err != nil {
		return err
	}
	defer a.endTrace(run)
	ctx, cancel := context.WithTimeout(run.ctx, time.Duration(r.Seconds)*time.Second) // linking the chains does not count
	defer cancel()
	reader := trace.Reader{Source: run.trace, Chains: run.trace.Chains, Points: run.all, Reason: run.reason, Show: show,
		Wanted: func(p v1.TracedPacket) bool { return trace.Matches(r, p) }, Count: r.Count}
	if err := reader.Run(ctx); err != nil {
		return err
	}
	if cause := context.Cause(run.ctx); errors.Is(cause, errChanged) {
		return &apierrors.Conflict{Reason: cause.Error()}
	}
	return nil
}

// traceRun is a running trace.
type traceRun struct {
	trace  *dataplane.Trace
	all    plan.Placements // of the node
	points plan.Placements // that are traced
	ended  chan struct{}   // closed when the plain chains are back
	reason func(module string, reason int) string
	cancel context.CancelCauseFunc
	ctx    context.Context
}

func (a *Agent) startTrace(ctx context.Context, r v1.TraceRequest, f dataplane.TraceFilter) (*traceRun, error) {
	if err := a.awaitTrace(ctx); err != nil {
		return nil, err
	}
	defer a.changes.Unlock()
	run := &traceRun{all: maps.Clone(a.now.Points), points: plan.Placements{}, ended: make(chan struct{}),
		reason: a.now.ReasonNames()}
	specs := map[chain.Point]chain.Spec{}
	for p, place := range a.now.Points {
		if p.Side.SeesPackets() && (r.Service == "" || place.Service == r.Service) {
			run.points[p], specs[p] = place, place.Chain
		}
	}
	if _, ok := resource.Service.Get(a.now.Desired, r.Service); r.Service != "" && !ok {
		return nil, &apierrors.NotFound{Kind: v1.KindService, Name: r.Service}
	}
	if len(specs) == 0 {
		return nil, &apierrors.Conflict{Reason: "no chain runs there: nothing to trace"}
	}
	_, modules := a.running()
	var err error
	if run.trace, err = a.dp.Trace(f, specs, modules); err != nil {
		return nil, errors.Join(forOperator(err), a.reconcile())
	}
	run.ctx, run.cancel = context.WithCancelCause(ctx)
	a.tracing, a.lastTrace = run, run
	return run, nil
}

// awaitTrace returns with the lock of changes when no trace runs. One whose client has just been killed ends within
// moments.
func (a *Agent) awaitTrace(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, traceEnds)
	defer cancel()
	for {
		a.changes.Lock()
		before := a.lastTrace
		if before == nil || before.over() {
			return nil
		}
		a.changes.Unlock()
		select {
		case <-before.ended:
		case <-ctx.Done():
			return &apierrors.Conflict{Reason: "another trace is running; one trace runs at a time"}
		}
	}
}

// traceEnds is how long a trace may take to put the plain chains back after its client has gone.
const traceEnds = 3 * time.Second

func (run *traceRun) over() bool {
	select {
	case <-run.ended:
		return true
	default:
		return false
	}
}

// endTrace puts the plain chains back: to the plan a traced one is a program that should not be there.
func (a *Agent) endTrace(run *traceRun) {
	a.changes.Lock()
	defer a.changes.Unlock()
	defer close(run.ended)
	defer run.trace.Close()
	run.cancel(nil)
	if n := run.trace.Lost(); n > 0 {
		a.log.Warn("the trace was too slow for its packets; a narrower filter loses none", "lost", n)
	}
	if a.tracing == run {
		a.tracing = nil
	}
	if err := a.reconcile(); err != nil {
		a.log.Error("cannot put the plain chains back; trying again", "error", err)
		a.requestReconcile()
	}
}

// observeKernel reads the state of the kernel. While a trace runs, its chains count as the plain ones that they stand
// for: looking at the node must not end a trace.
func (a *Agent) observeKernel() (chain.State, error) {
	state, err := a.dp.Observe()
	if err != nil {
		return state, err
	}
	defer func() { a.seen.Store(&state) }()
	if a.tracing == nil {
		return state, nil
	}
	plain := map[string]uint32{}
	for _, c := range state.Chains {
		plain[c.ID] = c.Program
	}
	for i, p := range state.Points {
		if place, ok := a.tracing.points[p.Point]; ok && a.tracing.trace.Runs(p.Program) {
			state.Points[i].Program = plain[place.Chain.ID()]
		}
	}
	return state, nil
}

// look is observeKernel for status and metrics; the caller must not hold the agent's lock. When a change takes longer
// than patience, as it may when it waits for a control plane, it is what was seen before.
func (a *Agent) look(patience time.Duration) (chain.State, error) {
	const step = 5 * time.Millisecond
	for waited := time.Duration(0); !a.changes.TryLock(); waited += step {
		if seen := a.seen.Load(); seen != nil && waited >= patience {
			return *seen, nil
		}
		time.Sleep(step)
	}
	defer a.changes.Unlock()
	return a.observeKernel()
}

// interruptTrace is called when a change has replaced the traced chains.
func (a *Agent) interruptTrace() {
	if a.tracing != nil {
		a.tracing.cancel(errChanged)
		a.tracing = nil
	}
}
