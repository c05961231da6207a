// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"time"

	"github.com/kerb-edge/kerb/internal/dataplane"
)

// linkAfter is how long after the last change chains are linked that no packet waits for: to verify one takes as long
// as to verify the chain of a change, and changes that follow each other need not wait for it.
const linkAfter = time.Second

// linkCalm links chains when no change follows: those that the next service will need, and timed copies of those that
// run.
func (a *Agent) linkCalm(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-a.reconciled: // what is missing now comes first
	}
	refused := map[string]bool{} // chains that the kernel does not take, and those whose copy it does not, by identity
	timer := time.NewTimer(linkAfter)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.converged:
			timer.Reset(linkAfter)
			continue
		case <-timer.C:
		}
		for ctx.Err() == nil && a.linkReady(refused) {
		}
		a.timeChains(ctx, refused)
	}
}

// linkReady links one of the chains of services that may come, as a change that follows waits for no more than one. It
// reports whether there may be more.
func (a *Agent) linkReady(refused map[string]bool) bool {
	a.changes.Lock()
	defer a.changes.Unlock()
	ready, err := a.now.Inputs().Ready(a.now.Points)
	if err != nil {
		return false // a cycle, which the node's conditions report
	}
	k := a.kernelOf(a.now.Modules)
	defer k.Close()
	for _, spec := range ready {
		id := spec.ID()
		if refused[id] || a.dp.HasChain(spec) {
			continue
		}
		err := k.CreateChain(spec)
		var rejected *dataplane.RejectedError
		if refused[id] = errors.As(err, &rejected); err != nil {
			a.log.Warn("a chain is not linked before a service needs it", "chain", id, "error", err)
		}
		return err == nil || refused[id] // others may pass with the next change
	}
	return false
}
