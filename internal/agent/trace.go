// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/trace"
)

// Trace reports packets until ctx ends, the request's limits are reached, or the node changes. While it lasts, the
// chains that it is about are slower by some hundred nanoseconds a module. If the last packets are requested it reports
// what chains have kept, and links nothing.
func (a *Agent) Trace(ctx context.Context, r v1.TraceRequest, show func(v1.TraceLine) error) error {
	filter, err := trace.Filter(r)
	if err != nil {
		return err
	}
	if r.Last {
		return a.LastPackets(r, filter, show)
	}
	session, err := a.startTrace(ctx, r, filter)
	if err != nil {
		return err
	}
	defer a.endTrace(session)
	return session.Report(r, show) // linking the chains does not count
}

func (a *Agent) startTrace(ctx context.Context, r v1.TraceRequest, f dataplane.TraceFilter) (*trace.Session, error) {
	if err := a.awaitTrace(ctx); err != nil {
		return nil, err
	}
	defer a.changes.Unlock()
	points, err := a.now.TracedPoints(r, &f)
	if err != nil {
		return nil, err
	}
	specs, packets := map[chain.Point]chain.Spec{}, 0
	for p, place := range points {
		specs[p] = place.Chain
		if p.Side.SeesPackets() {
			packets++
		}
	}
	if _, ok := resource.Service.Get(a.now.Desired, r.Service); r.Service != "" && !ok {
		return nil, &apierrors.NotFound{Kind: v1.KindService, Name: r.Service}
	}
	if len(specs) == 0 {
		return nil, &apierrors.Conflict{Reason: "no chain runs there: nothing to trace"}
	}
	_, modules := a.now.Running()
	traced, err := a.dp.Trace(f, specs, modules)
	if err != nil {
		return nil, errors.Join(forOperator(err), a.reconcile())
	}
	session := trace.NewSession(ctx, traced, points, trace.Reader{Chains: traced.Chains, Points: maps.Clone(a.now.Points),
		Reason: a.now.ReasonNames(), Note: a.now.NoteNames(),
		Name: trace.NoteValues(a.live.Planes()), Follow: packets > 1 || f.After,
		Services: a.now.Sockets.ServicesByNetns(r.Service)})
	if err := traced.Missing(); err != nil {
		session.Warning = "no drops of the kernel are shown: " + err.Error()
	}
	a.traces = append(a.traces, session)
	return session, nil
}

const (
	traceEnds = 3 * time.Second // that a trace may take to put the plain chains back after its client has gone
	tracePoll = 20 * time.Millisecond
)

// awaitTrace returns with the lock of changes when another trace may run. One whose client has just been killed ends
// within moments.
func (a *Agent) awaitTrace(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, traceEnds)
	defer cancel()
	for {
		a.changes.Lock()
		a.traces = slices.DeleteFunc(a.traces, (*trace.Session).Over)
		if len(a.traces) < dataplane.TraceSessions {
			return nil
		}
		a.changes.Unlock()
		select {
		case <-time.After(tracePoll):
		case <-ctx.Done():
			return &apierrors.Conflict{Reason: fmt.Sprintf("%d traces are running, which is the most at a time: wait until one "+
				"ends, or interrupt one", dataplane.TraceSessions)}
		}
	}
}

// endTrace puts the plain chains back where no other trace runs: to the plan a traced one is a program that should not
// be there.
func (a *Agent) endTrace(session *trace.Session) {
	a.changes.Lock()
	defer a.changes.Unlock()
	defer session.End()
	session.Stop()
	if n := session.Source.Lost(); n > 0 {
		a.log.Warn("the trace was too slow for its packets; a narrower filter loses none", "lost", n)
	}
	if err := a.reconcile(); err != nil {
		a.log.Error("cannot put the plain chains back; trying again", "error", err)
		a.requestReconcile()
	}
}

// observeKernel reads the state of the kernel, with plain chains in the place of traced ones.
func (a *Agent) observeKernel() (chain.State, error) {
	state, err := a.dp.Observe()
	if err != nil {
		return state, err
	}
	trace.ShowPlain(a.traces, state)
	a.Seen.Store(&state)
	return state, nil
}

// look is observeKernel for status and metrics; the caller must not hold the agent's lock. When a change takes longer
// than patience, as it may when it waits for a control plane, it is what was seen before.
func (a *Agent) look(patience time.Duration) (chain.State, error) {
	const step = 5 * time.Millisecond
	for waited := time.Duration(0); !a.changes.TryLock(); waited += step {
		if seen := a.Seen.Load(); seen != nil && waited >= patience {
			return *seen, nil
		}
		time.Sleep(step)
	}
	defer a.changes.Unlock()
	return a.observeKernel()
}
