// SPDX-License-Identifier: Apache-2.0

// Package sdk is the contract between the agent and the control plane of a module: what turns the module's config into
// map contents, and reads them back as counts, metrics and routes. A data plane needs none of it: config properties are
// then set as constants of the same name.
package sdk

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
)

// Control is the control plane of a package. Most are made by Define.
type Control interface {
	// Compile checks config (already valid by the manifest's schema) and works out what the data plane needs. It has no
	// effect. Errors that the operator can correct are *ConfigError.
	Compile(config json.RawMessage) (Compiled, error)
}

// Compiled is a config ready to be put into the kernel.
type Compiled interface {
	// Settings are applied before the maps are created and the program is verified.
	Settings() Settings
	// Fill writes the maps of a new map set before it sees a packet. Config maps are new and empty, all others may be
	// shared with the map set that is running. For maps whose manifest says migrate: control, an upgrade that changes
	// them has the running map set's as previous.<map>, to read from while Fill runs; packets still change them. Fill
	// is also called with maps of a trial, which no packet sees. An error leaves the running map set as it is.
	//
	// Of a module with tunables Fill is also called with the maps that packets see, when only values change: it then
	// writes to its config maps in the half that Maps.FreeHalf names, and nowhere else.
	Fill(maps Maps) error
	// Open returns the control plane's state for a map set that sees packets, after the work of the previous map set
	// has ended and before any other call for this one. After an error the agent tries again.
	Open(live Live) (Running, error)
}

// Running is what a control plane keeps for one map set. Its methods are those of the optional interfaces Handler,
// Runner, Collector, NoteNamer, HealthChecker, Conditioner, InstanceReporter, VirtualServiceUser, ModelUser,
// AttachmentWatcher and ClientServer. They are called concurrently unless an interface says otherwise.
type Running any

// Define returns the control plane whose configs compile decodes and checks, in most cases with DecodeConfig.
func Define[C Compiled](compile func(config json.RawMessage) (C, error)) Control {
	return definition[C](compile)
}

type definition[C Compiled] func(json.RawMessage) (C, error)

// Compile implements Control.
func (d definition[C]) Compile(config json.RawMessage) (Compiled, error) {
	c, err := d(config)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Settings of a map set.
type Settings struct {
	Constants map[string]any `json:"constants,omitempty"` // KERB_CONFIG variables by name
	// Tunables are members of KERB_TUNABLES by name, integers and booleans; others are 0. A config that differs from the
	// running one in them only, and in what Fill writes to the half of FreeHalf, needs no new program.
	Tunables map[string]any `json:"tunables,omitempty"`
	// Shape identifies what else of the config needs a new map set, for modules with tunables.
	Shape string `json:"shape,omitempty"`
	// sizes of config maps by name; others have the size they are compiled with
	MaxEntries map[string]uint32 `json:"maxEntries,omitempty"`
	// Idle are directions (egress, ingress) in which this config decides nothing: packets do not meet the module there.
	Idle []string `json:"idle,omitempty"`
	// Hooks and LinkTypes are those of the manifest's with which this config works; all by default.
	Hooks     []string `json:"hooks,omitempty"`
	LinkTypes []string `json:"linkTypes,omitempty"`
	// LongReplies: with this config the module answers packets by longer ones. Native XDP on a veth has no room for them.
	LongReplies bool `json:"longReplies,omitempty"`
	// TranslatesReplies: the module gives replies of instances the address of their virtual service. Modules before it in
	// the chain see the instance's own.
	TranslatesReplies bool `json:"translatesReplies,omitempty"`
	// Inbound is set by modules that drop packets to services because of their source.
	Inbound *Inbound `json:"inbound,omitempty"`
	// Sets are those that the config refers to. Each must exist, and the module's data plane includes kerb/set.h.
	Sets []SetReference `json:"sets,omitempty"`
}

// Inbound describes packets to services that pass a module without belonging to a connection that it has seen begin.
type Inbound struct {
	Sources []netip.Prefix `json:"sources,omitempty"` // from which all of them pass
	// Advice is what the operator sets to let pass all from one more address.
	Advice string `json:"advice"`
}

// ConfigError is a mistake in a config, with the place where it is.
type ConfigError struct {
	Field  string // for example rules[3].dstPort
	Reason string // what is wrong and what would be right
}

func (e *ConfigError) Error() string { return e.Field + ": " + e.Reason }

// Live is a map set that sees packets.
type Live struct {
	Module      string              // name of the module
	Maps        Maps                // borrowed: not to be closed
	Attachments func() []Attachment // attach points now

	// Resolve asks the agent for the virtual service of an address. It does not wait: the answer comes by
	// VirtualServiceUser, either a virtual service with the address, or the address in Unknown. An address is requested
	// once until the agent has fetched the request.
	Resolve func(addr netip.Addr)
	// Release reports that a dynamic virtual service is not used any more.
	Release func(name string)
	// Inject sends a frame, with its Ethernet header, as if the service behind an interface had sent it: it goes
	// through the whole chain. Needs capability inject in the manifest. Checksums of TCP and UDP are completed,
	// since a service may leave them to its interface. Errors: ErrNoInject; ErrTooLong for more than the
	// interface's MTU.
	Inject func(ifindex uint32, frame []byte) error

	// Arrive has an interface of the node that the module is attached to receive a frame, with its Ethernet header, as if
	// it came from the network: it goes through the whole chain. Needs capability arrivals in the manifest. It does not
	// wait. Checksums stay as they are: see CompleteChecksum. It reports false if too many frames wait, of which this one
	// is none.
	Arrive func(ifindex uint32, frame []byte) bool

	// Kernel is how this kernel behaves where that is not the same everywhere. Empty without capability kernelFacts.
	Kernel Kernel
}

// Attachment is an attach point as control planes see it.
type Attachment struct {
	Service   string `json:"service,omitempty"` // empty for an interface of the node
	Interface string `json:"interface"`
	Ifindex   uint32 `json:"ifindex"` // on the node's side
	// Addresses are those of the interface inside the service, with prefix length; for one of the node its own.
	Addresses []string `json:"addresses,omitempty"`
	// LinkLocal are the link-local addresses of the interface inside the service.
	LinkLocal []string `json:"linkLocal,omitempty"`
	MAC       string   `json:"mac,omitempty"` // of the interface inside the service; for one of the node its own
	MTU       int      `json:"mtu,omitempty"` // bytes; the smaller one of both ends
	// Kind is rtnetlink's kind of the interface, such as veth or bridge; empty for a network card and loopback.
	Kind string `json:"kind,omitempty"`
	// Ingress are the modules that packets to the service meet on TC, in order.
	Ingress []string `json:"ingress,omitempty"`
	// LinkType is what frames begin with; empty for Ethernet, none for bare IP.
	LinkType string `json:"linkType,omitempty"`
	// IPsec lists the node's policies, for interfaces of the node; nil if they are not known yet.
	IPsec *IPsec `json:"ipsec,omitempty"`

	// What follows is passed to modules on the hook sockets, which have one attachment for each service (Interface is its
	// first one, if it has any) and one for each cgroup of attach.cgroups.

	// NetnsCookie is what bpf_get_netns_cookie reports the service's sockets.
	NetnsCookie uint64 `json:"netnsCookie,omitempty"`
	// Chain are the other modules that the service's packets meet, in either direction.
	Chain []ChainMember `json:"chain,omitempty"`
	// Cgroup is one whose sockets all are meant, with its path below the mount of cgroup v2.
	Cgroup   string `json:"cgroup,omitempty"`
	CgroupID uint64 `json:"cgroupID,omitempty"` // as bpf_get_current_cgroup_id returns it
}

// ChainMember is another module on a service.
type ChainMember struct {
	Module  string `json:"module"`
	Package string `json:"package,omitempty"` // empty if it cannot be read
}

// Equal reports whether nothing has changed.
func (i Attachment) Equal(o Attachment) bool {
	return i.Service == o.Service && i.Interface == o.Interface && i.Ifindex == o.Ifindex && i.MAC == o.MAC &&
		i.MTU == o.MTU && i.Kind == o.Kind &&
		i.NetnsCookie == o.NetnsCookie && i.Cgroup == o.Cgroup && i.CgroupID == o.CgroupID &&
		i.LinkType == o.LinkType && i.IPsec.Equal(o.IPsec) && slices.Equal(i.Addresses, o.Addresses) &&
		slices.Equal(i.LinkLocal, o.LinkLocal) && slices.Equal(i.Ingress, o.Ingress) && slices.Equal(i.Chain, o.Chain)
}

// Virtual reports whether packets of the interface come from the memory of this machine and not from a wire. Stacked
// interfaces, such as bridge, bond and vlan, are not: what is below them may be a network card.
func (i Attachment) Virtual() bool { return i.Kind == "veth" || i.Kind == "netkit" || i.Kind == "tun" }

// AttachmentKey distinguishes the attachments of a module: interfaces by their index, and on the hook sockets services
// and cgroups.
type AttachmentKey struct {
	Ifindex  uint32 // 0 on the hook sockets
	Service  string // empty but for services on the hook sockets
	CgroupID uint64 // inode number of the cgroup; 0 for a service
}

// Key of the attachment.
func (i Attachment) Key() AttachmentKey {
	if i.NetnsCookie != 0 || i.CgroupID != 0 {
		return AttachmentKey{Service: i.Service, CgroupID: i.CgroupID}
	}
	return AttachmentKey{Ifindex: i.Ifindex}
}

// Handler is a Running with routes, served under /v1/modules/<name>/. Handler is called once, after Open.
type Handler interface {
	Handler() http.Handler
}

// Runner is a Running with background work (ageing, garbage of vanished interfaces). Run returns when ctx ends.
type Runner interface {
	Run(ctx context.Context)
}

// HealthChecker is a Running that reports whether it does its work. An upgrade to a version that does not is rolled
// back.
type HealthChecker interface {
	Health() error
}

// Collector is a Running with metrics. Names get the prefix kerb_<package>_, and a label module is added.
type Collector interface {
	Collect() ([]Sample, error)
}

// NoteNamer is a Running that has names for the values of notes (kerb_note), for traces. note is one of the manifest's.
// An empty name leaves the number.
type NoteNamer interface {
	NoteName(note string, value uint64) string
}

// Sample is one metric value.
type Sample struct {
	Name    string            `json:"name"`              // without prefix, with unit: packets_total
	Help    string            `json:"help"`              // one sentence for people, the same for all samples of a name
	Counter bool              `json:"counter,omitempty"` // gauge otherwise
	Labels  map[string]string `json:"labels,omitempty"`
	Value   float64           `json:"value"` // in the unit that the name ends with
}
