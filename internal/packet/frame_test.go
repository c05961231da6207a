// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// The frames are those that another implementation makes.
func TestFramesLikeGopacket(t *testing.T) {
	four, six := Fields{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("198.51.100.7")},
		Fields{Src: netip.MustParseAddr("2001:db8::1"), Dst: netip.MustParseAddr("2001:db8:1::2")}
	for _, f := range []Fields{four, six} {
		for _, payload := range []string{"", "odd", "a payload of several bytes, so that the frame needs no padding at all"} {
			f.Payload, f.TOS, f.TTL, f.VLAN = payload, 0xb9, 7, 0
			tcp, udp, icmp, none := f, f, f, f
			tcp.TCP = &TCP{Ports: Ports{40000, 80}, Flags: "SFRPAUEC", Seq: 0xfffffffe, Ack: 77}
			udp.UDP, udp.VLAN = &Ports{5353, 53}, 42
			icmp.ICMP = &ICMP{Type: 128, Code: 1, ID: 0x1234, Seq: 0xffff}
			for _, f := range []Fields{tcp, udp, icmp, none} {
				got, err := f.Frame()
				if diff := cmp.Diff(serialize(t, f), got); diff != "" || err != nil {
					t.Errorf("%+v: %v (-gopacket +kerb)\n%s", f, err, diff)
				}
			}
		}
	}
}

func serialize(t *testing.T, f Fields) []byte {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		EthernetType: layers.EthernetTypeIPv6}
	protocol := layers.IPProtocolNoNextHeader
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
	var ip interface {
		gopacket.SerializableLayer
		gopacket.NetworkLayer
	} = &layers.IPv6{Version: 6, HopLimit: f.TTL, TrafficClass: f.TOS, NextHeader: protocol, SrcIP: f.Src.AsSlice(),
		DstIP: f.Dst.AsSlice()}
	if f.Src.Is4() {
		eth.EthernetType = layers.EthernetTypeIPv4
		ip = &layers.IPv4{Version: 4, TTL: f.TTL, TOS: f.TOS, Protocol: protocol, SrcIP: f.Src.AsSlice(),
			DstIP: f.Dst.AsSlice()}
	}
	stack := []gopacket.SerializableLayer{eth}
	if f.VLAN != 0 {
		stack = append(stack, &layers.Dot1Q{VLANIdentifier: f.VLAN, Type: eth.EthernetType})
		eth.EthernetType = layers.EthernetTypeDot1Q
	}
	stack = append(append(append(stack, ip), transportLayers(t, f, ip)...), gopacket.Payload(f.Payload))
	buffer := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		stack...); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func transportLayers(t *testing.T, f Fields, ip gopacket.NetworkLayer) []gopacket.SerializableLayer {
	t.Helper()
	var err error
	var all []gopacket.SerializableLayer
	switch {
	case f.TCP != nil:
		tcp := &layers.TCP{SrcPort: layers.TCPPort(f.TCP.Src), DstPort: layers.TCPPort(f.TCP.Dst), Seq: f.TCP.Seq,
			Ack: f.TCP.Ack, Window: tcpWindow,
			SYN: true, FIN: true, RST: true, PSH: true, ACK: true, URG: true, ECE: true, CWR: true}
		err, all = tcp.SetNetworkLayerForChecksum(ip), []gopacket.SerializableLayer{tcp}
	case f.UDP != nil:
		udp := &layers.UDP{SrcPort: layers.UDPPort(f.UDP.Src), DstPort: layers.UDPPort(f.UDP.Dst)}
		err, all = udp.SetNetworkLayerForChecksum(ip), []gopacket.SerializableLayer{udp}
	case f.ICMP != nil && f.Src.Is4():
		all = []gopacket.SerializableLayer{&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(f.ICMP.Type, f.ICMP.Code),
			Id: f.ICMP.ID, Seq: f.ICMP.Seq}}
	case f.ICMP != nil:
		icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(f.ICMP.Type, f.ICMP.Code)}
		echo := gopacket.Payload([]byte{byte(f.ICMP.ID >> 8), byte(f.ICMP.ID), byte(f.ICMP.Seq >> 8), byte(f.ICMP.Seq)})
		err, all = icmp.SetNetworkLayerForChecksum(ip), []gopacket.SerializableLayer{icmp, echo}
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}
