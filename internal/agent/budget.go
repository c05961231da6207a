// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"maps"
	"slices"

	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/plan"
)

// admit rejects what the kernel or a budget would, before anything is switched: modules that nothing selects yet, and
// those that exceed a budget of the operator's. No result rejects other modules: they are measured after the change,
// as that takes as long as the change itself.
func (a *Agent) admit(t target, k kernel, points plan.Placements) error {
	used := map[string]bool{}
	for _, p := range points {
		for _, m := range p.Chain.Members {
			used[m.Name] = true
		}
	}
	var refused []error
	for _, name := range slices.Sorted(maps.Keys(t.modules)) {
		d, before := t.modules[name], a.now.Modules[name]
		if d.Err != nil || before == d {
			continue
		}
		if !used[name] && !d.SameProgram(before) { // rejected now and not when the first service appears
			if err := k.Verify(name); err != nil {
				return err
			}
		}
		if d.Limits().ByOperator() {
			c := d.Candidate()
			c.Measure = func() (chain.Cost, error) { return k.Measure(&a.meter, name, d.AttachedHooks()...) }
			refused = append(refused, a.budgets.Check(c))
		}
		k.Close() // one module's maps at a time
	}
	return errors.Join(refused...)
}

// candidates are the modules that run, each to be measured on maps of its own.
func (a *Agent) candidates() (out []apply.Candidate) {
	a.changes.Lock() // a change has measured what does not run yet
	defer a.changes.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(a.now.Modules)) {
		d := a.now.Modules[name]
		if d.Err != nil {
			continue
		}
		c := d.Candidate()
		c.Measure = func() (chain.Cost, error) {
			k := kernel{a.dp.Bind(map[string]dataplane.Module{name: d.Dataplane}), a.observeKernel} // without a.live: not locked
			k.Background = true
			defer k.Close()
			return k.Measure(&a.meter, name, d.AttachedHooks()...)
		}
		out = append(out, c)
	}
	return out
}
