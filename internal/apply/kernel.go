// SPDX-License-Identifier: Apache-2.0

// Package apply executes plans: it creates what is new, switches attach points, and removes what was replaced. After an
// error it undoes what it did. It knows the kernel by an interface only, so that its tests need no root.
package apply

import "github.com/kerb-edge/kerb/internal/chain"

// Kernel is what the executor needs of a data plane. CreateChain is safe for concurrent use, and so are Attach and
// Detach on different hooks of interfaces.
type Kernel interface {
	Observe() (chain.State, error)

	// CreateMapSet creates and fills the maps of a module; those that it can take over from another map set it
	// does. from may be empty, and so may values, if the module has none. A map set that exists stays as it is.
	CreateMapSet(module, id, values, from string) error
	// SetValues has packets meet other values of a map set that exists: those of the module, or those of before.
	SetValues(module, id, values string) error
	// RemoveMapSet and the other removals succeed where there is nothing to remove.
	RemoveMapSet(module, id string) error

	// CreateChain links and verifies a chain of map sets that exist. A chain that exists stays as it is.
	CreateChain(chain.Spec) error
	// RemoveChain removes a chain that runs nowhere any more. While its sockets drain, the error is a
	// *chain.DrainingError.
	RemoveChain(chain.Pinned) error
	// RemoveChainSpec removes a chain that has never run.
	RemoveChainSpec(chain.Spec) error

	// Attach attaches a chain to a point, in place of the one that runs there. Errors are chain.ErrGone and chain.ErrBusy
	// where they apply.
	Attach(chain.Point, chain.Spec) error
	AttachPinned(chain.Point, chain.Pinned) error
	Detach(chain.Point) error
	// Expedite prepares the kernel for points to be attached or detached. The caller calls restore afterwards.
	Expedite() (restore func() error)
}
