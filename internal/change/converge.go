// SPDX-License-Identifier: Apache-2.0

package change

import (
	"maps"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/trace"
)

// drainPeriod is the interval at which removals that wait for connections are tried again.
const drainPeriod = 200 * time.Millisecond

// converge is used by every change and every reconciliation: it brings the kernel to the state t, and then makes t the
// agent's current state. After an error both are in their previous state, unless the error is an *apply.RollbackError.
func (p *Pipeline) converge(t target, k kernel, points plan.Placements, keep bool, policy apply.Policy) (apply.Result,
	error) {
	p.Dataplane.PermitExpedite(!deliverInTime(p.Now.Modules, t.modules))
	defer func() { p.Dataplane.PermitExpedite(!deliverInTime(p.Now.Modules)) }()
	r, err := apply.Converge(k, t.Desired(points, keep), policy, p.Log)
	if err != nil {
		if len(r.Steps) > 0 && !policy.DryRun {
			p.Failures.Add(1)
			reason, message := rolledBack(err)
			p.EventLog.OfAgent(v1.EventChange, reason, message)
		}
		return r, err
	}
	if policy.DryRun {
		return r, nil
	}
	if r.Draining > 0 {
		time.AfterFunc(drainPeriod, p.RequestReconcile)
	}
	if slices.ContainsFunc(r.Steps, changesChains) && len(r.Steps) > r.Draining {
		_, _ = p.observeKernel() // for traces, and for views while the next change or reconciliation takes long
	}
	p.Lock.Lock()
	p.busy = r.Busy
	p.Lock.Unlock()
	p.install(t, without(points, r.Busy))
	p.Sets.Retain(p.Now.Sets())
	poke(p.converged)
	poke(p.selected)
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

// changesChains reports whether a step may remove what a trace follows.
func changesChains(s plan.Step) bool { return s.Action != plan.SetValues }

// without deletes the points whose chain is blocked by another program.
func without(points plan.Placements, busy map[chain.Point]error) plan.Placements {
	maps.DeleteFunc(points, func(p chain.Point, _ plan.Placement) bool { return busy[p] != nil })
	return points
}

// kernel is the data plane with the modules of one change. A traced chain counts as the plain chain that it replaces.
type kernel struct {
	*dataplane.Bound
	observe func() (chain.State, error)
}

var _ apply.Kernel = kernel{}

func (k kernel) Observe() (chain.State, error) { return k.observe() }

// kernelOf returns the data plane for these modules.
func (p *Pipeline) kernelOf(all map[string]*deploy.Module) kernel {
	return kernel{p.Dataplane.Bind(p.Live.Open(all)), p.observeKernel}
}

// observeKernel reads the state of the kernel, with the plain chains in place of traced ones.
func (p *Pipeline) observeKernel() (chain.State, error) {
	state, err := p.Dataplane.Observe()
	if err != nil {
		return state, err
	}
	trace.ShowPlain(p.tracer.Sessions, state)
	p.Seen.Store(&state)
	return state, nil
}

// observeCached is observeKernel for status. The caller must not hold the agent's lock. When a change takes
// longer than patience, as it may while it waits for a control plane, it returns the last observed state.
func (p *Pipeline) observeCached(patience time.Duration) (chain.State, error) {
	if !p.Exclusive.lockWithin(patience) {
		if seen := p.Seen.Load(); seen != nil {
			return *seen, nil
		}
		p.Exclusive.Lock()
	}
	defer p.Exclusive.Unlock()
	return p.observeKernel()
}

// mutex is a lock that callers may wait for with a limit.
type mutex chan struct{}

func (m mutex) Lock() { m <- struct{}{} }

func (m mutex) Unlock() { <-m }

// lockWithin reports whether it has locked m.
func (m mutex) lockWithin(limit time.Duration) bool {
	select {
	case m <- struct{}{}:
		return true
	case <-time.After(limit):
		return false
	}
}
