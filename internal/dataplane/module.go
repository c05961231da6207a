// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
)

// Module is the input from which a map set is created.
type Module struct {
	Name    string // name of the module on the node
	ID      string // identity of the map set: equal for equal code and config, regardless of values
	Package string // with its version, for display
	// Values is the identity of the values of KERB_TUNABLES; empty if the module has none.
	Values string
	// Spec returns a fresh copy of the object for a hook, nil if the package does not run there.
	Spec func(chain.Hook) (*ebpf.CollectionSpec, error)
	// Tunables returns the map of KERB_TUNABLES in Spec without parsing the object. It may be nil: then Spec is used.
	Tunables   func() *ebpf.MapSpec
	ConfigMaps []string // re-created for each map set; all others are carried over
	SharedMaps []string // shared by name with other modules
	// Migrate has the rules (MigrateExtend and others) for carried-over maps that differ from those of the running map
	// set.
	Migrate    map[string]string
	Settings   sdk.Settings
	Fill       func(sdk.Maps) error // may be nil
	Open       sdk.Maps             // of the map set ID, as from Maps, if the caller has them open
	FailClosed bool
	Frags      bool // supports XDP packets in several buffers
	Sockets    bool // runs on sockets, and not on packets
	// DeferredRedirect: subsequent modules see the packets that it redirects on TC.
	DeferredRedirect bool
	BuiltIn          bool // this build's tests verify the same code on new kernels, too
}
