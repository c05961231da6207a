// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"net"
	"net/netip"
)

// Names of the maps in maps.h.
const (
	mapHosts    = "hosts"
	mapPrefixes = "prefixes"
	mapNodes    = "nodes"
	mapStats    = "stats"
	mapKeys     = "keys"
	mapOwn      = "own"
	mapRaw      = "raw_links"
	mapErrors   = "icmp_errors"
	mapNames    = "names"
	mapStrange  = "strangers"
)

// Sizes in maps.h.
const (
	maxHosts = 65536
	maxNodes = 1024
	maxRaw   = 8
	maxNames = 16384
)

// address mirrors struct in6_addr: 16 bytes, IPv4 as ::ffff:a.b.c.d.
type address [16]byte

func (a address) addr() netip.Addr { return netip.AddrFrom16(a).Unmap() }

// straight says that nothing decides on packets to a service (TUN_PEER).
const straight = 1 << 0

// end mirrors struct tun_end.
type end struct {
	Node    uint32  // index in nodes; 0: a service of this node
	Ifindex uint32  // of the service, on the node's side
	MAC     [6]byte // of its other end
	Flags   uint16  // straight
}

// name mirrors struct tun_name.
type name struct{ Node, Used uint32 }

// node mirrors struct tun_node.
type node struct {
	Addr, Local  address // on the underlay, network byte order; all zero: free. Local: this node's towards it
	Ifindex, MTU uint32  // underlay interface, 0: none leads there; its MTU in bytes
	Self         uint32  // 1: it is this node
	Refuse       uint32  // refuseOut, refuseIn
	Port         uint32  // where it receives; 0: as this node
}

// portOf is where a node receives.
func (c *config) portOf(n node) uint16 {
	if n.Port != 0 {
		return uint16(n.Port)
	}
	return c.Port
}

// Stats mirrors struct tun_stats.
type Stats struct {
	SentPackets     uint64 `json:"sentPackets"`
	SentBytes       uint64 `json:"sentBytes"` // of inner packets
	ReceivedPackets uint64 `json:"receivedPackets"`
	ReceivedBytes   uint64 `json:"receivedBytes"`
	TooBig          uint64 `json:"tooBig"`     // sent packets that did not fit
	Fragmented      uint64 `json:"fragmented"` // packets that were sent as fragments, each of which counts as sent
	Errors          uint64 `json:"errors"`     // packets from this node that were dropped
}

func (s Stats) plus(o Stats) Stats {
	return Stats{s.SentPackets + o.SentPackets, s.SentBytes + o.SentBytes, s.ReceivedPackets + o.ReceivedPackets,
		s.ReceivedBytes + o.ReceivedBytes, s.TooBig + o.TooBig, s.Fragmented + o.Fragmented, s.Errors + o.Errors}
}

// macKey mirrors struct tun_key.
type macKey struct {
	K [2]uint64
}

// nodeKeys mirrors struct tun_keys.
type nodeKeys struct {
	ID            [maxKeys]uint8 // 0: none; the first is sent with
	Bound         uint32         // bit n: the MAC of key n is of version 2
	Send, Receive [maxKeys]macKey
}

// prefix mirrors struct tun_prefix.
type prefix struct {
	Bits uint32 // those of Half included
	Half uint32
	Addr address
}

func prefixOf(half int, p netip.Prefix) prefix {
	bits := 32 + p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return prefix{uint32(bits), uint32(half), p.Addr().As16()}
}

func macOf(text string) (out [6]byte) {
	if mac, err := net.ParseMAC(text); err == nil && len(mac) == len(out) {
		copy(out[:], mac)
	}
	return
}
