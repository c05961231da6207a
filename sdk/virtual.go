// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"net/netip"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// VirtualServiceUser is a Running of a package with capability virtualServices. Whenever a map set starts, it receives
// all virtual services, in several calls if there are many, and then differences. Calls are sequential. After an error
// the agent sends all of them again shortly afterwards.
type VirtualServiceUser interface {
	VirtualServices(update VirtualServiceUpdate) error
}

// VirtualServiceUpdate is a change of the virtual services.
type VirtualServiceUpdate struct {
	// MapSet is the map set that the update is for.
	MapSet string `json:"generation"`
	// Reset marks the first part of all virtual services. Known virtual services stay in use until Complete.
	Reset bool `json:"reset,omitempty"`
	// Complete marks the last part. Virtual services that were not put since Reset no longer exist.
	Complete bool `json:"complete,omitempty"`

	Put    []VirtualService `json:"put,omitempty"`    // new or changed
	Remove []string         `json:"remove,omitempty"` // by name
	// Unknown lists requested addresses that belong to no virtual service.
	Unknown []netip.Addr `json:"unknown,omitempty"`
}

// VirtualService is a virtual service as control planes receive it: defaults are filled in, instances have their
// addresses (those without any are left out), and addresses are in the shortest form.
type VirtualService struct {
	Name string                      `json:"name"`
	Spec v1alpha1.VirtualServiceSpec `json:"spec"`
	// Dynamic: a resolver found it at the request of a control plane. It is forgotten when all control planes that know it
	// have released it. To use it again after that, request one of its addresses.
	Dynamic bool `json:"dynamic,omitempty"`
}

// Requests are the control plane's requests to the agent: the answer to wanted.
type Requests struct {
	Resolve  []netip.Addr `json:"addresses,omitempty"` // destinations of packets that belong to no known virtual service
	Release  []string     `json:"idle,omitempty"`      // dynamic virtual services that are no longer used
	SendMaps []ClientMaps `json:"give,omitempty"`      // messages with maps for clients
	Arrive   []Arrival    `json:"arrive,omitempty"`    // frames that arrive at interfaces of the node
	// MapSet is the map set that releases. The agent ignores releases of another one, which may use what it has received.
	MapSet string `json:"generation,omitempty"`
}

// Empty reports whether there are no requests.
func (r *Requests) Empty() bool {
	return len(r.Resolve)+len(r.Release)+len(r.SendMaps)+len(r.Arrive) == 0
}

// Arrival is a frame, with its Ethernet header, to deliver to an interface of the node.
type Arrival struct {
	Ifindex uint32 `json:"ifindex"`
	Frame   []byte `json:"frame"`
}

// AttachmentWatcher is a Running that is notified when an attachment is added, changed or removed. Attachments that
// exist at Open are only in Live.Attachments. Calls are sequential.
type AttachmentWatcher interface {
	AttachmentChanged(i Attachment, there bool)
}
