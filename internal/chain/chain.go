// SPDX-License-Identifier: Apache-2.0

// Package chain defines hooks, attach points, chains and their members: the vocabulary of plans, which the data plane
// executes. It imports no other package of Kerb.
package chain

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"
)

// Hook is the kind of program that a chain is linked for.
type Hook string

// Hooks.
const (
	XDP     Hook = "xdp"
	TC      Hook = "tc"
	Sockets Hook = "sockets" // no chain of modules: each module has its own programs
)

// Direction is the direction of packets, seen from the service.
type Direction string

// Directions.
const (
	Egress  Direction = "egress"  // from the service
	Ingress Direction = "ingress" // to the service
	Both    Direction = "both"    // sockets send and receive
)

// DefaultRank is the distance from the service of counters and firewalls. Modules nearer to the service redirect
// packets or answer on its behalf; those farther away redirect packets past the rest of the chain.
const DefaultRank = 40

// ReplyRank is the default rank of packages that answer packets: firewalls evaluate the requests first.
const ReplyRank = 20

// Side is a hook of an interface or of a cgroup, in the kernel's terms.
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

// SeesPackets reports whether programs on this side run for each packet of an interface, as a chain of modules, so that
// packets can be traced, explained and timed there. Programs on sockets belong to a cgroup, run alone, and see
// connections and messages.
func (s Side) SeesPackets() bool { return s != OnSockets }

// Point is an attach point: a side of an interface, or the attach point of a module on a cgroup.
type Point struct {
	Ifindex int // in the agent's network namespace; 0: OnSockets
	Side    Side

	// OnSockets
	Cgroup uint64 // its id
	Entry  Entry
	Module string
}

// Entry is one of the programs that a module on sockets runs on a cgroup.
type Entry string

// Entries.
const (
	All      Entry = "all"      // for all sockets of the cgroup
	Services Entry = "services" // for those that belong to services
)

func (p Point) String() string {
	if p.Side == OnSockets {
		return fmt.Sprintf("cgroup%d_%s_%s", p.Cgroup, p.Entry, p.Module)
	}
	return fmt.Sprintf("%d_%s", p.Ifindex, p.Side)
}

// Sorted returns the keys of a map, ordered by interface, then by side.
func Sorted[V any](m map[Point]V) []Point {
	points := slices.Collect(maps.Keys(m))
	sort.Slice(points, func(i, j int) bool {
		p, o := points[i], points[j]
		return cmp.Or(cmp.Compare(p.Ifindex, o.Ifindex), cmp.Compare(p.Side, o.Side), cmp.Compare(p.Cgroup, o.Cgroup),
			cmp.Compare(p.Entry, o.Entry), cmp.Compare(p.Module, o.Module)) < 0
	})
	return points
}

// Member is a module's map set in a chain.
type Member struct {
	Name       string
	ID         string // of the map set
	FailClosed bool
}

// Spec is the input from which a chain is linked.
type Spec struct {
	Linker    string // revision of the linker: each one links other chains from the same members
	Side      Side
	Direction Direction
	Members   []Member
	// XDP: replies are sent by redirect, since XDP_TX does not wake a receiver on a veth without an XDP program of its own
	Veth bool
	// Functions keeps modules as separate functions of the program, which the kernel and profilers know by name.
	Functions bool
}

// ID returns the chain's identity, which is equal for equal members, side and linker. It is computed for each attach
// point, hence without fmt.
func (s Spec) ID() string {
	text := make([]byte, 0, 512)
	add := func(words ...string) {
		for _, w := range words {
			text = append(append(text, w...), ' ')
		}
		text[len(text)-1] = '\n'
	}
	add(s.Linker, string(s.Side), string(s.Direction), strconv.FormatBool(s.Veth), strconv.FormatBool(s.Functions))
	for _, m := range s.Members {
		add(m.Name, m.ID, strconv.FormatBool(m.FailClosed))
	}
	return ShortHash(text)
}

// ShortHash returns the form of all identities: 10 hexadecimal digits, which fit the kernel's 15-character names.
func ShortHash(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))[:10]
}
