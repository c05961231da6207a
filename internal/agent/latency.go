// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
)

// timeChains has the chains that run measure the latency of their modules. What failed is tried again after the next
// change, unless the verifier has refused it. It excludes no change: should a change remove a chain meanwhile, its copy
// goes with it.
func (a *Agent) timeChains(ctx context.Context, refused map[string]bool) {
	chains, modules := a.running()
	for id, spec := range chains {
		if ctx.Err() != nil || refused[id] {
			continue
		}
		if err := a.dp.Time(spec, modules); err != nil {
			var rejected *dataplane.RejectedError
			refused[id] = errors.As(err, &rejected)
			a.log.Warn("the latency of the modules of a chain is not measured", "chain", id, "error", err)
		}
	}
}

// running are the chains of packets that run, and the modules of all chains.
func (a *Agent) running() (map[string]chain.Spec, map[string]dataplane.Module) {
	a.mu.Lock()
	defer a.mu.Unlock()
	chains, modules := map[string]chain.Spec{}, map[string]dataplane.Module{}
	for p, place := range a.now.Points {
		if p.Side.SeesPackets() {
			chains[place.Chain.ID()] = place.Chain
		}
	}
	for name, d := range a.now.Modules {
		modules[name] = d.Dataplane
	}
	return chains, modules
}
