// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"net/netip"

	"github.com/kerb-edge/kerb/sdk"
)

// Names of maps in the data plane.
const (
	mapFlows    = "flows"
	mapServices = "flows_services"
	mapRemoved  = "flows_removed"
)

// Directions, as the data plane numbers them.
const (
	egress  = 0
	ingress = 1
)

var directions = [2]string{"egress", "ingress"}

// key mirrors struct flows_key.
type key struct {
	Ifindex               uint32
	Proto, Family         uint8
	Zero                  uint16
	LocalPort, RemotePort [2]byte // network byte order
	Local, Remote         [16]byte
}

// side mirrors struct flows_side.
type side struct {
	Packets, Bytes, Dropped, Replied, Last, Opened uint64
	Next, Retransmits                              uint32
	TCPFlags, Known, DropReason, Zero              uint8
	DropModule                                     uint32
}

// value mirrors struct flows_value.
type value struct {
	Side                            [2]side // by direction
	First, ToResponder, ToInitiator uint64
	Connections                     uint32
	Initiator, Handshake            uint8
	Zero                            uint16
}

// initiator is the direction of packets from the end that began.
func (v *value) initiator() int { return int(v.Initiator & 1) }

func (v *value) last() uint64 { return max(v.Side[0].Last, v.Side[1].Last, v.First) }

// TCP flags.
const (
	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagACK = 0x10
)

// ended reports whether a TCP connection is over.
func (v *value) ended() bool {
	a, b := v.Side[0].TCPFlags, v.Side[1].TCPFlags
	return (a|b)&flagRST != 0 || a&b&flagFIN != 0
}

// usage mirrors struct flows_service, and has what the control plane has taken out.
type usage struct {
	Created, Unrecorded, UnrecordedBytes, Unreadable, UnreadableBytes uint64
	removed                                                           uint64
}

// held is how many entries the table has.
func (u usage) held() uint64 { return max(u.Created, u.removed) - u.removed }

// kernelUsage is usage without what is not in the kernel's map.
type kernelUsage struct{ Created, Unrecorded, UnrecordedBytes, Unreadable, UnreadableBytes uint64 }

func (g *running) usages() (map[uint32]usage, error) {
	all, err := sdk.ReadTable[uint32, kernelUsage](g.Maps, mapServices)
	if err != nil {
		return nil, err
	}
	removed, err := sdk.ReadTable[uint32, uint64](g.Maps, mapRemoved)
	if err != nil {
		return nil, err
	}
	out := make(map[uint32]usage, len(all))
	for i, u := range all {
		out[i] = usage{u.Created, u.Unrecorded, u.UnrecordedBytes, u.Unreadable, u.UnreadableBytes, removed[i]}
	}
	return out, nil
}

const batch = 512

// each calls do for the entries of the table. Those that come meanwhile may be missing.
func (g *running) each(do func(key, *value)) error {
	return sdk.EachElement(g.Maps, mapFlows, batch, func(k key, v *value) bool {
		if v.First != 0 { // else it is being made
			do(k, v)
		}
		return true
	})
}

func address(a [16]byte) netip.Addr { return netip.AddrFrom16(a).Unmap() }
