// SPDX-License-Identifier: Apache-2.0

package change

import (
	"errors"
	"maps"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/plan"
)

// admit rejects, before any attach point is switched, modules that the kernel or an operator's budget would reject:
// those that nothing selects yet, and those with such a budget. Other modules cannot be rejected by a measurement, and
// are measured after the change, since a measurement takes as long as the change itself.
func (k kernel) admit(now map[string]*deploy.Module, t target, points plan.Placements, budgets *apply.Budgets) error {
	used := map[string]bool{}
	for _, p := range points {
		for _, m := range p.Chain.Members {
			used[m.Name] = true
		}
	}
	var refused []error
	for _, name := range slices.Sorted(maps.Keys(t.modules)) {
		d := t.modules[name]
		if d.Err != nil || now[name] == d {
			continue
		}
		if !used[name] && !d.SameProgram(now[name]) { // rejected now, not when the first service appears
			if err := k.Verify(name); err != nil {
				return err
			}
		}
		if d.Limits().ByOperator() {
			c := d.Candidate()
			c.Measure = func() (chain.Cost, error) { return k.Measure(name, d.AttachedHooks()...) }
			refused = append(refused, budgets.Check(c))
		}
		k.Close() // only one module's maps exist at a time
	}
	return errors.Join(refused...)
}

// compareCosts measures the modules that a change would replace, the old and the new one in immediate succession.
// Packets of the node use neither.
func (k kernel) compareCosts(before map[string]*deploy.Module, t target) (out []v1.CostChange) {
	for _, name := range slices.Sorted(maps.Keys(t.modules)) {
		d, was := t.modules[name], before[name]
		if d.Err != nil || was != nil && was.Err == nil && costsAs(was, d) {
			continue
		}
		c := v1.CostChange{Module: name, After: costOf(k.Bound, d)}
		k.Close() // only one module's maps exist at a time
		if was != nil && was.Err == nil {
			b := bindAlone(k.Dataplane, was)
			c.Before = costOf(b, was)
			b.Close()
		}
		out = append(out, c)
	}
	return out
}

// costsAs reports whether two modules cost the same, because code, config and hooks are equal.
func costsAs(a, b *deploy.Module) bool {
	return a.Candidate().Key == b.Candidate().Key && a.Values == b.Values
}

// costOf measures a module; nil if it cannot be measured.
func costOf(b *dataplane.Bound, d *deploy.Module) *v1.Cost {
	cost, err := b.Measure(d.Name(), d.AttachedHooks()...)
	return apply.Measured{Cost: cost, At: time.Now(), Err: err}.View()
}

// bindAlone returns the data plane with this module only. It needs neither the control plane nor a lock.
func bindAlone(dp *dataplane.Dataplane, d *deploy.Module) *dataplane.Bound {
	return dp.Bind(map[string]dataplane.Module{d.Name(): d.Dataplane})
}

// candidates returns the running modules, each to be measured on separate maps.
func (p *Pipeline) candidates() (out []apply.Candidate) {
	p.Exclusive.Lock() // a change has measured modules that do not run yet
	defer p.Exclusive.Unlock()
	p.Lock.Lock()
	defer p.Lock.Unlock()
	for _, name := range slices.Sorted(maps.Keys(p.Now.Modules)) {
		d := p.Now.Modules[name]
		if d.Err != nil {
			continue
		}
		c := d.Candidate()
		c.Measure = func() (chain.Cost, error) {
			b := bindAlone(p.Dataplane, d)
			b.Background = true
			defer b.Close()
			return b.Measure(name, d.AttachedHooks()...)
		}
		out = append(out, c)
	}
	return out
}
