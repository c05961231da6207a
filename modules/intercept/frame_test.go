// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"encoding/binary"
	"net/netip"
)

const (
	icmp   = 1
	tcp    = 6
	udp    = 17
	icmpv6 = 58
)

// frame describes the encapsulation of a packet. Checksums are zero, since nothing reads them.
type frame struct {
	src, dst     netip.Addr
	proto        uint8
	sport, dport uint16
	payload      []byte
	vlans        int
	options      int     // bytes of IPv4 options, a multiple of 4
	ext          []uint8 // IPv6 extension headers by number (0 hop-by-hop, 60 destination, 44 fragment)
	extLen       int     // bytes of the last of them, a multiple of 8; 8 unless set
	fragOff      int     // bytes; with more or an offset this is a fragment
	more         bool
	tcpOptions   int // bytes, a multiple of 4
}

func packet(src, dst string, proto uint8, sport, dport uint16, payload string) frame {
	return frame{src: netip.MustParseAddr(src), dst: netip.MustParseAddr(dst), proto: proto, sport: sport, dport: dport,
		payload: []byte(payload)}
}

// datagram returns a datagram for most tests.
func datagram(dport uint16, payload string) frame {
	return packet("10.0.0.1", "10.0.0.2", udp, 40000, dport, payload)
}

func (f frame) linkLen() int { return 14 + 4*f.vlans }

func (f frame) ipLen() int {
	if f.src.Is4() {
		return 20 + f.options
	}
	return 40 + 8*len(f.ext) + max(0, f.extLen-8)
}

// payloadAt returns the offset of the payload in the frame.
func (f frame) payloadAt() int { return f.linkLen() + f.ipLen() + len(f.transport()) }

func (f frame) bytes() []byte {
	out := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	for range f.vlans {
		out = append(out, 0x81, 0x00, 0x00, 0x05)
	}
	body := append(f.transport(), f.payload...)
	if f.src.Is4() {
		return append(append(append(out, 0x08, 0x00), f.ip4(len(body))...), body...)
	}
	return append(append(append(out, 0x86, 0xdd), f.ip6(len(body))...), body...)
}

// transport returns the transport header; later fragments have none.
func (f frame) transport() []byte {
	if f.fragOff > 0 {
		return nil
	}
	switch f.proto {
	case tcp:
		out := make([]byte, 20+f.tcpOptions)
		binary.BigEndian.PutUint16(out, f.sport)
		binary.BigEndian.PutUint16(out[2:], f.dport)
		out[12] = byte(len(out) / 4 << 4)
		return out
	case udp:
		out := make([]byte, 8)
		binary.BigEndian.PutUint16(out, f.sport)
		binary.BigEndian.PutUint16(out[2:], f.dport)
		binary.BigEndian.PutUint16(out[4:], uint16(8+len(f.payload)))
		return out
	case icmp, icmpv6:
		return make([]byte, 8)
	}
	return nil
}

func (f frame) fragment() (word uint16) {
	if f.more {
		word = 1
	}
	return word | uint16(f.fragOff) // IPv6; the offset is a multiple of 8
}

func (f frame) ip4(body int) []byte {
	out := make([]byte, 20+f.options)
	out[0] = 0x40 | byte(len(out)/4)
	binary.BigEndian.PutUint16(out[2:], uint16(len(out)+body))
	off := uint16(f.fragOff / 8)
	if f.more {
		off |= 0x2000
	}
	binary.BigEndian.PutUint16(out[6:], off)
	out[8], out[9] = 64, f.proto
	copy(out[12:], f.src.AsSlice())
	copy(out[16:], f.dst.AsSlice())
	for i := 20; i < len(out); i++ {
		out[i] = 1 // no operation
	}
	return out
}

func (f frame) ip6(body int) []byte {
	var headers []byte
	next := f.proto
	for i := len(f.ext) - 1; i >= 0; i-- {
		h := make([]byte, 8)
		if i == len(f.ext)-1 && f.extLen > 8 {
			h = make([]byte, f.extLen)
			h[1] = byte(f.extLen/8 - 1)
		}
		h[0] = next
		if f.ext[i] == 44 {
			binary.BigEndian.PutUint16(h[2:], f.fragment())
		} else {
			h[2], h[3] = 1, 4 // PadN
		}
		headers, next = append(h, headers...), f.ext[i]
	}
	out := make([]byte, 40)
	out[0] = 0x60
	binary.BigEndian.PutUint16(out[4:], uint16(len(headers)+body))
	out[6], out[7] = next, 64
	copy(out[8:], f.src.AsSlice())
	copy(out[24:], f.dst.AsSlice())
	return append(out, headers...)
}
