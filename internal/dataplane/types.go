// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/sdk"
)

// Hook is the kind of program that a chain is linked for.
type Hook string

// Hooks.
const (
	XDP     Hook = "xdp"
	TC      Hook = "tc"
	Sockets Hook = "sockets" // no chain of modules: each module has programs of its own
)

// Direction is seen from the service.
type Direction string

// Directions.
const (
	Egress  Direction = "egress"  // from the service
	Ingress Direction = "ingress" // to the service
	Both    Direction = "both"    // sockets send and receive
)

// Side is a hook of an interface or of a cgroup, in the kernel's words.
type Side string

// Sides.
const (
	OnXDP       Side = "xdp"
	OnTCIngress Side = "tc-ingress"
	OnTCEgress  Side = "tc-egress"
	OnSockets   Side = "sockets"
)

// Hook returns the kind of program that runs on the side.
func (s Side) Hook() Hook {
	switch s {
	case OnXDP:
		return XDP
	case OnSockets:
		return Sockets
	}
	return TC
}

// Point is an attach point: a side of an interface, or a module's place on a cgroup.
type Point struct {
	Ifindex int
	Side    Side

	// OnSockets
	Cgroup uint64 // its id
	Entry  Entry
	Module string
}

// Entry is the program of a module on sockets that runs on a cgroup.
type Entry string

// Entries.
const (
	All      Entry = "all"      // for all sockets of the cgroup
	Services Entry = "services" // for those that are services'
)

func (p Point) String() string {
	if p.Side == OnSockets {
		return fmt.Sprintf("cgroup%d_%s_%s", p.Cgroup, p.Entry, p.Module)
	}
	return fmt.Sprintf("%d_%s", p.Ifindex, p.Side)
}

// Compare orders points.
func (p Point) Compare(o Point) int {
	return cmp.Or(cmp.Compare(p.Ifindex, o.Ifindex), cmp.Compare(p.Side, o.Side), cmp.Compare(p.Cgroup, o.Cgroup),
		cmp.Compare(p.Entry, o.Entry), cmp.Compare(p.Module, o.Module))
}

// Module is what a generation is made from.
type Module struct {
	Name string // name of the module on the node
	ID   string // identity of the generation: equal for equal code and config
	// Spec returns a fresh copy of the object for a hook, nil if the package does not run there.
	Spec       func(Hook) (*ebpf.CollectionSpec, error)
	ConfigMaps []string // made anew for each generation; all others are carried over
	SharedMaps []string // shared by name with other modules
	// Migrate has the rules (MigrateExtend and others) for carried-over maps that differ from the running generation's.
	Migrate    map[string]string
	Settings   sdk.Settings
	Fill       func(sdk.Maps) error // may be nil
	FailClosed bool
	Frags      bool // copes with XDP packets in several buffers
	Sockets    bool // runs on sockets, and on no packets
}

// Member is a generation's place in a chain.
type Member struct {
	Name       string
	ID         string
	FailClosed bool
}

// ChainSpec is what a chain is made from.
type ChainSpec struct {
	Side      Side
	Direction Direction
	Members   []Member
	Veth      bool // XDP: replies go by redirect, since a veth forgets to wake a receiver of XDP_TX that has no XDP itself
}

// ID is the identity of the chain: equal for equal members, side and linker. A newer build of the linker has other
// identities, so that it replaces the chains of an older one.
func (c ChainSpec) ID() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s %s %t\n", linkerDigest(), c.Side, c.Direction, c.Veth)
	for _, m := range c.Members {
		fmt.Fprintf(&text, "%s %s %t\n", m.Name, m.ID, m.FailClosed)
	}
	return ShortHash([]byte(text.String()))
}

// ShortHash is the form of all identities: 10 hexadecimal digits, which fit the kernel's 15-character names.
func ShortHash(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))[:10]
}
