// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"net/netip"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// VirtualServiceUser is a Compiled of a package whose manifest says resources: [virtualServices]. After each start of a
// generation it is notified of all virtual services, in several calls if there are many, and then of differences. Calls come
// one at a time. An error makes the agent begin again with all of them, a moment later.
type VirtualServiceUser interface {
	VirtualServices(live Live, update VirtualServiceUpdate) error
}

// VirtualServiceUpdate is a change of the virtual services.
type VirtualServiceUpdate struct {
	// Generation is the one that this is for.
	Generation string `json:"generation"`
	// Reset: the first part of all virtual services. What is known already stays in use until Complete.
	Reset bool `json:"reset,omitempty"`
	// Complete: the last part. What was not put since Reset is no more.
	Complete bool `json:"complete,omitempty"`

	Put    []VirtualService `json:"put,omitempty"`    // new or changed
	Remove []string         `json:"remove,omitempty"` // by name
	// Unknown are requested addresses that no resolver knows.
	Unknown []netip.Addr `json:"unknown,omitempty"`
}

// VirtualService is one as control planes see it: defaults are filled in, every instance has its addresses (one that has
// none now is left out), and addresses are written in the shortest form.
type VirtualService struct {
	Name string                      `json:"name"`
	Spec v1alpha1.VirtualServiceSpec `json:"spec"`
	// Dynamic: a resolver found it because it was wanted, and forgets it when it is idle.
	Dynamic bool `json:"dynamic,omitempty"`
}

// Wanted is the answer to the agent's question what the control plane wants of it.
type Wanted struct {
	Addresses []netip.Addr `json:"addresses,omitempty"` // packets are sent to them, and no virtual service has them
	Idle      []string     `json:"idle,omitempty"`      // dynamic virtual services that are no longer in use
	Give      []Give       `json:"give,omitempty"`      // what clients are to be sent
	// Executables are processes whose programs are to be examined.
	Executables []Process `json:"executables,omitempty"`
}

// InstanceFollower is a Compiled that is told at once when an instance comes, changes or goes. Those that are there from the
// start are in Live.Interface only. Calls come one at a time.
type InstanceFollower interface {
	InstanceChanged(live Live, i Instance, there bool)
}
