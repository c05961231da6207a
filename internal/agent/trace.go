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
	"github.com/kerb-edge/kerb/internal/plan"
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
	points, err := a.tracedPoints(r, &f)
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
		Name: trace.NoteValues(a.live.Planes()), Services: a.servicesByNetns(r.Service), Follow: packets > 1 || f.After})
	if err := traced.Missing(); err != nil {
		session.Warning = "no drops of the kernel are shown: " + err.Error()
	}
	a.traces = append(a.traces, session)
	return session, nil
}

// tracedPoints are the attach points that a request is about. f gets the network namespace of its service.
func (a *Agent) tracedPoints(r v1.TraceRequest, f *dataplane.TraceFilter) (plan.Placements, error) {
	m := a.now.Modules[r.Module]
	alone := m != nil && m.Sockets // that module sees no packets
	messages := alone || r.Messages
	if messages && f.Expression != nil {
		return nil, &apierrors.Invalid{Field: "program", Reason: "expressions select frames, which messages do not " +
			"have: use host, port, service, module or verdict"}
	}
	if a.now.Sockets != nil {
		f.Netns = a.now.Sockets.Cookies[r.Service]
	}
	out := plan.Placements{}
	for p, place := range a.now.Points {
		wanted := messages && (r.Service == "" || f.Netns != 0) && (!alone || p.Module == r.Module)
		if p.Side.SeesPackets() {
			wanted = !alone && (r.Service == "" || place.Service == r.Service)
		}
		if wanted {
			out[p] = place
		}
	}
	return out, nil
}

// servicesByNetns are the services whose sockets modules may see, by the cookies of their network namespaces. Of
// several in one it is preferred, or else the first by name.
func (a *Agent) servicesByNetns(preferred string) map[uint64]string {
	out := map[uint64]string{}
	if a.now.Sockets == nil {
		return out
	}
	for name, netns := range a.now.Sockets.Cookies {
		if other, taken := out[netns]; !taken || name == preferred || other != preferred && name < other {
			out[netns] = name
		}
	}
	return out
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
	a.seen.Store(&state)
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

// programs returns the kernel's ids of the programs on some points. As long as these run what was seen last, no change
// has to be waited for, and the rest of the node is not read; else, as while they are traced, it is as look says. If
// brief, that they were seen suffices.
func (a *Agent) programs(points []chain.Point, brief bool) map[chain.Point]uint32 {
	if seen := a.seen.Load(); seen != nil {
		known := seen.Programs()
		changed := func(p chain.Point) bool {
			if brief {
				return known[p] == 0
			}
			program, err := a.dp.Program(p)
			return err != nil || program != known[p]
		}
		if !slices.ContainsFunc(points, changed) {
			return known
		}
	}
	state, err := a.Look(time.Second)
	if err != nil {
		a.log.Warn("cannot read the state of the kernel", "error", err)
	}
	return state.Programs()
}
