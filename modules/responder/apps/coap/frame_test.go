// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

var errChecksum = errors.New("wrong checksum")

// sum returns the ones' complement sum of RFC 1071.
func sum(start uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		start += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		start += uint32(b[0]) << 8
	}
	for start > 0xffff {
		start = start>>16 + start&0xffff
	}
	return start
}

func pseudo(from, to netip.Addr, udp []byte) uint32 {
	return sum(sum(sum(uint32(len(udp))+17, from.AsSlice()), to.AsSlice()), udp)
}

// frame returns a UDP datagram in Ethernet.
func frame(from, to netip.AddrPort, payload []byte) []byte {
	udp := binary.BigEndian.AppendUint16(nil, from.Port())
	udp = binary.BigEndian.AppendUint16(udp, to.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(payload)))
	udp = append(append(udp, 0, 0), payload...)
	check := ^uint16(pseudo(from.Addr(), to.Addr(), udp))
	if check == 0 { // would mean that there is none (RFC 768)
		check = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], check)
	out := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	if from.Addr().Is4() {
		ip := make([]byte, 20)
		ip[0], ip[8], ip[9] = 0x45, 64, 17
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(udp)))
		copy(ip[12:], from.Addr().AsSlice())
		copy(ip[16:], to.Addr().AsSlice())
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum(0, ip)))
		return append(append(append(out, 0x08, 0x00), ip...), udp...)
	}
	ip := make([]byte, 40)
	ip[0], ip[6], ip[7] = 0x60, 17, 64
	binary.BigEndian.PutUint16(ip[4:], uint16(len(udp)))
	copy(ip[8:], from.Addr().AsSlice())
	copy(ip[24:], to.Addr().AsSlice())
	return append(append(append(out, 0x86, 0xdd), ip...), udp...)
}

// unframe is the reverse of frame, and returns errors for wrong checksums and lengths.
func unframe(b []byte) (from, to netip.AddrPort, payload []byte, err error) {
	var ip, udp []byte
	var src, dst []byte
	if b[12] == 8 {
		ip = b[14 : 14+binary.BigEndian.Uint16(b[16:])]
		if sum(0, ip[:20]) != 0xffff {
			err = errChecksum
		}
		src, dst, udp = ip[12:16], ip[16:20], ip[20:]
	} else {
		ip = b[14 : 54+binary.BigEndian.Uint16(b[18:])]
		src, dst, udp = ip[8:24], ip[24:40], ip[40:]
	}
	f, _ := netip.AddrFromSlice(src)
	t, _ := netip.AddrFromSlice(dst)
	from = netip.AddrPortFrom(f, binary.BigEndian.Uint16(udp))
	to = netip.AddrPortFrom(t, binary.BigEndian.Uint16(udp[2:]))
	if int(binary.BigEndian.Uint16(udp[4:])) != len(udp) || binary.BigEndian.Uint16(udp[6:]) == 0 ||
		pseudo(f, t, udp) != 0xffff {
		err = errChecksum
	}
	return from, to, udp[8:], err
}
