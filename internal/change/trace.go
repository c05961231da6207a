// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/explain"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/trace"
)

// Tracer shows what chains do to packets. For the plan a traced chain is an undesired program.
type Tracer struct {
	*Pipeline
	Sessions   []*trace.Session // guarded by Exclusive; includes finished ones
	explaining sync.Mutex       // one packet at a time
}

// Trace reports packets until ctx ends, the request's limits are reached, or the node changes. Meanwhile the traced
// chains are slower by some hundred nanoseconds per module. If the request is for the last packets, it reports those
// that chains have kept, and links nothing.
func (t *Tracer) Trace(ctx context.Context, r v1.TraceRequest, show func(v1.TraceLine) error) error {
	filter, err := trace.Filter(r)
	if err != nil {
		return err
	}
	if err := t.started(ctx); err != nil {
		return err
	}
	if r.Last {
		return t.LastPackets(r, filter, show)
	}
	session, err := t.start(ctx, r, filter)
	if err != nil {
		return err
	}
	defer t.end(session)
	return session.Report(r, show) // the time for linking does not count
}

func (t *Tracer) start(ctx context.Context, r v1.TraceRequest, f dataplane.TraceFilter) (*trace.Session, error) {
	if err := t.await(ctx); err != nil {
		return nil, err
	}
	defer t.Exclusive.Unlock()
	points, err := t.Now.TracedPoints(r, &f)
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
	if _, ok := resource.Service.Get(t.Now.Desired, r.Service); r.Service != "" && !ok {
		return nil, &apierrors.NotFound{Kind: v1.KindService, Name: r.Service}
	}
	if len(specs) == 0 {
		return nil, &apierrors.Conflict{Reason: "no chain runs there: nothing to trace"}
	}
	_, modules := t.Now.Running()
	traced, err := t.Dataplane.Trace(f, specs, modules)
	if err != nil {
		return nil, errors.Join(forOperator(err), t.Reconcile())
	}
	session := trace.NewSession(ctx, traced, points, trace.Reader{Chains: traced.Chains, Points: maps.Clone(t.Now.Points),
		Reason: t.Now.ReasonNames(), Note: t.Now.NoteNames(),
		Name: trace.NoteValues(t.Live.Planes()), Follow: packets > 1 || f.After,
		Services: t.Now.Sockets.ServicesByNetns(r.Service)})
	if err := traced.Missing(); err != nil {
		session.Warning = "no drops of the kernel are shown: " + err.Error()
	}
	t.Sessions = append(t.Sessions, session)
	return session, nil
}

// started waits for the first reconciliation: before, it is not known which chains run.
func (t *Tracer) started(ctx context.Context) error {
	select {
	case <-t.Reconciled():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const (
	traceEnds = 3 * time.Second // time to restore the plain chains after the trace's client has disconnected
	tracePoll = 20 * time.Millisecond
)

// await waits until another trace may run, and returns with the lock of changes held. A trace whose client was just
// killed ends within moments.
func (t *Tracer) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, traceEnds)
	defer cancel()
	for {
		t.Exclusive.Lock()
		t.Sessions = slices.DeleteFunc(t.Sessions, (*trace.Session).Over)
		if len(t.Sessions) < dataplane.TraceSessions {
			return nil
		}
		t.Exclusive.Unlock()
		select {
		case <-time.After(tracePoll):
		case <-ctx.Done():
			return &apierrors.Conflict{Reason: fmt.Sprintf("%d traces are running, which is the most at a time: wait until one "+
				"ends, or interrupt one", dataplane.TraceSessions)}
		}
	}
}

// end restores the plain chains where no other trace runs.
func (t *Tracer) end(session *trace.Session) {
	t.Exclusive.Lock()
	defer t.Exclusive.Unlock()
	defer session.End()
	session.Stop()
	if n := session.Source.Lost(); n > 0 {
		t.Log.Warn("the trace was too slow for its packets; a narrower filter loses none", "lost", n)
	}
	if err := t.Reconcile(); err != nil {
		t.Log.Error("cannot put the plain chains back; trying again", "error", err)
		t.RequestReconcile()
	}
}

// forget removes the leftovers of a killed agent's trace.
func (t *Tracer) forget() {
	if slices.ContainsFunc(t.Sessions, (*trace.Session).Runs) {
		return
	}
	if err := t.Dataplane.ForgetTraces(); err != nil {
		t.Log.Warn("cannot remove the leftovers of a trace", "error", err)
	}
}

// Explain runs a packet through copies of the chains that it would traverse. Copying and linking takes a while: changes
// wait only while maps are opened.
func (t *Tracer) Explain(ctx context.Context, r v1.ExplainRequest) (out v1.ExplainedPacket, err error) {
	if !t.explaining.TryLock() {
		return out, &apierrors.Conflict{Reason: "another packet is being explained; one is at a time: try again"}
	}
	defer t.explaining.Unlock()
	if err := t.started(ctx); err != nil {
		return out, err
	}
	t.Exclusive.Lock()
	_, exists := resource.Service.Get(t.Now.Desired, r.Service)
	_, modules := t.Now.Running()
	node := explain.Node{Points: maps.Clone(t.Now.Points), Reason: t.Now.ReasonNames(),
		Note: t.Now.NoteNames(), Name: trace.NoteValues(t.Live.Planes())}
	t.Exclusive.Unlock()
	if !exists {
		return out, &apierrors.NotFound{Kind: v1.KindService, Name: r.Service}
	}
	node.Open = func(spec chain.Spec) (*dataplane.Trial, error) {
		t.Exclusive.Lock() // the maps are not removed until they are open
		defer t.Exclusive.Unlock()
		return t.Dataplane.OpenTrial(spec, modules)
	}
	out, err = node.Explain(ctx, r)
	return out, forOperator(err)
}
