// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/internal/plan"
)

// verifyIdle loads new modules that no attach point selects, so that a package that the kernel rejects is rejected
// now and not when the first service appears.
func (a *Agent) verifyIdle(t target, points plan.Placements) error {
	used := map[string]bool{}
	for _, p := range points {
		for _, m := range p.Chain.Members {
			used[m.Name] = true
		}
	}
	for name, d := range t.modules {
		if used[name] || d.err != nil || a.modules[name] == d {
			continue
		}
		if err := d.verify(); err != nil {
			return err
		}
	}
	return nil
}

// verify loads the module alone on each of its hooks, and unloads it again.
func (d *deployment) verify() error {
	if d.onSockets() {
		l, err := dataplane.LoadSockets(d.module)
		if err == nil {
			l.Close()
		}
		return err
	}
	for side, dir := range plan.ServiceSides {
		if !d.Entries[side.Hook()][dir] {
			continue
		}
		l, err := dataplane.Load(side, dir, d.module)
		if err != nil {
			return err
		}
		l.Close()
	}
	return nil
}

// disable disables those of the modules that the kernel rejects even alone, and reports whether there are any.
func (a *Agent) disable(names []string) bool {
	found := false
	for _, name := range names {
		d := a.modules[name]
		if d == nil || d.err != nil {
			continue
		}
		var rejected *dataplane.RejectedError // not for want of memory or descriptors, which passes
		if err := d.verify(); errors.As(err, &rejected) {
			a.log.Error("module cannot run", "module", name, "error", err)
			if d.plane != nil {
				go d.plane.Close()
			}
			a.mu.Lock()
			a.modules[name] = unavailable(d.Resource, err, d.module.FailClosed)
			a.mu.Unlock()
			found = true
		}
	}
	return found
}

// findRejected finds the module for which the kernel rejects a chain: of those that are new, the one that it rejects alone.
// If it accepts each of them alone, the error stays that of the chain.
func (a *Agent) findRejected(t target, err error) error {
	var rejected *dataplane.RejectedError
	if !errors.As(err, &rejected) || len(rejected.Modules) < 2 {
		return err
	}
	for _, name := range rejected.Modules {
		d := t.modules[name]
		if d == nil || d.err != nil || a.modules[name] == d {
			continue
		}
		if alone := d.verify(); errors.As(alone, &rejected) {
			return alone
		}
	}
	return err
}

// explain gives kernel errors the form that reaches the operator.
func (a *Agent) explain(err error) error {
	var unstored *commitError
	if errors.As(err, &unstored) {
		return err
	}
	var rejected *dataplane.RejectedError
	if errors.As(err, &rejected) {
		return &fault.Rejected{Plain: rejected.Error(), Log: rejected.Log}
	}
	if errors.Is(err, chain.ErrBusy) {
		return &fault.Conflict{Reason: err.Error()}
	}
	var migration *dataplane.MigrationError
	if errors.As(err, &migration) {
		return &fault.Conflict{Reason: err.Error()}
	}
	for _, kind := range []error{dataplane.ErrNoEntry, dataplane.ErrNoConstant, dataplane.ErrLicense} {
		if errors.Is(err, kind) {
			return &fault.Invalid{Reason: err.Error()}
		}
	}
	return err
}

func orderError(err error) error {
	var cycle *plan.CycleError
	if errors.As(err, &cycle) {
		return &fault.Invalid{Resource: "Module " + cmp.Or(cycle.Modules...), Field: "spec.order", Reason: fmt.Sprint(err)}
	}
	return err
}
