// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"slices"

	abi "github.com/kerb-edge/kerb/internal/kerbabi"
)

// Dissect returns what the head of a chain finds in a frame that is linear in
// the kernel. It is written from the rules in bpf/include/kerb/parse.h, not
// from the code: the frame is cut into views, each read with its own length.
// Only what depends on the frame is filled in.
func Dissect(frame []byte) abi.Packet {
	m := dissection{frame: frame}
	m.Len = uint32(len(frame))
	m.DataEnd = uint64(len(frame))
	m.Outcome = m.ethernet()
	return m.Packet
}

type dissection struct {
	abi.Packet
	frame []byte
}

var be = binary.BigEndian

// tagTypes announce a VLAN tag: IEEE 802.1Q, 802.1ad, and what switches used before that.
var tagTypes = []uint16{0x8100, 0x88a8, 0x9100, 0x9200}

// ethernet skips at most abi.VLANDepth tags and notes the VLAN of the outermost. Its checks and their order are those
// of the kernel's parser: tests compare the two.
func (m *dissection) ethernet() abi.ParseOutcome {
	if len(m.frame) < 14 {
		return abi.ParseShortL2
	}
	tags := 0
	for {
		offset := 14 + 4*tags
		m.L3, m.L4 = uint64(offset), uint64(offset)
		m.EthType = be.Uint16(m.frame[offset-2:])
		if !slices.Contains(tagTypes, m.EthType) {
			break
		}
		if tags == abi.VLANDepth {
			return abi.ParseVLANDepth
		}
		if len(m.frame) < offset+4 {
			return abi.ParseShortL2
		}
		if tags == 0 {
			m.VLAN = be.Uint16(m.frame[offset:])
		}
		tags++
	}
	switch m.EthType {
	case 0x0800:
		return m.ip4(m.frame[m.L3:])
	case 0x86dd:
		return m.ip6(m.frame[m.L3:])
	}
	return abi.ParseNotIP
}

// datagramLength is the length that an IP header states for what rest holds; 0
// is allowed where the field is too small.
func datagramLength(stated uint16, rest []byte) int {
	if stated == 0 && len(rest) > 0xffff {
		return len(rest)
	}
	return int(stated)
}

// ip4 parses the IPv4 header. Bytes behind the total length are padding; a total length beyond the frame is malformed.
// Only the first fragment has a transport header.
func (m *dissection) ip4(rest []byte) abi.ParseOutcome {
	switch {
	case len(rest) < 20:
		return abi.ParseShortL3
	case rest[0]>>4 != 4:
		return abi.ParseBadVersion
	case rest[0]&15 < 5:
		return abi.ParseBadIHL
	}
	header := int(rest[0]&15) * 4
	if len(rest) < header {
		return abi.ParseShortL3
	}
	total := datagramLength(be.Uint16(rest[2:]), rest)
	if total < header || total > len(rest) {
		return abi.ParseBadLength
	}
	if header > 20 {
		m.Flags |= abi.FlagOptions
	}
	fragment := be.Uint16(rest[6:])
	m.fragment(fragment&0x1fff != 0, fragment&0x2000 != 0)
	m.Family, m.Proto = 4, rest[9]
	return m.transport(rest[:total], header)
}

func (m *dissection) fragment(later, more bool) {
	switch {
	case later:
		m.Flags |= abi.FlagFragLater
	case more:
		m.Flags |= abi.FlagFragFirst
	}
}

// Extension headers by their IANA numbers.
const (
	fragmentHeader = 44
	authentication = 51
)

var extensionHeaders = []uint8{0, 43, 60, 135, fragmentHeader, authentication}

// ip6 parses the IPv6 header and walks at most abi.MaxExt extension headers. The header of a later fragment ends the
// walk, as what follows is payload.
func (m *dissection) ip6(rest []byte) abi.ParseOutcome {
	switch {
	case len(rest) < 40:
		return abi.ParseShortL3
	case rest[0]>>4 != 6:
		return abi.ParseBadVersion
	}
	payload := datagramLength(be.Uint16(rest[4:]), rest[40:])
	if payload > len(rest)-40 {
		return abi.ParseBadLength
	}
	datagram := rest[:40+payload]
	m.Family, m.Proto = 6, rest[6]
	at := 40
	for seen := 0; slices.Contains(extensionHeaders, m.Proto); seen++ {
		size, outcome := extension(m.Proto, datagram[at:])
		if seen == abi.MaxExt || outcome == abi.ParseOK && int(m.L3)+at+size > abi.MaxHdrs {
			outcome = abi.ParseExtDepth
		}
		if outcome != abi.ParseOK {
			m.place(datagram, at)
			return outcome
		}
		m.step(datagram[at:])
		at += size
		if m.Flags&abi.FlagFragLater != 0 {
			break
		}
	}
	return m.transport(datagram, at)
}

// extension is the size of an extension header, and whether it fits.
func extension(kind uint8, rest []byte) (int, abi.ParseOutcome) {
	if len(rest) < 8 {
		return 0, abi.ParseShortL3
	}
	size := 8 * (int(rest[1]) + 1)
	switch kind {
	case fragmentHeader:
		size = 8
	case authentication:
		size = 4 * (int(rest[1]) + 2)
	}
	if size > len(rest) {
		return 0, abi.ParseBadLength
	}
	return size, abi.ParseOK
}

// step notes an extension header and names the next.
func (m *dissection) step(header []byte) {
	if m.Proto == fragmentHeader {
		field := be.Uint16(header[2:])
		m.fragment(field>>3 != 0, field&1 != 0)
	} else {
		m.Flags |= abi.FlagExt
	}
	m.Proto = header[0]
}

// place puts l4 at an offset of the datagram.
func (m *dissection) place(datagram []byte, at int) {
	m.L4 = m.L3 + uint64(at)
	m.L4Len = uint32(len(datagram) - at)
}

// transport sets abi.FlagL4 only for TCP, UDP, ICMP and ICMPv6 with a complete header. Other protocols are no error:
// they have no ports.
func (m *dissection) transport(datagram []byte, at int) abi.ParseOutcome {
	m.place(datagram, at)
	if m.Flags&abi.FlagFragLater != 0 {
		return abi.ParseOK
	}
	segment := datagram[at:]
	outcome, known := abi.ParseOK, true
	switch {
	case m.Proto == 6:
		outcome = tcpOutcome(segment)
	case m.Proto == 17:
		outcome = m.udpOutcome(segment)
	case m.Proto == 1 && m.Family == 4, m.Proto == 58 && m.Family == 6:
		if len(segment) < 8 {
			outcome = abi.ParseShortL4
		}
	default:
		known = false
	}
	if known && outcome == abi.ParseOK {
		m.Flags |= abi.FlagL4
	}
	return outcome
}

func tcpOutcome(segment []byte) abi.ParseOutcome {
	if len(segment) < 20 {
		return abi.ParseShortL4
	}
	switch header := int(segment[12]>>4) * 4; {
	case header < 20:
		return abi.ParseBadL4
	case header > len(segment):
		return abi.ParseShortL4
	}
	return abi.ParseOK
}

func (m *dissection) udpOutcome(segment []byte) abi.ParseOutcome {
	if len(segment) < 8 {
		return abi.ParseShortL4
	}
	stated := int(be.Uint16(segment[4:]))
	whole := m.Flags&abi.FlagFragFirst == 0
	switch {
	case stated == 0 && (m.Family == 6 || len(segment) > 0xffff): // all that the IP header leaves
		return abi.ParseOK
	case stated < 8, stated > len(segment) && whole:
		return abi.ParseBadL4
	}
	return abi.ParseOK
}
