// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/plan"
)

// costKey: the identity of code and config, and the hooks that were measured.
func (d *deployment) costKey() string {
	return fmt.Sprint(d.module.Name, " ", d.module.ID, " ", d.hooks())
}

// hooks are those that the module runs on where it is attached.
func (d *deployment) hooks() []chain.Hook {
	var out []chain.Hook
	if d.Resource.Spec.Attach.Services != "" {
		out = append(out, d.Hook(true, "veth"))
	}
	if len(d.Resource.Spec.Attach.Interfaces) > 0 {
		out = append(out, d.Hook(false, ""), d.Hook(false, "veth"))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// limits of a module that can run.
func (d *deployment) limits() apply.Limits {
	return apply.LimitsOf(d.Resource.Spec.Budget, d.pkg.Budget)
}

func (a *Agent) candidate(d *deployment, k kernel) apply.Candidate {
	name := d.module.Name
	return apply.Candidate{Module: name, Key: d.costKey(), Limits: d.limits(),
		Measure: func() (chain.Cost, error) { return k.Measure(&a.meter, name, d.hooks()...) }}
}

// admit rejects what the kernel or a budget would, before anything is switched: modules that nothing selects yet, and
// those that cost too much. It measures new modules, those whose code changes, and those that the operator has set a
// budget for. With another config only, a module is measured afterwards, so that a changed rule is in the kernel at
// once.
func (a *Agent) admit(t target, k kernel, points plan.Placements, steps []plan.Step, dryRun bool) error {
	used, created := map[string]bool{}, map[string]plan.Step{}
	for _, p := range points {
		for _, m := range p.Chain.Members {
			used[m.Name] = true
		}
	}
	for _, s := range steps {
		if s.Action == plan.CreateGeneration && !dryRun { // to fill maps can change state that it carries over
			created[s.Module] = s
		}
	}
	var refused []error
	for _, name := range slices.Sorted(maps.Keys(t.modules)) {
		d, before := t.modules[name], a.modules[name]
		measured := !d.onlyConfigured(before)
		if d.err != nil || before == d || used[name] && !measured {
			continue
		}
		if s, ok := created[name]; ok {
			if err := k.Build(name, s.From); err != nil {
				return fmt.Errorf("%s: %w", s.Action, err)
			}
		}
		if !used[name] { // rejected now and not when the first service appears
			if err := k.Verify(name); err != nil {
				return err
			}
		}
		if measured {
			refused = append(refused, a.budgets.Check(a.candidate(d, k)))
		}
	}
	return errors.Join(refused...)
}

// onlyConfigured reports whether d differs from before in its config only, and the operator has set no budget.
func (d *deployment) onlyConfigured(before *deployment) bool {
	return d.pkg != nil && before != nil && before.pkg != nil && before.pkg.Digest == d.pkg.Digest && !d.limits().ByOperator()
}

// candidates are the modules that run, each to be measured on a replica of its own.
func (a *Agent) candidates() (out []apply.Candidate) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(a.modules)) {
		d := a.modules[name]
		if d.err != nil {
			continue
		}
		c := a.candidate(d, kernel{})
		c.Measure = func() (chain.Cost, error) {
			k := a.kernelOf(map[string]*deployment{name: d})
			defer k.Close()
			return k.Measure(&a.meter, name, d.hooks()...)
		}
		out = append(out, c)
	}
	return out
}

// costOf returns what is known of a module's cost.
func (a *Agent) costOf(d *deployment) (apply.Measured, bool) {
	if d == nil || d.err != nil {
		return apply.Measured{}, false
	}
	return a.budgets.Get(d.costKey())
}
