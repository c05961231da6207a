// SPDX-License-Identifier: Apache-2.0

// Package packet builds Ethernet frames for test runs, from a description in the words of tcpdump.
package packet

import (
	"cmp"
	"encoding/binary"
	"net"
	"net/netip"
)

// Protocol numbers of IANA.
const (
	ICMP   = 1
	TCP    = 6
	UDP    = 17
	ICMPv6 = 58
)

// Packet is one IP packet without extension headers; the payload is zeros.
type Packet struct {
	Source, Destination       netip.AddrPort // of one IP version; ports 0 for ICMP
	Protocol                  uint8
	TCPFlags                  uint8
	ICMPType, ICMPCode        uint8
	Payload                   int              // bytes behind the transport header
	SourceMAC, DestinationMAC net.HardwareAddr // by default locally administered ones
}

const headerLength = 14 // Ethernet

// Frame returns the packet with its headers and checksums.
func (p Packet) Frame() []byte {
	v4 := p.Source.Addr().Is4()
	segment := append(p.transport(), make([]byte, p.Payload)...)
	pseudo := append(p.Source.Addr().AsSlice(), p.Destination.Addr().AsSlice()...)
	pseudo = append(pseudo, 0, p.Protocol, byte(len(segment)>>8), byte(len(segment)))
	if p.Protocol == ICMP {
		pseudo = nil
	}
	if at, ok := map[uint8]int{TCP: 16, UDP: 6, ICMP: 2, ICMPv6: 2}[p.Protocol]; ok {
		sum := Checksum(append(pseudo, segment...))
		if p.Protocol == UDP {
			sum = cmp.Or(sum, 0xffff)
		}
		binary.BigEndian.PutUint16(segment[at:], sum)
	}
	frame := append(mac(p.DestinationMAC, 2), mac(p.SourceMAC, 1)...)
	if v4 {
		return append(append(append(frame, 0x08, 0x00), p.ip4(len(segment))...), segment...)
	}
	return append(append(append(frame, 0x86, 0xdd), p.ip6(len(segment))...), segment...)
}

func mac(given net.HardwareAddr, last byte) []byte {
	if len(given) == 6 {
		return append([]byte{}, given...)
	}
	return []byte{2, 0, 0, 0, 0, last}
}

func (p Packet) transport() []byte {
	switch p.Protocol {
	case TCP:
		h := make([]byte, 20)
		p.ports(h)
		binary.BigEndian.PutUint32(h[4:], 1)
		if p.TCPFlags&0x10 != 0 {
			binary.BigEndian.PutUint32(h[8:], 1)
		}
		h[12], h[13] = 5<<4, p.TCPFlags
		binary.BigEndian.PutUint16(h[14:], 0xfaf0)
		return h
	case UDP:
		h := make([]byte, 8)
		p.ports(h)
		binary.BigEndian.PutUint16(h[4:], uint16(8+p.Payload))
		return h
	case ICMP, ICMPv6:
		return []byte{p.ICMPType, p.ICMPCode, 0, 0, 0, 1, 0, 1}
	}
	return nil
}

func (p Packet) ports(h []byte) {
	binary.BigEndian.PutUint16(h, p.Source.Port())
	binary.BigEndian.PutUint16(h[2:], p.Destination.Port())
}

func (p Packet) ip4(length int) []byte {
	h := append([]byte{0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, p.Protocol, 0, 0}, p.Source.Addr().AsSlice()...)
	h = append(h, p.Destination.Addr().AsSlice()...)
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+length))
	binary.BigEndian.PutUint16(h[10:], Checksum(h))
	return h
}

func (p Packet) ip6(length int) []byte {
	h := append([]byte{0x60, 0, 0, 0, byte(length >> 8), byte(length), p.Protocol, 64}, p.Source.Addr().AsSlice()...)
	return append(h, p.Destination.Addr().AsSlice()...)
}

// Checksum is that of the Internet (RFC 1071).
func Checksum(data []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	if len(data)%2 == 1 {
		sum += uint32(data[len(data)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
