// SPDX-License-Identifier: Apache-2.0

package bpftest

import (
	"compress/gzip"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	abi "github.com/kerb-edge/kerb/internal/kerbabi"
)

// captured returns the frames of testdata/traffic.pcap.gz: what two hosts of Linux 6.18 sent each other, one of them
// behind a bridge with spanning tree, as tcpdump captured it; first without tags, then with one (802.1Q) and with two
// (802.1ad and 802.1Q). Addresses are those for documentation.
func captured(t *testing.T) (frames [][]byte) {
	t.Helper()
	file, err := os.Open("testdata/traffic.pcap.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := pcapgo.NewReader(unpacked)
	for err == nil {
		var frame []byte
		if frame, _, err = r.ReadPacketData(); err == nil {
			frames = append(frames, frame)
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return frames
}

// kinds are what the capture has to have, so that each part of the parser meets real frames.
var kinds = map[string]func(abi.Packet) bool{
	"802.3":              func(p abi.Packet) bool { return p.EthType < 1536 },
	"ARP":                func(p abi.Packet) bool { return p.EthType == 0x0806 },
	"one tag":            func(p abi.Packet) bool { return p.Family != 0 && p.L3 == 18 },
	"two tags":           func(p abi.Packet) bool { return p.Family != 0 && p.L3 == 22 },
	"TCP/IPv4":           func(p abi.Packet) bool { return p.Family == 4 && p.Proto == protoTCP },
	"TCP/IPv6":           func(p abi.Packet) bool { return p.Family == 6 && p.Proto == protoTCP },
	"UDP/IPv4":           func(p abi.Packet) bool { return p.Family == 4 && p.Proto == protoUDP },
	"UDP/IPv6":           func(p abi.Packet) bool { return p.Family == 6 && p.Proto == protoUDP },
	"ICMP":               func(p abi.Packet) bool { return p.Family == 4 && p.Proto == protoICMP },
	"ICMPv6":             func(p abi.Packet) bool { return p.Family == 6 && p.Proto == protoICMPv6 },
	"IGMP":               func(p abi.Packet) bool { return p.Family == 4 && p.Proto == protoIGMP },
	"options":            func(p abi.Packet) bool { return p.Flags&abi.FlagOptions != 0 },
	"extensions":         func(p abi.Packet) bool { return p.Flags == abi.FlagExt|abi.FlagL4 },
	"first fragment":     func(p abi.Packet) bool { return p.Family == 4 && p.Flags&abi.FlagFragFirst != 0 },
	"later fragment":     func(p abi.Packet) bool { return p.Family == 4 && p.Flags&abi.FlagFragLater != 0 },
	"first of IPv6":      func(p abi.Packet) bool { return p.Family == 6 && p.Flags&abi.FlagFragFirst != 0 },
	"later of IPv6":      func(p abi.Packet) bool { return p.Family == 6 && p.Flags&abi.FlagFragLater != 0 },
	"first, extensions":  func(p abi.Packet) bool { return p.Flags == abi.FlagExt|abi.FlagL4|abi.FlagFragFirst },
	"later, extensions":  func(p abi.Packet) bool { return p.Flags == abi.FlagExt|abi.FlagFragLater },
	"tag and fragment":   func(p abi.Packet) bool { return p.L3 == 18 && p.Flags&abi.FlagFragLater != 0 },
	"tags and extension": func(p abi.Packet) bool { return p.L3 == 22 && p.Flags&abi.FlagExt != 0 },
}

// Real frames: the parser, its model, and a decoder that others have written agree.
func TestCapture(t *testing.T) {
	heads := loadHeads(t)
	frames := captured(t)
	found := map[string]int{}
	for i, frame := range frames {
		p := check(t, heads, frame)
		checkPath(t, heads, frame, isPlain(frame, p))
		if p.Outcome != ok && p.Outcome != abi.ParseNotIP {
			t.Errorf("frame %d: outcome %d", i, p.Outcome)
		}
		for kind, is := range kinds {
			found[kind] += count(is(p))
		}
		checkDecoder(t, frame, p)
	}
	t.Logf("%d frames: %v", len(frames), found)
	for kind := range kinds {
		if found[kind] == 0 {
			t.Errorf("the capture has no frame of kind %q", kind)
		}
	}
}

// checkDecoder compares what gopacket finds behind all headers. It follows tunnels, and decodes no fragments.
func checkDecoder(t *testing.T, frame []byte, p abi.Packet) {
	t.Helper()
	decoded := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy)
	transport := decoded.TransportLayer()
	whole := p.Flags&(abi.FlagFragFirst|abi.FlagFragLater) == 0
	if want := whole && (p.Proto == protoTCP || p.Proto == protoUDP); want != (transport != nil) {
		t.Errorf("frame %x: %+v, gopacket finds %v", frame, p, transport)
		return
	}
	if transport == nil {
		return
	}
	header := transport.LayerContents()
	if at := frame[p.L4:]; len(header) > len(at) || &header[0] != &at[0] {
		t.Errorf("frame %x: transport header at %d, gopacket has another: %x", frame, p.L4, header)
	}
}
