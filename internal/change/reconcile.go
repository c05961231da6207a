// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/sets"
	"github.com/kerb-edge/kerb/internal/status"
)

// Reconciled returns a channel that is closed after the first reconciliation, whether it succeeded or not.
func (p *Pipeline) Reconciled() <-chan struct{} { return p.reconciled }

// Starting reports whether the first reconciliation has not finished yet.
func (p *Pipeline) Starting() bool {
	select {
	case <-p.reconciled:
		return false
	default:
		return true
	}
}

// RequestReconcile requests a reconciliation.
func (p *Pipeline) RequestReconcile() { poke(p.wake) }

// poke wakes up a loop.
func poke(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// follow reconciles whenever services change, and retries after failures with a backoff. Modules that cannot run are
// retried less often, because a control plane that does not answer delays changes.
func (p *Pipeline) follow(ctx context.Context) {
	const retry, retryModules = 5 * time.Second, 30 * time.Second
	timer, failed := time.NewTimer(retry), time.NewTicker(retryModules)
	defer timer.Stop()
	defer failed.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
		case <-failed.C:
			p.RetryFailed()
			continue
		}
		p.Exclusive.Lock()
		if err := p.Reconcile(); err != nil {
			p.Log.Error("the node is not as desired; trying again", "error", err, "after", retry)
			timer.Reset(retry)
		}
		p.Exclusive.Unlock()
		if p.Starting() {
			close(p.reconciled)
			p.Now.Recorder.Enqueue(status.Itself)
		}
		p.Budgets.Poke()
	}
}

// RetryFailed prepares the modules that could not run when the agent started.
func (p *Pipeline) RetryFailed() {
	p.Exclusive.Lock()
	defer p.Exclusive.Unlock()
	for name, d := range p.Now.Modules {
		next := p.Preparer.Again(d)
		if next == nil {
			continue
		}
		again := sets.State{Desired: p.Now.Desired, Modules: map[string]*deploy.Module{name: next}}
		if err := sets.Check(p.Now.Sets(), again); err != nil {
			next.Release(d)
			failed := *d
			failed.Err = err
			next = &failed
		} else {
			p.Log.Info("module can run again", "module", name)
			p.RequestReconcile()
		}
		p.Lock.Lock()
		p.Now.Modules[name] = next
		p.Lock.Unlock()
		p.Now.Recorder.Enqueue(status.Resource{Kind: v1.KindModule, Name: name})
	}
}

// specs returns the services that the watcher looks for.
func specs(d resource.State) map[string]v1.ServiceSpec {
	out := map[string]v1.ServiceSpec{}
	for name, s := range resource.Service.All(d) {
		out[name] = s.Spec
	}
	return out
}

// Reconcile brings the node to the desired state after services have changed or the agent has started. A module that
// the kernel rejects, or whose labels its chain cannot carry, is disabled according to its failure policy, and a point
// that another program holds is skipped, so that all others keep running.
func (p *Pipeline) Reconcile() error {
	p.Lock.Lock()
	p.Now.Functions = p.Functions.Load()
	p.Lock.Unlock()
	seen, err := p.Observer.Observe(p.Now.Observation(p.Now.Desired))
	if err == nil {
		err = p.reconcileTo(p.target(p.Now.Desired, nil, seen))
	}
	for p.disable(err) { // disables at least one running module each time
		err = p.reconcileTo(p.target(p.Now.Desired, nil, seen))
	}
	p.Lock.Lock()
	p.Now.Problem = err
	p.Now.EnqueueAll()
	p.Lock.Unlock()
	return err
}

// reconcileTo brings the kernel to t. Unlike a change that a client requests, it skips points that fail: there will be
// another attempt.
func (p *Pipeline) reconcileTo(t target) error {
	points, err := t.Place()
	if err != nil {
		return err
	}
	k := p.kernelOf(t.modules)
	defer k.Close()
	_ = p.Sets.Fill(p.Now.Desired, t.sets()) // a set that fails does not prevent chains from being attached
	r, err := p.converge(t, k, points, p.Store.RecoveryPending(), apply.Policy{
		Skip:   func(chain.Point) bool { return true },
		Commit: func() error { p.tracer.forget(); return nil },
	})
	if err != nil {
		return errors.Join(err, p.Sets.Problem(""))
	}
	p.Lock.Lock()
	for _, text := range p.Now.NoteOrder(r, points) {
		p.Log.Warn("a chain runs its modules in another order", "chain", text)
	}
	p.Lock.Unlock()
	if len(r.Steps) > r.Draining {
		p.Log.Info("reconciled", "steps", len(r.Steps), "attachPoints", len(points))
	}
	return errors.Join(append(slices.Collect(maps.Values(r.Busy)), p.Sets.Problem(""))...)
}
