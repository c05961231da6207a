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

// drainPeriod is how soon removals are tried again that wait for connections.
const drainPeriod = 200 * time.Millisecond

// converge is the path of every change and of every reconciliation: it makes the kernel run what t describes, then
// makes t the agent's current state. After an error both are as before, unless it is an *apply.RollbackError.
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
		_, _ = p.observeKernel() // for traces; and for views, should the next change or reconciliation take its time
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

// changesChains reports whether a step can do away with what a trace follows.
func changesChains(s plan.Step) bool { return s.Action != plan.SetValues }

// without deletes the points that another program keeps from their chain.
func without(points plan.Placements, busy map[chain.Point]error) plan.Placements {
	maps.DeleteFunc(points, func(p chain.Point, _ plan.Placement) bool { return busy[p] != nil })
	return points
}

// kernel is the data plane with the modules of one change. Traced chains count as the plain ones that they stand for.
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

// observeKernel reads the state of the kernel, with plain chains in the place of traced ones.
func (p *Pipeline) observeKernel() (chain.State, error) {
	state, err := p.Dataplane.Observe()
	if err != nil {
		return state, err
	}
	trace.ShowPlain(p.tracer.Sessions, state)
	p.Seen.Store(&state)
	return state, nil
}

// look is observeKernel for status and metrics; the caller must not hold the agent's lock. When a change takes longer
// than patience, as it may when it waits for a control plane, it is what was seen before.
func (p *Pipeline) look(patience time.Duration) (chain.State, error) {
	const step = 5 * time.Millisecond
	for waited := time.Duration(0); !p.Exclusive.TryLock(); waited += step {
		if seen := p.Seen.Load(); seen != nil && waited >= patience {
			return *seen, nil
		}
		time.Sleep(step)
	}
	defer p.Exclusive.Unlock()
	return p.observeKernel()
}
