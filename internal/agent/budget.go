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
// those that cost too much. It measures new modules, those whose code changes, and those that the operator has set a
// budget for. With another config only, a module is measured afterwards, so that a changed rule is in the kernel at
// once.
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
		if !d.OnlyConfigured(before) {
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
			defer k.Close()
			return k.Measure(&a.meter, name, d.AttachedHooks()...)
		}
		out = append(out, c)
	}
	return out
}
