// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"net/netip"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// VirtualServiceUser is a Running of a package with capability virtualServices. After each start of a
// map set it receives all virtual services, in several calls if there are many, and then differences. Calls come
// one at a time. After an error the agent sends all of them again, a moment later.
type VirtualServiceUser interface {
	VirtualServices(update VirtualServiceUpdate) error
}

// VirtualServiceUpdate is a change of the virtual services.
type VirtualServiceUpdate struct {
	// MapSet is the one that this is for.
	MapSet string `json:"generation"`
	// Reset: the first part of all virtual services. What is known already stays in use until Complete.
	Reset bool `json:"reset,omitempty"`
	// Complete: the last part. What was not put since Reset no longer exists.
	Complete bool `json:"complete,omitempty"`

	Put    []VirtualService `json:"put,omitempty"`    // new or changed
	Remove []string         `json:"remove,omitempty"` // by name
	// Unknown are requested addresses that no virtual service has.
	Unknown []netip.Addr `json:"unknown,omitempty"`
}

// VirtualService is one as control planes see it: defaults are filled in, every instance has its addresses (one that
// has none now is left out), and addresses are written in the shortest form.
type VirtualService struct {
	Name string                      `json:"name"`
	Spec v1alpha1.VirtualServiceSpec `json:"spec"`
	// Dynamic: a resolver found it because some control plane requested it, and forgets it when all that know it have
	// released it. One that uses it again after that requests one of its addresses.
	Dynamic bool `json:"dynamic,omitempty"`
}

// Requests are what the control plane asks of the agent: the answer to wanted.
type Requests struct {
	Resolve  []netip.Addr `json:"addresses,omitempty"` // destinations of packets that no known virtual service has
	Release  []string     `json:"idle,omitempty"`      // dynamic virtual services that are not used any more
	SendMaps []ClientMaps `json:"give,omitempty"`      // messages with maps for clients
	Arrive   []Arrival    `json:"arrive,omitempty"`    // frames that arrive at interfaces of the node
	// MapSet is the one that releases. The agent ignores that of another one, which may use what it has received.
	MapSet string `json:"generation,omitempty"`
}

// Empty reports whether there are none.
func (r *Requests) Empty() bool {
	return len(r.Resolve)+len(r.Release)+len(r.SendMaps)+len(r.Arrive) == 0
}

// Arrival is a frame, with its Ethernet header, that an interface of the node is to receive.
type Arrival struct {
	Ifindex uint32 `json:"ifindex"`
	Frame   []byte `json:"frame"`
}

// AttachmentWatcher is a Running that is notified when an attachment is added, changes or is removed. Attachments
// that exist at Open are in Live.Attachments only. Calls are sequential.
type AttachmentWatcher interface {
	AttachmentChanged(i Attachment, there bool)
}
