// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// Packet is a packet that Oakestra's NetManager translates in user space: TCP and UDP over both IP versions, without
// extension headers. NetManager ignores fragmentation: it treats the start of each fragment as a TCP or UDP header.
type Packet struct {
	Raw              []byte
	Src, Dst         netip.Addr
	At, L4           int // of the source address, and of the transport header
	SrcPort, DstPort uint16
	UDP              bool
}

// ParsePacket reports whether NetManager would translate the packet, which stays part of the result.
func ParsePacket(raw []byte) (p Packet, ok bool) {
	p.Raw = raw
	var proto byte
	switch {
	case len(raw) >= 20 && raw[0]>>4 == 4:
		p.At, p.L4, proto = 12, int(raw[0]&15)*4, raw[9]
		p.Src, p.Dst = netip.AddrFrom4([4]byte(raw[12:])), netip.AddrFrom4([4]byte(raw[16:]))
	case len(raw) >= 40 && raw[0]>>4 == 6:
		p.At, p.L4, proto = 8, 40, raw[6]
		p.Src, p.Dst = netip.AddrFrom16([16]byte(raw[8:])), netip.AddrFrom16([16]byte(raw[24:]))
	default:
		return p, false
	}
	least := 8
	if p.UDP = proto == unix.IPPROTO_UDP; !p.UDP {
		least = 20
	}
	if !p.UDP && proto != unix.IPPROTO_TCP || len(raw) < p.L4+least {
		return p, false
	}
	p.SrcPort, p.DstPort = binary.BigEndian.Uint16(raw[p.L4:]), binary.BigEndian.Uint16(raw[p.L4+2:])
	return p, true
}

// Between returns the packet with other addresses. It recomputes checksums and the UDP length without regard to
// fragmentation, which overwrites four bytes of later fragments.
func (p Packet) Between(src, dst netip.Addr) []byte {
	raw := append([]byte(nil), p.Raw...)
	body := raw[p.L4:]
	copy(raw[p.At:], src.AsSlice())
	copy(raw[p.At+src.BitLen()/8:], dst.AsSlice())
	proto, at := uint32(unix.IPPROTO_TCP), 16
	if p.UDP {
		proto, at = unix.IPPROTO_UDP, 6
		binary.BigEndian.PutUint16(body[4:], uint16(len(body)))
	}
	check := body[at : at+2]
	clear(check)
	lengths := binary.BigEndian.AppendUint32(nil, proto+uint32(len(body)))
	sum := sdk.Checksum(lengths, raw[p.At:p.At+src.BitLen()/4], body)
	if sum == 0 && p.UDP {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(check, sum)
	if src.Is4() {
		clear(raw[10:12])
		binary.BigEndian.PutUint16(raw[10:], sdk.Checksum(raw[:p.L4]))
	}
	return raw
}
