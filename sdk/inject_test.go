// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// frames are packets with correct checksums, by name. Those with a zero at the end of their name keep theirs.
func frames(t testing.TB) map[string][]byte {
	t.Helper()
	eth := func(kind layers.EthernetType) *layers.Ethernet {
		return &layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, 1}, DstMAC: []byte{2, 0, 0, 0, 0, 2}, EthernetType: kind}
	}
	v4 := func(next layers.IPProtocol) *layers.IPv4 {
		return &layers.IPv4{Version: 4, TTL: 9, Protocol: next, SrcIP: []byte{10, 0, 0, 1}, DstIP: []byte{10, 0, 0, 2},
			Options: []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}}
	}
	v6 := func(next layers.IPProtocol) *layers.IPv6 {
		return &layers.IPv6{Version: 6, HopLimit: 9, NextHeader: next, SrcIP: bytes.Repeat([]byte{0xfd}, 16),
			DstIP: bytes.Repeat([]byte{0xfe}, 16)}
	}
	make := func(all ...gopacket.SerializableLayer) []byte {
		var network gopacket.NetworkLayer
		for _, l := range all {
			if n, ok := l.(gopacket.NetworkLayer); ok {
				network = n
			}
			if u, ok := l.(interface {
				SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
			}); ok {
				if err := u.SetNetworkLayerForChecksum(network); err != nil {
					t.Fatal(err)
				}
			}
		}
		buf := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
			all...); err != nil {
			t.Fatal(err)
		}
		return slices.Clone(buf.Bytes())
	}
	tcp := func() *layers.TCP { return &layers.TCP{SrcPort: 1, DstPort: 2, SYN: true, Window: 512} }
	odd := gopacket.Payload("odd")
	vlan := &layers.Dot1Q{VLANIdentifier: 7, Type: layers.EthernetTypeIPv4}
	options := &layers.IPv6Destination{}
	options.NextHeader = layers.IPProtocolUDP
	options.Options = []*layers.IPv6DestinationOption{{OptionType: 1, OptionData: []byte{0, 0, 0, 0}}}
	return map[string][]byte{
		"tcp4": make(eth(layers.EthernetTypeIPv4), v4(layers.IPProtocolTCP), tcp(), odd),
		"udp4": make(eth(layers.EthernetTypeIPv4), v4(layers.IPProtocolUDP), &layers.UDP{SrcPort: 1, DstPort: 2}, odd),
		"tcp6": make(eth(layers.EthernetTypeIPv6), v6(layers.IPProtocolTCP), tcp()),
		"udp6": make(eth(layers.EthernetTypeIPv6), v6(layers.IPProtocolUDP), &layers.UDP{SrcPort: 1, DstPort: 2}, odd),
		"udp6 opts": make(eth(layers.EthernetTypeIPv6), v6(layers.IPProtocolIPv6Destination), options,
			&layers.UDP{SrcPort: 1, DstPort: 2}, odd),
		"vlan": make(eth(layers.EthernetTypeDot1Q), vlan, v4(layers.IPProtocolTCP), tcp(), odd),
		"sctp": make(eth(layers.EthernetTypeIPv4), v4(layers.IPProtocolSCTP), &layers.SCTP{SrcPort: 1, DstPort: 2}, odd),
	}
}

// place is where the transport checksum of each of the frames is, and its length.
var place = map[string][2]int{"tcp4": {14 + 24 + 16, 2}, "udp4": {14 + 24 + 6, 2}, "tcp6": {14 + 40 + 16, 2},
	"udp6":      {14 + 40 + 6, 2},
	"udp6 opts": {14 + 40 + 8 + 6, 2}, "vlan": {18 + 24 + 16, 2}, "sctp": {14 + 24 + 8, 4}}

func TestChecksumsAreCompleted(t *testing.T) {
	for name, want := range frames(t) {
		at, n := place[name][0], place[name][1]
		for _, padding := range []int{0, 7} {
			got := append(slices.Clone(want), make([]byte, padding)...)
			copy(got[at:at+n], []byte{0x12, 0x34, 0x56, 0x78})
			CompleteChecksum(got)
			if !bytes.Equal(got[:len(want)], want) {
				t.Errorf("%s, padding %d:\n%x\nwant\n%x", name, padding, got, want)
			}
		}
	}
	none := frames(t)["udp4"]
	copy(none[place["udp4"][0]:], []byte{0, 0})
	if got := slices.Clone(none); !bytes.Equal(complete(got), none) {
		t.Errorf("a datagram without checksum: %x", got)
	}
	fragment := frames(t)["udp4"]
	fragment[14+6] = 0x20 // more follow
	if got := slices.Clone(fragment); !bytes.Equal(complete(got), fragment) {
		t.Errorf("a fragment: %x", got)
	}
}

func complete(frame []byte) []byte {
	CompleteChecksum(frame)
	return frame
}

// Whatever a packet claims, nothing outside of it is read or written.
func FuzzCompleteChecksum(f *testing.F) {
	for _, frame := range frames(f) {
		f.Add(frame)
		f.Add(frame[:len(frame)/2])
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		got := slices.Clone(frame)
		CompleteChecksum(slices.Clip(got))
		changed := 0
		for i := range got {
			if got[i] != frame[i] {
				changed++
			}
		}
		if changed > 4 {
			t.Errorf("%d bytes changed", changed)
		}
	})
}

func TestInjectWithoutSocket(t *testing.T) {
	if err := newInjectors().inject(7, make([]byte, 60)); !errors.Is(err, ErrNoInject) {
		t.Error(err)
	}
}
