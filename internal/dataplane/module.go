// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
)

// Module is what a map set is made from.
type Module struct {
	Name    string // name of the module on the node
	ID      string // identity of the map set: equal for equal code and config, values apart
	Package string // with its version, for people
	// Values is the identity of the values of KERB_TUNABLES; empty if the module has none.
	Values string
	// Spec returns a fresh copy of the object for a hook, nil if the package does not run there.
	Spec func(chain.Hook) (*ebpf.CollectionSpec, error)
	// Tunables returns the map of KERB_TUNABLES as Spec has it, at no cost. It may be nil: then Spec is asked.
	Tunables   func() *ebpf.MapSpec
	ConfigMaps []string // re-created for each map set; all others are carried over
	SharedMaps []string // shared by name with other modules
	// Migrate has the rules (MigrateExtend and others) for carried-over maps that differ from the running map set's.
	Migrate    map[string]string
	Settings   sdk.Settings
	Fill       func(sdk.Maps) error // may be nil
	Open       sdk.Maps             // of the map set ID as Maps returns them, if the caller has them open
	FailClosed bool
	Frags      bool // copes with XDP packets in several buffers
	Sockets    bool // runs on sockets, and on no packets
	// DeferredRedirect: modules behind see the packets that it redirects on TC.
	DeferredRedirect bool
	BuiltIn          bool // the same code is verified on new kernels, too, by the tests of this build
}
