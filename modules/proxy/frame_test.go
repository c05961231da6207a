// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/binary"
	"net/netip"
)

// TCP flags.
const (
	tcpFIN = 1 << iota
	tcpSYN
	tcpRST
	_
	tcpACK
)

// packet describes a frame; bytes() returns it with correct checksums.
type packet struct {
	src, dst     netip.Addr
	proto        int
	sport, dport uint16 // ICMP: type<<8|code and identifier
	flags        uint8  // TCP
	seq, ack     uint32
	payload      []byte
	quoted       []byte // of an ICMP error: an IP packet
	mtu          uint16 // in an ICMP error
	noCheck      bool   // UDP without checksum
	options      int    // bytes of IPv4 options, a multiple of 4
	ext          []int  // IPv6 extension headers by number
	extLen       int    // bytes of the last one, a multiple of 8; 8 unless set
	fragOff      int    // bytes
	more         bool
	fragID       uint32
	vlans        int
	dstMAC       []byte
	srcMAC       []byte
}

var (
	clientMAC  = []byte{2, 0, 0, 0, 0, 2}
	gatewayMAC = []byte{2, 0, 0, 0, 0, 1}
)

func (p packet) bytes() []byte {
	out := append([]byte{}, or(p.dstMAC, gatewayMAC)...)
	out = append(out, or(p.srcMAC, clientMAC)...)
	for range p.vlans {
		out = append(out, 0x81, 0x00, 0x00, 0x05)
	}
	if p.src.Is4() {
		return append(append(out, 0x08, 0x00), p.ip()...)
	}
	return append(append(out, 0x86, 0xdd), p.ip()...)
}

func or(a, b []byte) []byte {
	if a != nil {
		return a
	}
	return b
}

// ip returns the packet without its link header.
func (p packet) ip() []byte {
	body := p.transport()
	if p.fragOff > 0 {
		body = p.payload
	}
	if p.src.Is4() {
		return p.ip4(body)
	}
	return p.ip6(body)
}

func (p packet) transport() []byte {
	var out []byte
	check := -1
	switch p.proto {
	case protoTCP:
		out, check = make([]byte, 20), 16
		binary.BigEndian.PutUint32(out[4:], p.seq)
		binary.BigEndian.PutUint32(out[8:], p.ack)
		out[12], out[13], out[14] = 5<<4, p.flags, 0xff
	case protoUDP:
		out, check = make([]byte, 8), 6
		binary.BigEndian.PutUint16(out[4:], uint16(8+len(p.payload)))
	case protoSCTP:
		out = make([]byte, 12)
		binary.BigEndian.PutUint32(out[8:], 0x12345678)
	case protoICMP, protoICMPv6:
		out, check = make([]byte, 8), 2
		binary.BigEndian.PutUint16(out, p.sport)
		binary.BigEndian.PutUint16(out[4:], p.dport)
		binary.BigEndian.PutUint16(out[6:], p.mtu)
		out = append(append(out, p.quoted...), p.payload...)
		return p.finish(out, check)
	default:
		return p.payload
	}
	binary.BigEndian.PutUint16(out, p.sport)
	binary.BigEndian.PutUint16(out[2:], p.dport)
	return p.finish(append(out, p.payload...), check)
}

func (p packet) finish(out []byte, check int) []byte {
	if check < 0 || p.noCheck {
		return out
	}
	sum := onesSum(out)
	if p.proto != protoICMP {
		sum = pseudoSum(p.src, p.dst, p.proto, len(out)) + sum
	}
	c := ^fold(sum)
	if p.proto == protoUDP && c == 0 {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(out[check:], c)
	return out
}

func (p packet) ip4(body []byte) []byte {
	out := make([]byte, 20+p.options)
	out[0] = 0x40 | byte(len(out)/4)
	binary.BigEndian.PutUint16(out[2:], uint16(len(out)+len(body)))
	binary.BigEndian.PutUint16(out[4:], uint16(p.fragID))
	off := uint16(p.fragOff / 8)
	if p.more {
		off |= 0x2000
	}
	binary.BigEndian.PutUint16(out[6:], off)
	out[8], out[9] = 64, byte(p.proto)
	copy(out[12:], p.src.AsSlice())
	copy(out[16:], p.dst.AsSlice())
	for i := 20; i < len(out); i++ {
		out[i] = 1 // no operation
	}
	binary.BigEndian.PutUint16(out[10:], ^fold(onesSum(out)))
	return append(out, body...)
}

func (p packet) ip6(body []byte) []byte {
	next := p.proto
	for i := len(p.ext) - 1; i >= 0; i-- {
		h := make([]byte, 8)
		if i == len(p.ext)-1 && p.ext[i] != 44 && p.extLen > 8 {
			h = make([]byte, p.extLen)
			h[1] = byte(p.extLen/8 - 1)
		}
		h[0] = byte(next)
		if p.ext[i] == 44 {
			off := uint16(p.fragOff)
			if p.more {
				off |= 1
			}
			binary.BigEndian.PutUint16(h[2:], off)
			binary.BigEndian.PutUint32(h[4:], p.fragID)
		} else {
			h[2], h[3] = 1, 4 // PadN
		}
		body = append(h, body...)
		next = p.ext[i]
	}
	out := make([]byte, 40)
	out[0] = 0x60
	binary.BigEndian.PutUint16(out[4:], uint16(len(body)))
	out[6], out[7] = byte(next), 64
	copy(out[8:], p.src.AsSlice())
	copy(out[24:], p.dst.AsSlice())
	return append(out, body...)
}

// fragments splits the packet's IP payload; size is a multiple of 8.
func (p packet) fragments(size int) []packet {
	body := p.transport()
	var out []packet
	for at := 0; at < len(body); at += size {
		f := p
		f.fragOff, f.more, f.payload = at, at+size < len(body), body[at:min(at+size, len(body))]
		if f.src.Is6() {
			f.ext = append(append([]int{}, p.ext...), 44)
		}
		out = append(out, f)
	}
	return out
}

// frame returns fragment f of p, whose payload includes the transport header if it is the first one.
func (p packet) frame() []byte {
	head := packet{src: p.src, dst: p.dst, proto: p.proto, srcMAC: p.srcMAC, dstMAC: p.dstMAC}.bytes()[:14]
	if p.src.Is4() {
		return append(head, p.ip4(p.payload)...)
	}
	return append(head, p.ip6(p.payload)...)
}

func onesSum(b []byte) uint64 {
	var sum uint64
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint64(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint64(b[len(b)-1]) << 8
	}
	return sum
}

func pseudoSum(src, dst netip.Addr, proto, length int) uint64 {
	return onesSum(src.AsSlice()) + onesSum(dst.AsSlice()) + uint64(proto) + uint64(length)
}

func fold(sum uint64) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func tcp(src string, sport uint16, dst string, dport uint16, flags uint8) packet {
	return packet{src: addr(src), dst: addr(dst), proto: protoTCP, sport: sport, dport: dport, flags: flags, seq: 1000,
		ack: 2000}
}

func udp(src string, sport uint16, dst string, dport uint16) packet {
	return packet{src: addr(src), dst: addr(dst), proto: protoUDP, sport: sport, dport: dport,
		payload: []byte("hello kerb")}
}

// icmp returns an echo or an error; t is the type, id the identifier.
func icmp(src, dst string, t uint8, id uint16) packet {
	p := packet{src: addr(src), dst: addr(dst), proto: protoICMP, sport: uint16(t) << 8, dport: id,
		payload: []byte("echo payload")}
	if p.src.Is6() {
		p.proto = protoICMPv6
	}
	return p
}
