// SPDX-License-Identifier: Apache-2.0

package change

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/plan"
)

// disable disables the modules for which the kernel cannot run a chain, and reports whether there are any: those that
// it rejects even alone, and one that it accepts alone but whose labels the chain cannot carry.
func (p *Pipeline) disable(err error) (found bool) {
	var labels *dataplane.LabelsError
	if errors.As(err, &labels) {
		return p.disableModule(labels.Module, labels)
	}
	var rejected *dataplane.RejectedError
	if !errors.As(err, &rejected) {
		return false
	}
	k := p.kernelOf(p.Now.Modules)
	defer k.Close()
	for _, name := range rejected.Modules {
		if d := p.Now.Modules[name]; d == nil || d.Err != nil {
			continue
		}
		var alone *dataplane.RejectedError // not a lack of memory or descriptors, which is temporary
		if err := k.Verify(name); errors.As(err, &alone) {
			found = p.disableModule(name, err) || found
		}
	}
	return found
}

// disableModule marks a module as one that cannot run, and reports whether it was not marked before.
func (p *Pipeline) disableModule(name string, why error) bool {
	d := p.Now.Modules[name]
	if d == nil || d.Err != nil {
		return false
	}
	p.Log.Error("module cannot run", "module", name, "error", why)
	if d.Control != nil {
		go d.Control.Close()
	}
	p.Lock.Lock()
	p.Now.Modules[name] = deploy.Unavailable(d.Resource, why, d.Dataplane.FailClosed, d.Rank)
	p.Lock.Unlock()
	return true
}

// findRejected finds the new module because of which the kernel rejects a chain: the one that it rejects alone. If it
// accepts each of them alone, the error of the chain is returned unchanged.
func findRejected(before map[string]*deploy.Module, t target, k kernel, err error) error {
	var rejected *dataplane.RejectedError
	if isHalfUndone(err) || !errors.As(err, &rejected) || len(rejected.Modules) < 2 {
		return err
	}
	for _, name := range rejected.Modules {
		d := t.modules[name]
		if d == nil || d.Err != nil || before[name] == d {
			continue
		}
		if alone := k.Verify(name); errors.As(alone, &rejected) {
			return alone
		}
	}
	return err
}

// forOperator converts kernel errors to errors for the operator.
func forOperator(err error) error {
	var unstored *commitError
	if errors.As(err, &unstored) || isHalfUndone(err) { // the request is not the only problem
		return err
	}
	var rejected *dataplane.RejectedError
	if errors.As(err, &rejected) {
		return &apierrors.Rejected{Summary: rejected.Error(), Log: rejected.Log}
	}
	if errors.Is(err, chain.ErrBusy) {
		return &apierrors.Conflict{Reason: err.Error()}
	}
	var labels *dataplane.LabelsError
	var migration *dataplane.MigrationError
	if errors.As(err, &labels) || errors.As(err, &migration) {
		return &apierrors.Conflict{Reason: err.Error()}
	}
	for _, kind := range []error{dataplane.ErrNoEntry, dataplane.ErrNoConstant, dataplane.ErrLicense} {
		if errors.Is(err, kind) {
			return &apierrors.Invalid{Reason: err.Error()}
		}
	}
	return err
}

func orderError(err error) error {
	var cycle *plan.CycleError
	if errors.As(err, &cycle) {
		return &apierrors.Invalid{Resource: "Module " + cmp.Or(cycle.Modules...), Field: "spec.order",
			Reason: fmt.Sprint(err)}
	}
	return err
}

// rolledBack returns the outcome of a change that failed after its first step.
func rolledBack(err error) (reason, message string) {
	var failed *apply.RollbackError
	if errors.As(err, &failed) {
		return "RollbackFailed", fmt.Sprintf("the kernel is not as before: %v; after: %v", failed.Undo, failed.Err)
	}
	return "RolledBack", "the kernel is as before: " + err.Error()
}

// isHalfUndone reports whether the kernel is in neither the desired nor the previous state.
func isHalfUndone(err error) bool {
	var failed *apply.RollbackError
	return errors.As(err, &failed)
}
