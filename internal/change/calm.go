// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"
	"errors"
	"time"

	"github.com/kerb-edge/kerb/internal/dataplane"
)

// linkAfter is the time without changes after which chains are linked that no packet needs yet: verifying one takes as
// long as verifying the chain of a change, and successive changes need not wait for it.
const linkAfter = time.Second

// Calm links chains while no change follows: those that the next service will need, and timed copies of the running
// ones.
type Calm struct {
	*Pipeline
	Refused map[string]bool // by identity: chains, and chains whose timed copy, the kernel has rejected
}

func (c Calm) run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-c.reconciled: // what is missing now has priority
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

// linkReady links one of the chains that future services will need, so that a change waits for one chain at most. It
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
		return err == nil || c.Refused[id] // other errors may be temporary
	}
	return false
}

// TimeChains makes running chains measure the latency of their modules. A chain that failed is tried again after the
// next change, unless the verifier rejected it. Changes are not excluded: if a change removes a chain in the meantime,
// the copy is removed with it.
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

// note remembers a chain that the verifier has rejected, or that cannot carry its labels. Other errors may be
// temporary.
func (c Calm) note(id string, err error) {
	var rejected *dataplane.RejectedError
	var labels *dataplane.LabelsError
	if errors.As(err, &rejected) || errors.As(err, &labels) {
		c.Refused[id] = true
	}
}
