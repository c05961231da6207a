// SPDX-License-Identifier: Apache-2.0

// Package pkttest makes the packets of package tests (from fields, hexadecimal text or a capture), and runs them
// through a module in the kernel.
package pkttest

import (
	"encoding/hex"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
)

// Packet is exactly one of hex, pcap and fields.
type Packet struct {
	Hex    string  `json:"hex,omitempty"`  // spaces are ignored
	Pcap   string  `json:"pcap,omitempty"` // pcap or pcapng; all packets in it
	Fields *Fields `json:"fields,omitempty"`
}

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

// Frames returns the packets. Captures are relative to dir.
func (p Packet) Frames(dir string) ([][]byte, error) {
	given := 0
	for _, set := range []bool{p.Hex != "", p.Pcap != "", p.Fields != nil} {
		if set {
			given++
		}
	}
	switch {
	case given != 1:
		return nil, errors.New("set exactly one of hex, pcap and fields")
	case p.Pcap != "":
		if !filepath.IsAbs(p.Pcap) {
			p.Pcap = filepath.Join(dir, p.Pcap)
		}
		return readCapture(p.Pcap)
	case p.Hex != "":
		frame, err := hex.DecodeString(strings.Join(strings.Fields(p.Hex), ""))
		return [][]byte{frame}, err
	}
	frame, err := p.Fields.frame()
	return [][]byte{frame}, err
}
