// SPDX-License-Identifier: Apache-2.0

// Package packet builds Ethernet frames for test runs, from fields or from a description in the words of tcpdump.
package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

const (
	minFrame  = 60 // without its checksum
	tcpWindow = 64240
	tcpHeader = 20
)

// Fields are an Ethernet frame with IPv4 or IPv6; lengths and checksums are right.
type Fields struct {
	SrcMAC  string     `json:"srcMAC,omitempty"`
	DstMAC  string     `json:"dstMAC,omitempty"`
	VLAN    uint16     `json:"vlan,omitempty" maximum:"4094"`
	Src     netip.Addr `json:"src"`
	Dst     netip.Addr `json:"dst"`
	TTL     uint8      `json:"ttl,omitempty" maximum:"255"`
	TOS     uint8      `json:"tos,omitempty" maximum:"255"`
	TCP     *TCP       `json:"tcp,omitempty"`
	UDP     *Ports     `json:"udp,omitempty"`
	ICMP    *ICMP      `json:"icmp,omitempty"`
	Payload string     `json:"payload,omitempty"`
}

// Ports are those of a datagram.
type Ports struct {
	Src uint16 `json:"src,omitempty" maximum:"65535"`
	Dst uint16 `json:"dst,omitempty" maximum:"65535"`
}

// TCP is a segment.
type TCP struct {
	Ports
	Flags string `json:"flags,omitempty"` // as in S, SA, PA, F, R
	Seq   uint32 `json:"seq,omitempty"`
	Ack   uint32 `json:"ack,omitempty"`
}

// ICMP is a message, of ICMPv6 if the addresses are.
type ICMP struct {
	Type uint8  `json:"type,omitempty" maximum:"255"`
	Code uint8  `json:"code,omitempty" maximum:"255"`
	ID   uint16 `json:"id,omitempty" maximum:"65535"`
	Seq  uint16 `json:"seq,omitempty" maximum:"65535"`
}

// Frame returns the frame, of 60 bytes at least, as Ethernet pads it.
func (f *Fields) Frame() ([]byte, error) {
	if !f.Src.IsValid() || !f.Dst.IsValid() || f.Src.Is4() != f.Dst.Is4() {
		return nil, errors.New("src and dst must be two addresses of one family")
	}
	ethernet, err := f.ethernet()
	if err != nil {
		return nil, err
	}
	transport, protocol, err := f.transport()
	if err != nil {
		return nil, err
	}
	frame := slices.Concat(ethernet, f.network(protocol, len(transport)), transport)
	return append(frame, make([]byte, max(0, minFrame-len(frame)))...), nil
}

// ethernet returns the Ethernet header in network byte order, with one 802.1Q tag if VLAN is not 0. Missing addresses
// are locally administered ones.
func (f *Fields) ethernet() ([]byte, error) {
	src, srcErr := mac(f.SrcMAC, "02:00:00:00:00:01")
	dst, dstErr := mac(f.DstMAC, "02:00:00:00:00:02")
	header := slices.Concat(dst, src)
	if f.VLAN != 0 {
		header = binary.BigEndian.AppendUint16(header, unix.ETH_P_8021Q)
		header = binary.BigEndian.AppendUint16(header, f.VLAN)
	}
	protocol := uint16(unix.ETH_P_IPV6)
	if f.Src.Is4() {
		protocol = unix.ETH_P_IP
	}
	return binary.BigEndian.AppendUint16(header, protocol), errors.Join(srcErr, dstErr)
}

func mac(text, otherwise string) (net.HardwareAddr, error) {
	if text == "" {
		text = otherwise
	}
	address, err := net.ParseMAC(text)
	if err == nil && len(address) != 6 {
		err = fmt.Errorf("MAC address %s: it must have 6 bytes", text)
	}
	return address, err
}

// network is the header of IPv4 or IPv6 before a payload of a length.
func (f *Fields) network(protocol uint8, length int) []byte {
	ttl := f.TTL
	if ttl == 0 {
		ttl = 64
	}
	if !f.Src.Is4() {
		header := []byte{6<<4 | f.TOS>>4, f.TOS << 4, 0, 0, byte(length >> 8), byte(length), protocol, ttl}
		return slices.Concat(header, f.Src.AsSlice(), f.Dst.AsSlice())
	}
	length += 20
	header := []byte{0x45, f.TOS, byte(length >> 8), byte(length), 0, 0, 0, 0, ttl, protocol, 0, 0}
	header = slices.Concat(header, f.Src.AsSlice(), f.Dst.AsSlice())
	binary.BigEndian.PutUint16(header[10:], sdk.Checksum(header))
	return header
}

// transport is what follows the header of IP, and its protocol.
func (f *Fields) transport() (segment []byte, protocol uint8, err error) {
	at := 0 // of the checksum
	switch {
	case f.TCP != nil:
		protocol, at = unix.IPPROTO_TCP, 16
		segment, err = f.TCP.header()
	case f.UDP != nil:
		protocol, at = unix.IPPROTO_UDP, 6
		segment = appendUint16s(nil, f.UDP.Src, f.UDP.Dst, uint16(8+len(f.Payload)), 0)
	case f.ICMP != nil:
		protocol, at = unix.IPPROTO_ICMPV6, 2
		segment = appendUint16s([]byte{f.ICMP.Type, f.ICMP.Code}, 0, f.ICMP.ID, f.ICMP.Seq)
	default:
		return []byte(f.Payload), unix.IPPROTO_NONE, nil
	}
	segment = append(segment, f.Payload...)
	pseudo := f.pseudoHeader(protocol, len(segment))
	if f.ICMP != nil && f.Src.Is4() {
		protocol, pseudo = unix.IPPROTO_ICMP, nil
	}
	sum := sdk.Checksum(pseudo, segment)
	if sum == 0 && protocol == unix.IPPROTO_UDP { // 0 would be none
		sum = 0xffff
	}
	if err == nil {
		binary.BigEndian.PutUint16(segment[at:], sum)
	}
	return segment, protocol, err
}

// pseudoHeader is what checksums cover besides the segment; that of IPv4 is shorter, and sums up to the same.
func (f *Fields) pseudoHeader(protocol uint8, length int) []byte {
	header := slices.Concat(f.Src.AsSlice(), f.Dst.AsSlice())
	return append(binary.BigEndian.AppendUint32(header, uint32(length)), 0, 0, 0, protocol)
}

func (t *TCP) header() ([]byte, error) {
	const letters = "FSRPAUEC" // by bit
	flags := byte(0)
	for _, flag := range t.Flags {
		at := strings.IndexRune(letters, flag)
		if at < 0 {
			return nil, fmt.Errorf("tcp.flags %q: use the letters S, A, F, R, P, U, E and C", t.Flags)
		}
		flags |= 1 << at
	}
	header := appendUint16s(nil, t.Src, t.Dst)
	header = binary.BigEndian.AppendUint32(header, t.Seq)
	header = binary.BigEndian.AppendUint32(header, t.Ack)
	return appendUint16s(append(header, tcpHeader/4<<4, flags), tcpWindow, 0, 0), nil
}

func appendUint16s(to []byte, values ...uint16) []byte {
	for _, v := range values {
		to = binary.BigEndian.AppendUint16(to, v)
	}
	return to
}
