// SPDX-License-Identifier: Apache-2.0

package dataplane

import "encoding/binary"

// packet is what a test run sends through a chain.
type packet struct {
	kind  string
	frame []byte
}

// representative are the packets that modules are measured with: what opens a connection, what acknowledges or asks
// little, what carries much, and a datagram, in both families. Lengths are those of the payload.
func representative() []packet {
	var out []packet
	for _, family := range []int{4, 6} {
		name := map[int]string{4: "IPv4", 6: "IPv6"}[family]
		out = append(out,
			packet{name + " TCP SYN", frame(family, protoTCP, tcpHeader(0x02), 0)},
			packet{name + " TCP 64 B", frame(family, protoTCP, tcpHeader(0x18), 64)},
			packet{name + " TCP 1400 B", frame(family, protoTCP, tcpHeader(0x10), 1400)},
			packet{name + " UDP 64 B", frame(family, protoUDP, udpHeader(64), 64)})
	}
	return out
}

const (
	protoTCP = 6
	protoUDP = 17
)

// Ends of the measured packets, of the ranges for documentation (RFC 5737, RFC 3849).
var (
	ends4 = []byte{192, 0, 2, 1, 198, 51, 100, 2}
	ends6 = []byte{
		0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
		0x20, 0x01, 0x0d, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
	}
)

const portFrom, portTo = 40000, 80

func tcpHeader(flags byte) []byte {
	h := make([]byte, 20)
	binary.BigEndian.PutUint16(h, portFrom)
	binary.BigEndian.PutUint16(h[2:], portTo)
	binary.BigEndian.PutUint32(h[4:], 1)
	h[12], h[13] = 5<<4, flags
	binary.BigEndian.PutUint16(h[14:], 0xfaf0)
	return h
}

func udpHeader(payload int) []byte {
	h := make([]byte, 8)
	binary.BigEndian.PutUint16(h, portFrom)
	binary.BigEndian.PutUint16(h[2:], portTo)
	binary.BigEndian.PutUint16(h[4:], uint16(8+payload))
	return h
}

// frame puts Ethernet and IP before a transport header, zeros behind it, and the checksum in.
func frame(family int, proto byte, transport []byte, payload int) []byte {
	segment := append(transport, make([]byte, payload)...)
	eth := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00}
	ip, ends := ip4Header(proto, len(segment)), ends4
	if family == 6 {
		eth[12], eth[13] = 0x86, 0xdd
		ip, ends = ip6Header(proto, len(segment)), ends6
	}
	at := map[byte]int{protoTCP: 16, protoUDP: 6}[proto]
	pseudo := append(append([]byte{}, ends...), 0, proto, byte(len(segment)>>8), byte(len(segment)))
	binary.BigEndian.PutUint16(segment[at:], checksum(append(pseudo, segment...)))
	return append(append(eth, ip...), segment...)
}

func ip4Header(proto byte, length int) []byte {
	h := append([]byte{0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, proto, 0, 0}, ends4...)
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+length))
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return h
}

func ip6Header(proto byte, length int) []byte {
	return append([]byte{0x60, 0, 0, 0, byte(length >> 8), byte(length), proto, 64}, ends6...)
}

// checksum is that of the Internet (RFC 1071), over an even number of bytes.
func checksum(data []byte) uint16 {
	var sum uint32
	for i := 0; i < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
