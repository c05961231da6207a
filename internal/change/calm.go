// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"
	"errors"
	"time"

	"github.com/kerb-edge/kerb/internal/dataplane"
)

// linkAfter is how long after the last change chains are linked that no packet waits for: to verify one takes as long
// as to verify the chain of a change, and changes that follow each other need not wait for it.
const linkAfter = time.Second

// Calm links chains when no change follows: those that the next service will need, and timed copies of those that run.
type Calm struct {
	*Pipeline
	Refused map[string]bool // chains that the kernel does not take, and those whose copy it does not, by identity
}

func (c Calm) run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-c.reconciled: // what is missing now comes first
	}
	timer := time.NewTimer(linkAfter)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.converged:
			timer.Reset(linkAfter)
			continue
		case <-timer.C:
		}
		for ctx.Err() == nil && c.linkReady() {
		}
		c.TimeChains(ctx)
	}
}

// linkReady links one of the chains of services that may come, as a change that follows waits for no more than one. It
// reports whether there may be more.
func (c Calm) linkReady() bool {
	c.Exclusive.Lock()
	defer c.Exclusive.Unlock()
	ready, err := c.Now.Inputs().Ready(c.Now.Points)
	if err != nil {
		return false // a cycle, which the node's conditions report
	}
	k := c.kernelOf(c.Now.Modules)
	defer k.Close()
	for _, spec := range ready {
		id := spec.ID()
		if c.Refused[id] || c.Dataplane.HasChain(spec) {
			continue
		}
		err := k.CreateChain(spec)
		if c.note(id, err); err != nil {
			c.Log.Warn("a chain is not linked before a service needs it", "chain", id, "error", err)
		}
		return err == nil || c.Refused[id] // others may pass with the next change
	}
	return false
}

// TimeChains has the chains that run measure the latency of their modules. What failed is tried again after the next
// change, unless the verifier has refused it. It excludes no change: should a change remove a chain meanwhile, its copy
// goes with it.
func (c Calm) TimeChains(ctx context.Context) {
	c.Lock.Lock()
	chains, modules := c.Now.Running()
	c.Lock.Unlock()
	for id, spec := range chains {
		if ctx.Err() != nil || c.Refused[id] {
			continue
		}
		if err := c.Dataplane.Time(spec, modules, c.Slower); err != nil {
			c.note(id, err)
			c.Log.Warn("the latency of the modules of a chain is not measured", "chain", id, "error", err)
		}
	}
}

// note remembers a chain that the verifier has refused, or that cannot carry its labels. Other errors may pass.
func (c Calm) note(id string, err error) {
	var rejected *dataplane.RejectedError
	var labels *dataplane.LabelsError
	if errors.As(err, &rejected) || errors.As(err, &labels) {
		c.Refused[id] = true
	}
}
