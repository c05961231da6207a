// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

var be = binary.BigEndian

// packet describes a UDP datagram. Zero values of fields mean the defaults.
type packet struct {
	src, dst     string
	sport, dport uint16
	payload      []byte
	vlan         []uint16 // tags, outermost first
	options      []byte   // IPv4 options, a multiple of 4
	extensions   []ext    // IPv6
	checksum     checksum
	tail         []byte // after the IP datagram
	extra        []byte // in the IP datagram, after the UDP datagram
	edit         func(f []byte, l3, l4 int)
}

// ext is an extension header: its type, and the bytes after the next header field.
type ext struct {
	kind byte
	body []byte // from the length field on
}

// checksum of a packet.
type checksum int

const (
	full checksum = iota
	none
	partial
	bad
)

var (
	clientMAC = []byte{2, 0, 0, 0, 0, 1}
	serverMAC = []byte{2, 0, 0, 0, 0, 2}
)

// sum returns the ones' complement sum of bytes.
func sum(parts ...[]byte) uint16 {
	var s uint32
	for _, b := range parts {
		for i := 0; i < len(b); i += 2 {
			if i+1 < len(b) {
				s += uint32(be.Uint16(b[i:]))
			} else {
				s += uint32(b[i]) << 8
			}
		}
		for s > 0xffff {
			s = s&0xffff + s>>16
		}
	}
	return uint16(s)
}

// pseudo returns the pseudo-header of UDP.
func pseudo(src, dst []byte, length int) []byte {
	return be.AppendUint16(append(slices.Concat(src, dst), 0, 17), uint16(length))
}

func (p packet) frame() []byte {
	src, dst := netip.MustParseAddr(p.src), netip.MustParseAddr(p.dst)
	f := slices.Concat(serverMAC, clientMAC)
	for _, tag := range p.vlan {
		f = be.AppendUint16(append(f, 0x81, 0), tag)
	}
	udp := be.AppendUint16(be.AppendUint16(nil, p.sport), p.dport)
	udp = be.AppendUint16(udp, uint16(8+len(p.payload)))
	udp = append(append(udp, 0, 0), p.payload...)
	ph := pseudo(src.AsSlice(), dst.AsSlice(), len(udp))
	switch p.checksum {
	case full, bad:
		c := ^sum(ph, udp)
		if c == 0 {
			c = 0xffff
		}
		if p.checksum == bad {
			c ^= 0x0400
		}
		be.PutUint16(udp[6:], c)
	case partial:
		be.PutUint16(udp[6:], sum(ph))
	}
	udp = append(udp, p.extra...)
	var l3 int
	if src.Is4() {
		f = append(f, 8, 0)
		l3 = len(f)
		h := []byte{byte(0x45 + len(p.options)/4), 0x10, 0, 0, 0x12, 0x34, 0, 0, 17, 17, 0, 0}
		h = append(slices.Concat(h, src.AsSlice(), dst.AsSlice()), p.options...)
		be.PutUint16(h[2:], uint16(len(h)+len(udp)))
		be.PutUint16(h[10:], ^sum(h))
		f = append(f, h...)
	} else {
		f = append(f, 0x86, 0xdd)
		l3 = len(f)
		var chain []byte
		next := byte(17)
		for _, e := range slices.Backward(p.extensions) {
			chain = slices.Concat([]byte{next}, e.body, chain)
			next = e.kind
		}
		h := []byte{0x60, 0x12, 0x34, 0x56, 0, 0, next, 17}
		be.PutUint16(h[4:], uint16(len(chain)+len(udp)))
		f = slices.Concat(f, h, src.AsSlice(), dst.AsSlice(), chain)
	}
	l4 := len(f)
	f = slices.Concat(f, udp, p.tail)
	if p.edit != nil {
		p.edit(f, l3, l4)
	}
	return f
}

// fixIP4 updates the checksum of an edited IPv4 header.
func fixIP4(f []byte, l3 int) {
	h := f[l3 : l3+int(f[l3]&15)*4]
	be.PutUint16(h[10:], 0)
	be.PutUint16(h[10:], ^sum(h))
}

// speed returns a message of the speed limit's protocol.
func speed(order binary.AppendByteOrder, op, value uint32) []byte {
	return order.AppendUint32(order.AppendUint32(nil, op), value)
}
