// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"
)

// Limits of packets that wait for the lookup of their sources.
const (
	maxHeldSource = 8  // packets of one source from one outer address
	maxHeldNode   = 64 // packets from one outer address
	maxHeld       = 512
)

// holdFor is how long packets wait: as long as the agent takes for an answer. Tests have it longer.
var holdFor = 5 * time.Second

// heldPacket is an inner packet of an unknown source.
type heldPacket struct {
	source, from netip.Addr // from: of the outer packet
	ifindex      uint32     // where it arrived
	tos          byte       // of the outer header
	to           netip.Addr // outer destination
	port         uint16     // outer source port
	frame        []byte     // Ethernet header and inner packet
}

// heldCounts counts packets of unknown sources by result.
type heldCounts struct {
	Passed  uint64 `json:"passed"`  // arrived again, and were judged as any other packet
	Denied  uint64 `json:"denied"`  // dropped: the source is no instance of another node
	Overdue uint64 `json:"overdue"` // dropped: no answer came in time
	Dropped uint64 `json:"dropped"` // dropped: too many wait
	Long    uint64 `json:"long"`    // not held: too long, or segments of a batch (GSO)
}

// held are packets whose sources are being looked up, oldest first. When it is full, the oldest one from the outer
// address with the most packets is dropped, so that no node pushes out the packets of others.
type held struct {
	packets []heldPacket
	counts  heldCounts
}

// add holds a packet, unless its node, or its source there, has too many.
func (h *held) add(p heldPacket) {
	ofSource, ofNode := 0, map[netip.Addr]int{}
	for _, o := range h.packets {
		if ofNode[o.from]++; o.source == p.source && o.from == p.from { // else one node could keep out another
			ofSource++
		}
	}
	if ofSource == maxHeldSource || ofNode[p.from] == maxHeldNode {
		h.counts.Dropped++
		return
	}
	if len(h.packets) == maxHeld {
		most := h.packets[0].from
		for _, o := range h.packets {
			if ofNode[o.from] > ofNode[most] {
				most = o.from
			}
		}
		at := slices.IndexFunc(h.packets, func(o heldPacket) bool { return o.from == most })
		h.packets = slices.Delete(h.packets, at, at+1)
		h.counts.Dropped++
	}
	h.packets = append(h.packets, p)
}

// take returns the packets of a source, oldest first, and holds them no longer.
func (h *held) take(source netip.Addr) (out []heldPacket) {
	h.packets = slices.DeleteFunc(h.packets, func(p heldPacket) bool {
		if p.source != source {
			return false
		}
		out = append(out, p)
		return true
	})
	return out
}

// wrap puts the outer headers on again that the data plane has taken off, for a tunnel that receives at this port.
// Addresses, ports and TOS are those of before, for other modules at the interface; the TTL is 64, ID and flow label
// are 0, and there is no DF, UDP checksum or IP option.
func (p *heldPacket) wrap(port uint16) []byte {
	const ethernet, udp = 14, 8
	inner := p.frame[ethernet:]
	out := make([]byte, 12, ethernet+40+udp+len(inner))
	copy(out, p.frame)
	if p.from.Is4() {
		out = append(binary.BigEndian.AppendUint16(out, 0x0800), p.header4(udp+len(inner))...)
	} else {
		out = append(binary.BigEndian.AppendUint16(out, 0x86dd), p.header6(udp+len(inner))...)
	}
	for _, field := range []uint16{p.port, port, uint16(udp + len(inner)), 0} {
		out = binary.BigEndian.AppendUint16(out, field)
	}
	return append(out, inner...)
}

// header4 is the IPv4 header before a number of bytes.
func (p *heldPacket) header4(length int) []byte {
	header := []byte{0x45, p.tos, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0}
	binary.BigEndian.PutUint16(header[2:], uint16(20+length))
	header = append(append(header, p.from.AsSlice()...), p.to.AsSlice()...)
	sum := uint32(0)
	for at := 0; at < len(header); at += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[at:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(header[10:], ^uint16(sum>>16+sum))
	return header
}

func (p *heldPacket) header6(length int) []byte {
	header := []byte{0x60 | p.tos>>4, p.tos << 4, 0, 0, 0, 0, 17, 64}
	binary.BigEndian.PutUint16(header[4:], uint16(length))
	return append(append(header, p.from.AsSlice()...), p.to.AsSlice()...)
}
