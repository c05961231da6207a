// SPDX-License-Identifier: Apache-2.0

// Package pkttest makes the packets of package tests: of fields, of hexadecimal text, or of a capture.
package pkttest

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
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

type packetSource interface {
	ReadPacketData() ([]byte, gopacket.CaptureInfo, error)
	LinkType() layers.LinkType
}

func readCapture(path string) (all [][]byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	source, err := openCapture(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if source.LinkType() != layers.LinkTypeEthernet {
		return nil, fmt.Errorf("%s: its packets are %v, not Ethernet", path, source.LinkType())
	}
	for {
		frame, _, err := source.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, frame)
	}
}

func openCapture(f io.ReadSeeker) (packetSource, error) {
	reader, err := pcapgo.NewReader(f)
	if err == nil {
		return reader, nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	next, ngErr := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if ngErr != nil {
		return nil, fmt.Errorf("neither pcap (%w) nor pcapng (%w)", err, ngErr)
	}
	return next, nil
}

func (f *Fields) frame() ([]byte, error) {
	if !f.Src.IsValid() || !f.Dst.IsValid() || f.Src.Is4() != f.Dst.Is4() {
		return nil, errors.New("src and dst must be two addresses of one family")
	}
	stack, err := f.ethernet()
	if err != nil {
		return nil, err
	}
	network, protocol := f.network()
	transport, err := f.transport(network, protocol)
	if err != nil {
		return nil, err
	}
	stack = append(append(append(stack, network), transport...), gopacket.Payload(f.Payload))
	buffer := gopacket.NewSerializeBuffer()
	err = gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, stack...)
	return buffer.Bytes(), err
}

func (f *Fields) ethernet() ([]gopacket.SerializableLayer, error) {
	src, srcErr := mac(f.SrcMAC, "02:00:00:00:00:01")
	dst, dstErr := mac(f.DstMAC, "02:00:00:00:00:02")
	kind := layers.EthernetTypeIPv6
	if f.Src.Is4() {
		kind = layers.EthernetTypeIPv4
	}
	eth := &layers.Ethernet{SrcMAC: src, DstMAC: dst, EthernetType: kind}
	stack := []gopacket.SerializableLayer{eth}
	if f.VLAN != 0 {
		eth.EthernetType = layers.EthernetTypeDot1Q
		stack = append(stack, &layers.Dot1Q{VLANIdentifier: f.VLAN, Type: kind})
	}
	return stack, errors.Join(srcErr, dstErr)
}

func mac(text, otherwise string) (net.HardwareAddr, error) {
	if text == "" {
		text = otherwise
	}
	return net.ParseMAC(text)
}

// networkLayer is IPv4 or IPv6.
type networkLayer interface {
	gopacket.SerializableLayer
	gopacket.NetworkLayer
}

func (f *Fields) network() (networkLayer, layers.IPProtocol) {
	ttl, protocol := f.TTL, layers.IPProtocolNoNextHeader
	if ttl == 0 {
		ttl = 64
	}
	switch {
	case f.TCP != nil:
		protocol = layers.IPProtocolTCP
	case f.UDP != nil:
		protocol = layers.IPProtocolUDP
	case f.ICMP != nil && f.Src.Is4():
		protocol = layers.IPProtocolICMPv4
	case f.ICMP != nil:
		protocol = layers.IPProtocolICMPv6
	}
	if f.Src.Is4() {
		return &layers.IPv4{Version: 4, TTL: ttl, TOS: f.TOS, Protocol: protocol, SrcIP: f.Src.AsSlice(), DstIP: f.Dst.AsSlice()}, protocol
	}
	return &layers.IPv6{Version: 6, HopLimit: ttl, TrafficClass: f.TOS, NextHeader: protocol, SrcIP: f.Src.AsSlice(), DstIP: f.Dst.AsSlice()}, protocol
}

func (f *Fields) transport(network networkLayer, protocol layers.IPProtocol) ([]gopacket.SerializableLayer, error) {
	switch protocol {
	case layers.IPProtocolTCP:
		t := &layers.TCP{SrcPort: layers.TCPPort(f.TCP.Src), DstPort: layers.TCPPort(f.TCP.Dst), Seq: f.TCP.Seq, Ack: f.TCP.Ack, Window: 64240}
		if err := setFlags(t, f.TCP.Flags); err != nil {
			return nil, err
		}
		return []gopacket.SerializableLayer{t}, t.SetNetworkLayerForChecksum(network)
	case layers.IPProtocolUDP:
		u := &layers.UDP{SrcPort: layers.UDPPort(f.UDP.Src), DstPort: layers.UDPPort(f.UDP.Dst)}
		return []gopacket.SerializableLayer{u}, u.SetNetworkLayerForChecksum(network)
	case layers.IPProtocolICMPv4:
		return []gopacket.SerializableLayer{&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(f.ICMP.Type, f.ICMP.Code), Id: f.ICMP.ID, Seq: f.ICMP.Seq}}, nil
	case layers.IPProtocolICMPv6:
		i := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(f.ICMP.Type, f.ICMP.Code)}
		echo := gopacket.Payload([]byte{byte(f.ICMP.ID >> 8), byte(f.ICMP.ID), byte(f.ICMP.Seq >> 8), byte(f.ICMP.Seq)})
		return []gopacket.SerializableLayer{i, echo}, i.SetNetworkLayerForChecksum(network)
	}
	return nil, nil
}

func setFlags(t *layers.TCP, flags string) error {
	for _, flag := range flags {
		at := map[rune]*bool{'S': &t.SYN, 'A': &t.ACK, 'F': &t.FIN, 'R': &t.RST, 'P': &t.PSH, 'U': &t.URG, 'E': &t.ECE, 'C': &t.CWR}[flag]
		if at == nil {
			return fmt.Errorf("tcp.flags %q: use the letters S, A, F, R, P, U, E and C", flags)
		}
		*at = true
	}
	return nil
}
