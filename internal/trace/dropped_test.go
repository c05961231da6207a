// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/packet"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/service"
)

// dropsOf puts packets into words as a node with two interfaces does: 7 with Ethernet headers, and 8 without.
func dropsOf(f dataplane.TraceFilter) *Drops {
	return &Drops{Filter: f, Reader: Reader{
		Reason: func(module string, reason int) string { return fmt.Sprint(module, reason) },
		Note:   func(module string, note int) string { return fmt.Sprint(module, "note", note) },
		Name:   func(module, note string, value uint64) string { return fmt.Sprint(module, note, "is", value) },
		Points: plan.Placements{
			{Ifindex: 7, Side: chain.OnXDP}: {Service: "web", Link: service.Link{Name: "veth7"}},
			{Ifindex: 8, Side: chain.OnXDP}: {Link: service.Link{Name: "tun8", Type: unix.ARPHRD_NONE}}}}}
}

func frameOf(t *testing.T, text string) []byte {
	t.Helper()
	fields, err := packet.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	frame, err := fields.Frame()
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

func TestDroppedPacket(t *testing.T) {
	for _, c := range []struct {
		packet, want string
		kept         int // bytes
		ifindex      uint32
	}{
		{"tcp 192.0.2.1:4000 > 192.0.2.2:80 syn length 1000", "web veth7 tcp 192.0.2.1:4000 192.0.2.2:80 S ok", 128, 7},
		{"tcp 192.0.2.1:4000 > 192.0.2.2:80 syn length 1000", "web veth7 tcp 192.0.2.1 192.0.2.2  ok", 34, 7},
		{"tcp 192.0.2.1:4000 > 192.0.2.2:80 syn length 1000", "web veth7 not ip    ok", 33, 7},
		{"udp [2001:db8::1]:53 > [2001:db8::2]:5353", "web veth7 udp [2001:db8::1]:53 [2001:db8::2]:5353  ok", 128, 7},
		{"icmp 192.0.2.1 > 192.0.2.2 type 3 code 1", " tun8 icmp 192.0.2.1 192.0.2.2  ok", 128, 8},
		{"udp [2001:db8::1]:53 > [2001:db8::2]:5353", " tun8 udp [2001:db8::1]:53 [2001:db8::2]:5353  ok", 128, 8},
		{"udp 192.0.2.1:53 > 192.0.2.2:5353", " ifindex 9, removed udp 192.0.2.1:53 192.0.2.2:5353  ok", 128, 9},
	} {
		frame := frameOf(t, c.packet)
		if c.ifindex == 8 {
			frame = frame[14:]
		}
		p := dataplane.DroppedPacket{Module: "fw", Time: uint64(time.Hour), Direction: chain.Egress,
			Ifindex: c.ifindex, Side: chain.OnXDP, Len: uint32(len(frame)),
			Reason: 5, Frame: frame[:min(len(frame), c.kept)]}
		d, ok := dropsOf(dataplane.TraceFilter{Bytes: 20}).Of(p)
		got := fmt.Sprint(d.Service, " ", d.Interface, " ", d.Protocol, " ", d.Source, " ", d.Destination, " ",
			d.TCPFlags, " ", d.Outcome)
		if !ok || got != c.want || len(d.Frame) != 20 || len(d.Steps) != 1 || d.Steps[0].Module != "fw" ||
			d.Steps[0].Reason != "fw5" || d.Hook != "xdp" {
			t.Errorf("%s: %q, want %q: %+v", c.packet, got, c.want, d)
		}
		if c.ifindex == 7 && d.Direction != "egress" {
			t.Errorf("direction %q", d.Direction)
		}
	}
}

// A packet that passed although a module returned no verdict was not dropped.
func TestPacketWithoutAVerdict(t *testing.T) {
	frame := frameOf(t, "udp 192.0.2.1:53 > 192.0.2.2:5353")
	for passed, want := range map[bool]string{true: "invalid", false: "drop"} {
		p := dataplane.DroppedPacket{Module: "fw", Ifindex: 7, Side: chain.OnXDP, Len: uint32(len(frame)), Reason: 9,
			Passed: passed, Frame: frame}
		d, ok := dropsOf(dataplane.TraceFilter{}).Of(p)
		if !ok || d.Steps[0].Verdict != want || d.Steps[0].Reason != "fw9" {
			t.Errorf("passed %v: %+v", passed, d)
		}
	}
}

// What the module noted is in words, and a packet without a note has none.
func TestNoteOfDroppedPacket(t *testing.T) {
	frame := frameOf(t, "udp 192.0.2.1:53 > 192.0.2.2:5353")
	for key, want := range map[uint16]v1.TraceStep{0: {},
		2: {Note: "fwnote2", Value: 65535, Name: "fwfwnote2is65535"}} {
		p := dataplane.DroppedPacket{Module: "fw", Ifindex: 7, Side: chain.OnXDP, Len: uint32(len(frame)), Frame: frame,
			Key: key, Note: 65535}
		d, _ := dropsOf(dataplane.TraceFilter{}).Of(p)
		if got := d.Steps[0]; got.Note != want.Note || got.Value != want.Value || got.Name != want.Name {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

func TestDroppedPacketIsFiltered(t *testing.T) {
	frame := frameOf(t, "udp 192.0.2.1:53 > 198.51.100.2:5353")
	p := dataplane.DroppedPacket{Ifindex: 7, Side: chain.OnXDP, Len: uint32(len(frame)), Frame: frame}
	for _, c := range []struct {
		host, protocol string
		port           uint16
		want           bool
	}{
		{"", "", 0, true}, {"192.0.2.0/24", "", 0, true}, {"198.51.100.2", "udp", 5353, true}, {"", "17", 53, true},
		{"198.51.100.3", "", 0, false}, {"", "tcp", 0, false}, {"", "", 54, false}, {"2001:db8::/32", "", 0, false},
	} {
		f, err := Filter(v1.TraceRequest{Host: c.host, Protocol: c.protocol, Port: c.port})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := dropsOf(f).Of(p); ok != c.want {
			t.Errorf("%+v: %v", c, ok)
		}
	}
}

// Whatever is in a frame, and whatever length it states, is read within the bytes that are there.
func TestDroppedPacketIsHostile(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	whole := [][]byte{frameOf(t, "tcp 192.0.2.1:1 > 192.0.2.2:2"), frameOf(t, "icmpv6 2001:db8::1 > 2001:db8::2")}
	for i := range 3000 {
		frame := append([]byte(nil), whole[i%len(whole)]...)
		for range random.IntN(6) {
			frame[random.IntN(len(frame))] = byte(random.Uint32())
		}
		p := dataplane.DroppedPacket{Ifindex: 7 + uint32(i)%3, Side: chain.OnXDP,
			Len: random.Uint32() >> random.IntN(32), Frame: frame[:random.IntN(len(frame)+1)]}
		if d, ok := dropsOf(dataplane.TraceFilter{Bytes: 128}).Of(p); !ok || len(d.Frame) != len(p.Frame) {
			t.Fatalf("%x: %+v", p.Frame, d)
		}
	}
}
