// SPDX-License-Identifier: Apache-2.0

package bpftest

import (
	"encoding/binary"
	"net"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

var (
	be = binary.BigEndian
	ne = binary.NativeEndian
)

var (
	macA = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	macB = net.HardwareAddr{2, 0, 0, 0, 0, 2}
	ip4A = net.IP{192, 0, 2, 1}
	ip4B = net.IP{198, 51, 100, 2}
	ip6A = net.ParseIP("2001:db8::1")
	ip6B = net.ParseIP("2001:db8:1::2")
)

const (
	protoTCP    = 6
	protoUDP    = 17
	protoICMP   = 1
	protoIGMP   = 2
	protoICMPv6 = 58
	protoSCTP   = 132
	protoESP    = 50
	protoNone   = 59

	fragmentHeader = 44
	authentication = 51
)

// extensionHeaders of IPv6, by their IANA numbers.
var extensionHeaders = []uint8{0, 43, 60, 135, fragmentHeader, authentication}

// serialize puts layers together with right lengths and checksums.
func serialize(tb testing.TB, parts ...gopacket.SerializableLayer) []byte {
	tb.Helper()
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, opts, parts...); err != nil {
		tb.Fatal(err)
	}
	return slices.Clone(buf.Bytes())
}

func ethernet(t layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{SrcMAC: macA, DstMAC: macB, EthernetType: t}
}

// ether4 and ether6 start a frame; tags are VLAN IDs, outermost first.
func ether4(tags ...uint16) []gopacket.SerializableLayer { return ether(layers.EthernetTypeIPv4, tags) }
func ether6(tags ...uint16) []gopacket.SerializableLayer { return ether(layers.EthernetTypeIPv6, tags) }

func ether(t layers.EthernetType, tags []uint16) []gopacket.SerializableLayer {
	parts := []gopacket.SerializableLayer{ethernet(t)}
	next := &parts[0].(*layers.Ethernet).EthernetType
	for i, id := range tags {
		tag := &layers.Dot1Q{VLANIdentifier: id, Type: t}
		*next = layers.EthernetTypeDot1Q
		if i == 0 && len(tags) > 1 {
			*next = layers.EthernetTypeQinQ
		}
		next = &tag.Type
		parts = append(parts, tag)
	}
	return parts
}

// ipv4 is a header with so many bytes of options.
func ipv4(proto layers.IPProtocol, options int) *layers.IPv4 {
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: ip4A, DstIP: ip4B}
	for range options {
		ip.Options = append(ip.Options, layers.IPv4Option{OptionType: 1})
	}
	return ip
}

func ipv6(next layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: next, SrcIP: ip6A, DstIP: ip6B}
}

type networkLayer interface {
	gopacket.NetworkLayer
	gopacket.SerializableLayer
}

func udp(ip gopacket.NetworkLayer) *layers.UDP {
	u := &layers.UDP{SrcPort: 1234, DstPort: 53}
	u.SetNetworkLayerForChecksum(ip)
	return u
}

func tcp(ip gopacket.NetworkLayer, options int) *layers.TCP {
	t := &layers.TCP{SrcPort: 40000, DstPort: 80, Seq: 1, Ack: 2, ACK: true, Window: 1000}
	for range options {
		t.Options = append(t.Options, layers.TCPOption{OptionType: layers.TCPOptionKindNop})
	}
	t.SetNetworkLayerForChecksum(ip)
	return t
}

// frame4 is a whole frame: start, IP, transport, payload.
func frame4(tb testing.TB, start []gopacket.SerializableLayer, ip networkLayer,
	rest ...gopacket.SerializableLayer) []byte {
	return serialize(tb, append(append(start, ip), rest...)...)
}

// payload is n bytes that are all different from their neighbours.
func payload(n int) gopacket.Payload {
	p := make(gopacket.Payload, n)
	for i := range p {
		p[i] = byte(i*7 + 1)
	}
	return p
}

func udp4(tb testing.TB, options, size int, tags ...uint16) []byte {
	ip := ipv4(protoUDP, options)
	return frame4(tb, ether4(tags...), ip, udp(ip), payload(size))
}

func tcp4(tb testing.TB, options, tcpOptions, size int, tags ...uint16) []byte {
	ip := ipv4(protoTCP, options)
	return frame4(tb, ether4(tags...), ip, tcp(ip, tcpOptions), payload(size))
}

// ext is an IPv6 extension header of so many bytes; field is offset and flags
// of a Fragment header.
type ext struct {
	kind  uint8
	size  int
	field uint16
}

// chain6 is the bytes of extension headers in front of a transport protocol,
// and the number of the first.
func chain6(exts []ext, proto uint8) (layers.IPProtocol, []byte) {
	var out []byte
	for i, e := range exts {
		next := proto
		if i+1 < len(exts) {
			next = exts[i+1].kind
		}
		header := make([]byte, e.size)
		header[0] = next
		switch e.kind {
		case fragmentHeader:
			be.PutUint16(header[2:], e.field)
		case authentication:
			header[1] = byte(e.size/4 - 2)
		default:
			header[1] = byte(e.size/8 - 1)
		}
		out = append(out, header...)
	}
	if len(exts) > 0 {
		proto = exts[0].kind
	}
	return layers.IPProtocol(proto), out
}

// frame6 is an IPv6 frame with extension headers before a transport segment.
func frame6(tb testing.TB, exts []ext, proto uint8, segment []byte, tags ...uint16) []byte {
	next, chain := chain6(exts, proto)
	return serialize(tb, append(ether6(tags...), ipv6(next), gopacket.Payload(chain), gopacket.Payload(segment))...)
}

func udpSegment(tb testing.TB, ip gopacket.NetworkLayer, size int) []byte {
	return serialize(tb, udp(ip), payload(size))
}

func tcpSegment(tb testing.TB, ip gopacket.NetworkLayer, options, size int) []byte {
	return serialize(tb, tcp(ip, options), payload(size))
}
