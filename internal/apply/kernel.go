// SPDX-License-Identifier: Apache-2.0

// Package apply executes plans: it creates new programs and maps, switches attach points, and removes what was
// replaced. After an error it undoes its steps. It accesses the kernel only through an interface, so that its tests
// need no root.
package apply

import "github.com/kerb-edge/kerb/internal/chain"

// Kernel is the executor's interface to a data plane. CreateChain is safe for concurrent use, and so are Attach and
// Detach on different hooks of interfaces.
type Kernel interface {
	Observe() (chain.State, error)

	// CreateMapSet creates and fills the maps of a module, and takes over those maps of the map set from that the module
	// can share. from may be empty, and values too, if the module has none. An existing map set stays unchanged.
	CreateMapSet(module, id, values, from string) error
	// SetValues switches packets to other values of an existing map set: the new ones of the module, or the previous ones.
	SetValues(module, id, values string) error
	// RemoveMapSet and the other removals succeed if there is nothing to remove.
	RemoveMapSet(module, id string) error

	// CreateChain links and verifies a chain of existing map sets. An existing chain stays unchanged.
	CreateChain(chain.Spec) error
	// RemoveChain removes a chain that is no longer attached. While its sockets drain, the error is a
	// *chain.DrainingError.
	RemoveChain(chain.Pinned) error
	// RemoveChainSpec removes a chain that has never run.
	RemoveChainSpec(chain.Spec) error

	// Attach attaches a chain to a point and replaces the one that runs there. It returns chain.ErrGone and chain.ErrBusy
	// where they apply.
	Attach(chain.Point, chain.Spec) error
	AttachPinned(chain.Point, chain.Pinned) error
	Detach(chain.Point) error
	// Expedite prepares the kernel for attaching and detaching. The caller calls restore afterwards.
	Expedite() (restore func() error)
}
