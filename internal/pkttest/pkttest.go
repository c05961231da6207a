// SPDX-License-Identifier: Apache-2.0

// Package pkttest makes the packets of package tests (from fields, hexadecimal text or a capture), and runs them
// through a module in the kernel.
package pkttest

import (
	"encoding/hex"
	"errors"
	"path/filepath"
	"strings"

	"github.com/kerb-edge/kerb/internal/packet"
)

// Packet is exactly one of hex, pcap and fields.
type Packet struct {
	Hex    string  `json:"hex,omitempty"`  // spaces are ignored
	Pcap   string  `json:"pcap,omitempty"` // pcap or pcapng; all packets in it
	Fields *Fields `json:"fields,omitempty"`
}

// Fields are a packet in the form of test files.
type (
	Fields = packet.Fields
	Ports  = packet.Ports
	TCP    = packet.TCP
	ICMP   = packet.ICMP
)

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
	frame, err := p.Fields.Frame()
	return [][]byte{frame}, err
}
