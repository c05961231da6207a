// SPDX-License-Identifier: Apache-2.0

package dataplane

import "github.com/kerb-edge/kerb/internal/chain"

// Bound is a data plane with the modules of one change: its callers need only their names.
type Bound struct {
	*Dataplane
	Modules map[string]Module // by name
}

// CreateGeneration creates the maps of a module: see Dataplane.CreateGeneration.
func (b Bound) CreateGeneration(module, _, from string) error {
	return b.Dataplane.CreateGeneration(b.Modules[module], from)
}

// CreateChain links, verifies and pins a chain: see Dataplane.CreateChain.
func (b Bound) CreateChain(spec chain.Spec) error { return b.Dataplane.CreateChain(spec, b.Modules) }
