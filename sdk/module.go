// SPDX-License-Identifier: Apache-2.0

// Package sdk defines the contract between the agent and a module's control plane, which converts the module's config
// into map contents, and reads the maps as counts, metrics and routes. A module without a control plane does not need
// it: the agent sets constants with the names of the config's properties.
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
	// Compile checks config, which the manifest's schema has already validated, and determines what the data plane needs.
	// It has no side effects. Errors that the operator can correct are *ConfigError.
	Compile(config json.RawMessage) (Compiled, error)
}

// Compiled is a config that is ready to be written to the kernel.
type Compiled interface {
	// Settings are applied before the maps are created and the program is verified.
	Settings() Settings
	// Fill writes the maps of a new map set before packets use it. Config maps are new and empty; all others may be shared
	// with the running map set. For maps with migrate: control in the manifest, an upgrade that changes them provides the
	// running map set's as previous.<map>, to read from while Fill runs; packets still change them. Fill is also called
	// for trial maps, which no packet uses. An error leaves the running map set unchanged.
	//
	// If a module has tunables and only values change, Fill is also called with maps that packets use: it then writes only
	// to the half of its config maps that Maps.FreeHalf returns.
	Fill(maps Maps) error
	// Open returns the control plane's state for a map set that packets use. It is called after the work of the previous
	// map set has ended and before any other call for this one. After an error the agent calls it again.
	Open(live Live) (Running, error)
}

// Running is a control plane's state for one map set. It implements any of the optional interfaces Handler, Runner,
// Collector, NoteNamer, HealthChecker, Conditioner, InstanceReporter, VirtualServiceUser, ModelUser, AttachmentWatcher
// and ClientServer. Their methods are called concurrently unless an interface says otherwise.
type Running any

// Define returns a control plane. compile decodes and checks a config, in most cases with DecodeConfig.
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

// Settings are the settings of a map set.
type Settings struct {
	Constants map[string]any `json:"constants,omitempty"` // KERB_CONFIG variables by name
	// Tunables are the members of KERB_TUNABLES by name, integers and booleans; unlisted members are 0. A config that
	// differs from the running one only in them, and in what Fill writes to the half of FreeHalf, needs no new program.
	Tunables map[string]any `json:"tunables,omitempty"`
	// Shape identifies, for modules with tunables, everything else in the config that needs a new map set.
	Shape string `json:"shape,omitempty"`
	// MaxEntries are the sizes of config maps by name; unlisted maps keep their compiled size.
	MaxEntries map[string]uint32 `json:"maxEntries,omitempty"`
	// Idle lists the directions (egress, ingress) in which this config decides nothing: packets skip the module there.
	Idle []string `json:"idle,omitempty"`
	// Hooks and LinkTypes are those of the manifest that work with this config; all by default.
	Hooks     []string `json:"hooks,omitempty"`
	LinkTypes []string `json:"linkTypes,omitempty"`
	// LongReplies: with this config the module's answers may be longer than the requests. Native XDP on a veth has no room
	// for them.
	LongReplies bool `json:"longReplies,omitempty"`
	// TranslatesReplies: the module rewrites the source of instances' replies to the address of their virtual service.
	// Modules before it in the chain see the instance's own address.
	TranslatesReplies bool `json:"translatesReplies,omitempty"`
	// Inbound is set by modules that drop packets to services by their source.
	Inbound *Inbound `json:"inbound,omitempty"`
	// Sets lists the sets that the config refers to. Each must exist, and the module's data plane includes kerb/set.h.
	Sets []SetReference `json:"sets,omitempty"`
}

// Inbound describes which packets to services a module passes although it has not seen their connection begin.
type Inbound struct {
	Sources []netip.Prefix `json:"sources,omitempty"` // from which all of them pass
	// Advice describes the setting that passes all packets from one more address.
	Advice string `json:"advice"`
}

// ConfigError is an error in a config, with its location.
type ConfigError struct {
	Field  string // for example rules[3].dstPort
	Reason string // what is wrong and what would be right
}

func (e *ConfigError) Error() string { return e.Field + ": " + e.Reason }

// Live is a map set that packets use.
type Live struct {
	Module      string              // name of the module
	Maps        Maps                // borrowed: not to be closed
	Attachments func() []Attachment // attach points now

	// Resolve asks the agent for the virtual service of an address. It does not wait: VirtualServiceUser receives the
	// answer, which is either a virtual service with the address, or the address in Unknown. An address is requested only
	// once until the agent has fetched the request.
	Resolve func(addr netip.Addr)
	// Release reports that a dynamic virtual service is no longer used.
	Release func(name string)
	// Inject sends a frame, with its Ethernet header, as if the service behind an interface had sent it: it passes the
	// whole chain. It needs capability inject in the manifest. It completes checksums of TCP and UDP, since a service may
	// leave them to its interface. It returns ErrNoInject, or ErrTooLong for a frame above the interface's MTU.
	Inject func(ifindex uint32, frame []byte) error

	// Arrive makes a frame, with its Ethernet header, arrive on an interface of the node that the module is attached to,
	// as if it came from the network: it passes the whole chain. It needs capability arrivals in the manifest. It does not
	// wait. Checksums stay unchanged: see CompleteChecksum. It returns false, and discards the frame, if too many frames
	// are waiting.
	Arrive func(ifindex uint32, frame []byte) bool

	// Kernel describes behaviour that differs between kernels. It is empty without capability kernelFacts.
	Kernel Kernel
}

// Attachment is an attach point as control planes receive it.
type Attachment struct {
	Service   string `json:"service,omitempty"` // empty for an interface of the node
	Interface string `json:"interface"`
	Ifindex   uint32 `json:"ifindex"` // on the node's side
	// Addresses are the addresses of the interface inside the service, with prefix length; of an interface of the node its
	// own.
	Addresses []string `json:"addresses,omitempty"`
	// LinkLocal are the link-local addresses of the interface inside the service.
	LinkLocal []string `json:"linkLocal,omitempty"`
	MAC       string   `json:"mac,omitempty"` // of the interface inside the service; of an interface of the node its own
	MTU       int      `json:"mtu,omitempty"` // bytes; the smaller one of both ends
	// Kind is rtnetlink's kind of the interface, such as veth or bridge; empty for a network card and loopback.
	Kind string `json:"kind,omitempty"`
	// Ingress lists the modules on TC that packets to the service meet, in order.
	Ingress []string `json:"ingress,omitempty"`
	// LinkType is the link type of frames; empty for Ethernet, none for bare IP.
	LinkType string `json:"linkType,omitempty"`
	// IPsec lists the node's policies, for interfaces of the node; nil if they are not known yet.
	IPsec *IPsec `json:"ipsec,omitempty"`

	// The following fields are for modules on the hook sockets, which have one attachment for each service (Interface is
	// its first one, if it has any) and one for each cgroup of attach.cgroups.

	// NetnsCookie is the value of bpf_get_netns_cookie for the service's sockets.
	NetnsCookie uint64 `json:"netnsCookie,omitempty"`
	// Chain lists the other modules that the service's packets meet, in either direction.
	Chain []ChainMember `json:"chain,omitempty"`
	// Cgroup is the path, below the mount of cgroup v2, of the cgroup all of whose sockets are selected.
	Cgroup   string `json:"cgroup,omitempty"`
	CgroupID uint64 `json:"cgroupID,omitempty"` // as bpf_get_current_cgroup_id returns it
}

// ChainMember is another module on a service.
type ChainMember struct {
	Module  string `json:"module"`
	Package string `json:"package,omitempty"` // empty if it cannot be read
}

// Equal reports whether both are the same.
func (i Attachment) Equal(o Attachment) bool {
	return i.Service == o.Service && i.Interface == o.Interface && i.Ifindex == o.Ifindex && i.MAC == o.MAC &&
		i.MTU == o.MTU && i.Kind == o.Kind &&
		i.NetnsCookie == o.NetnsCookie && i.Cgroup == o.Cgroup && i.CgroupID == o.CgroupID &&
		i.LinkType == o.LinkType && i.IPsec.Equal(o.IPsec) && slices.Equal(i.Addresses, o.Addresses) &&
		slices.Equal(i.LinkLocal, o.LinkLocal) && slices.Equal(i.Ingress, o.Ingress) && slices.Equal(i.Chain, o.Chain)
}

// Virtual reports whether packets of the interface come from the memory of this machine and not from a wire. Stacked
// interfaces such as bridge, bond and vlan are not virtual: a network card may be below them.
func (i Attachment) Virtual() bool { return i.Kind == "veth" || i.Kind == "netkit" || i.Kind == "tun" }

// AttachmentKey identifies an attachment of a module: interfaces by their index, services and cgroups on the hook
// sockets by name and id.
type AttachmentKey struct {
	Ifindex  uint32 // 0 on the hook sockets
	Service  string // set only for services on the hook sockets
	CgroupID uint64 // inode number of the cgroup; 0 for a service
}

// Key returns the key of the attachment.
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

// Runner is a Running with background work, such as ageing of entries and cleaning up after removed interfaces. Run
// returns when ctx ends.
type Runner interface {
	Run(ctx context.Context)
}

// HealthChecker is a Running that reports whether it works. An upgrade to a version that is not healthy is rolled back.
type HealthChecker interface {
	Health() error
}

// Collector is a Running with metrics. Their names get the prefix kerb_<package>_, and the agent adds a label module.
type Collector interface {
	Collect() ([]Sample, error)
}

// NoteNamer is a Running that names the values of notes (kerb_note) for traces. note is one of the manifest's. With an
// empty name, traces show the number.
type NoteNamer interface {
	NoteName(note string, value uint64) string
}

// Sample is one metric value.
type Sample struct {
	Name    string            `json:"name"`              // without prefix, with unit: packets_total
	Help    string            `json:"help"`              // one sentence for people, the same for all samples of a name
	Counter bool              `json:"counter,omitempty"` // gauge otherwise
	Labels  map[string]string `json:"labels,omitempty"`
	Value   float64           `json:"value"` // in the unit that ends the name
}
