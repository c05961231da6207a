// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

var client, server = netip.MustParseAddrPort("10.0.0.1:40000"), netip.MustParseAddrPort("192.0.2.1:443")

// tcp returns a segment between the ends of these tests; the direction is that of the service.
func tcp(direction int, flags string, seq, ack uint32, payload int) event {
	return event{direction: direction, proto: "tcp", local: client, remote: server, flags: flags, seq: seq, ack: ack,
		payload: payload}
}

// send runs packets and returns the only flow.
func (l *loaded) send(all ...event) *value {
	l.t.Helper()
	for _, e := range all {
		l.Run(directions[e.direction], e.frame(l.t))
	}
	var out *value
	err := l.running().each(func(_ key, v *value) {
		if out != nil {
			l.t.Error("more than one flow")
		}
		c := *v
		out = &c
	})
	if err != nil || out == nil {
		l.t.Fatalf("no flow: %v", err)
	}
	return out
}

// The time of a handshake is the time between its packets at the hook.
func TestHandshake(t *testing.T) {
	l := load(t, sdktest.Options{})
	l.send(tcp(egress, "S", 100, 0, 0))
	time.Sleep(20 * time.Millisecond) // the measured round trip to the responder
	l.send(tcp(ingress, "SA", 500, 101, 0))
	time.Sleep(10 * time.Millisecond) // the measured round trip to the initiator
	v := l.send(tcp(egress, "A", 101, 501, 0), tcp(egress, "PA", 101, 501, 20), tcp(ingress, "A", 501, 121, 0))
	for what, d := range map[string][2]uint64{"responder": {v.ToResponder, 20}, "initiator": {v.ToInitiator, 10}} {
		if got := time.Duration(d[0]); got < time.Duration(d[1])*time.Millisecond || got > 5*time.Second {
			t.Errorf("%v to the %s, want %d ms or, on a busy machine, more", got, what, d[1])
		}
	}
	if v.initiator() != egress || v.state(6) != "established" || v.Side[0].Retransmits+v.Side[1].Retransmits != 0 {
		t.Errorf("%s", v.figures())
	}
}

// A handshake with a retransmission has no round-trip time, since either packet may have been answered.
func TestRepeatedHandshake(t *testing.T) {
	syn, synAck, ack := tcp(ingress, "S", 100, 0, 0), tcp(egress, "SA", 500, 101, 0), tcp(ingress, "A", 101, 501, 0)
	for name, c := range map[string]struct {
		packets              []event
		responder, initiator bool
		retransmits          [2]uint32
	}{
		"not repeated":     {[]event{syn, synAck, ack}, true, true, [2]uint32{}},
		"SYN":              {[]event{syn, syn, synAck, ack}, false, false, [2]uint32{0, 1}},
		"SYN/ACK":          {[]event{syn, synAck, synAck, ack}, true, false, [2]uint32{1, 0}},
		"late SYN":         {[]event{syn, synAck, syn, synAck, ack}, true, false, [2]uint32{1, 1}},
		"foreign SYN/ACK":  {[]event{syn, tcp(egress, "SA", 500, 777, 0)}, false, false, [2]uint32{}},
		"foreign ACK":      {[]event{syn, synAck, tcp(ingress, "A", 101, 777, 0)}, true, false, [2]uint32{}},
		"ACK of responder": {[]event{syn, synAck, tcp(egress, "A", 501, 501, 0)}, true, false, [2]uint32{}},
	} {
		t.Run(name, func(t *testing.T) {
			v := load(t, sdktest.Options{}).send(c.packets...)
			if got := [2]uint32{v.Side[0].Retransmits, v.Side[1].Retransmits}; got != c.retransmits ||
				v.ToResponder > 0 != c.responder || v.ToInitiator > 0 != c.initiator {
				t.Errorf("%s", v.figures())
			}
		})
	}
}

func TestRetransmits(t *testing.T) {
	open := []event{tcp(egress, "S", 0xfffffff0, 0, 0), tcp(ingress, "SA", 7, 0xfffffff1, 0),
		tcp(egress, "A", 0xfffffff1, 8, 0)}
	first, second := tcp(egress, "PA", 0xfffffff1, 8, 100), tcp(egress, "PA", 85, 8, 50) // the first one wraps
	for name, c := range map[string]struct {
		packets []event
		want    uint32
	}{
		"in order":            {[]event{first, second}, 0},
		"again":               {[]event{first, first, second}, 1},
		"overtaken":           {[]event{second, first}, 1},
		"again, with more":    {[]event{first, tcp(egress, "PA", 0xfffffff1, 8, 200)}, 1},
		"FIN again":           {[]event{first, tcp(egress, "FA", 85, 8, 0), tcp(egress, "FA", 85, 8, 0)}, 1},
		"acknowledgements":    {[]event{first, tcp(egress, "A", 85, 8, 0), tcp(egress, "A", 85, 8, 0)}, 0},
		"keep-alive":          {[]event{first, tcp(egress, "A", 84, 8, 0)}, 0},
		"reset of the past":   {[]event{first, tcp(egress, "R", 3, 0, 0)}, 0},
		"of another begin":    {[]event{first, tcp(egress, "S", 5, 0, 0), tcp(egress, "PA", 6, 0, 10)}, 0},
		"what was not seen":   {[]event{tcp(egress, "PA", 5000, 8, 10), tcp(egress, "PA", 4000, 8, 10)}, 1},
		"of the other one":    {[]event{first, tcp(ingress, "PA", 8, 85, 9), tcp(ingress, "PA", 8, 85, 9)}, 1},
		"of one that resends": {[]event{first, first, first, first}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			v := load(t, sdktest.Options{}).send(append(open, c.packets...)...)
			if got := v.Side[0].Retransmits + v.Side[1].Retransmits; got != c.want {
				t.Errorf("%d, want %d: %s", got, c.want, v.figures())
			}
		})
	}
}

func TestStates(t *testing.T) {
	syn, synAck, ack := tcp(egress, "S", 1, 0, 0), tcp(ingress, "SA", 1, 2, 0), tcp(egress, "A", 2, 2, 0)
	for want, packets := range map[string][]event{
		"opening":     {syn},
		"established": {syn, synAck, ack},
		"closing":     {syn, synAck, ack, tcp(egress, "FA", 2, 2, 0)},
		"closed":      {syn, synAck, ack, tcp(egress, "FA", 2, 2, 0), tcp(ingress, "FA", 2, 3, 0)},
		"reset":       {syn, tcp(ingress, "RA", 0, 2, 0)},
	} {
		if v := load(t, sdktest.Options{}).send(packets...); v.state(6) != want {
			t.Errorf("%s: %s", want, v.state(6))
		}
	}
}

// A frame with any bytes passes unchanged, and is counted once: in a flow, or as not belonging to one.
func TestHostile(t *testing.T) {
	for _, hook := range []string{"tc", "xdp"} {
		t.Run(hook, func(t *testing.T) {
			l := load(t, sdktest.Options{Hook: hook})
			r := rand.New(rand.NewPCG(3, 4))
			var sent, notIP uint64
			for range 6000 {
				frame := random(r).frame(t)
				for range r.IntN(4) {
					frame[12+r.IntN(len(frame)-12)] = byte(r.Uint32())
				}
				if r.IntN(2) == 0 {
					least := min(len(frame), leastOf(hook, frame))
					frame = frame[:least+r.IntN(len(frame)-least+1)]
				}
				sent++
				if got := l.Run(directions[r.IntN(2)], frame); got.Verdict != "next" || string(got.Packet) != string(frame) {
					t.Fatalf("%x: %+v", frame, got)
				}
				if kind := binary.BigEndian.Uint16(frame[12:]); kind != 0x0800 && kind != 0x86dd {
					notIP++
				}
			}
			var counted, broken uint64
			if err := l.running().each(func(_ key, v *value) {
				counted += v.Side[0].Packets + v.Side[1].Packets
			}); err != nil {
				t.Fatal(err)
			}
			used, err := l.running().usages()
			if err != nil {
				t.Fatal(err)
			}
			for _, u := range used {
				counted, broken = counted+u.Unrecorded, broken+u.Unreadable
			}
			if counted == 0 || broken == 0 || counted+broken > sent || counted+broken+notIP < sent {
				t.Errorf("%d of %d packets in flows, %d unreadable, at most %d were not IP", counted, sent, broken, notIP)
			}
		})
	}
}

// IP packets that cannot be parsed are counted as such, and in no flow.
func TestUnreadable(t *testing.T) {
	whole := tcp(egress, "PA", 1, 1, 40).frame(t)
	change := func(at int, to byte) []byte {
		f := append([]byte(nil), whole...)
		f[at] = to
		return f
	}
	for name, frame := range map[string][]byte{
		"frame ends in TCP":      whole[:44],
		"data offset of 4":       change(46, 4<<4),
		"header length of 4":     change(14, 0x44),
		"version 6 as EtherType": change(14, 0x65),
		"total length beyond":    change(16, 0x40),
	} {
		t.Run(name, func(t *testing.T) {
			l := load(t, sdktest.Options{Hook: "xdp"})
			l.Run("egress", frame)
			used, err := l.running().usages()
			if err != nil || len(l.table()) > 0 {
				t.Fatalf("%v %v", l.table(), err)
			}
			if u := used[l.here().Ifindex]; u.Unreadable != 1 || u.UnreadableBytes != uint64(len(frame)) {
				t.Errorf("%+v", u)
			}
		})
	}
}

// leastOf returns the minimum length for test runs: on TC the kernel reads the IP header itself.
func leastOf(hook string, frame []byte) int {
	switch kind := binary.BigEndian.Uint16(frame[12:]); {
	case hook == "xdp":
		return 14
	case kind == 0x0800:
		return 34
	case kind == 0x86dd:
		return 54
	}
	return 15
}

// Later fragments have no ports: they are a separate flow.
func TestFragments(t *testing.T) {
	l := load(t, sdktest.Options{})
	e := event{direction: egress, proto: "udp", local: client, remote: server, payload: 16}
	first := e.frame(t)
	later := append([]byte(nil), first...)
	binary.BigEndian.PutUint16(first[20:], 0x2000) // more fragments
	binary.BigEndian.PutUint16(later[20:], 3)
	l.Run("egress", first)
	l.Run("egress", later)
	got := l.table()
	for _, want := range []string{"udp 10.0.0.1:40000 192.0.2.1:443", "udp 10.0.0.1:0 192.0.2.1:0"} {
		if _, ok := got[want]; !ok || len(got) != 2 {
			t.Errorf("no flow %s in %v", want, got)
		}
	}
}

func TestLayouts(t *testing.T) {
	spec, err := pkgstest.Package(t).Spec("tc")
	if err != nil {
		t.Fatal(err)
	}
	for name, mirror := range map[string]any{"flows_key": key{}, "flows_side": side{}, "flows_service": kernelUsage{}} {
		sdktest.Layout(t, spec.Types, name, mirror)
	}
	sdktest.Layout(t, spec.Types, "flows_value", value{})
}

// maxVerified is the limit for Linux 6.1, like that of the NAT.
const maxVerified = 100_000

func TestVerifies(t *testing.T) {
	for _, hook := range []string{"tc", "xdp"} {
		load(t, sdktest.Options{Hook: hook}).CheckVerified(maxVerified)
	}
}

func TestConfig(t *testing.T) {
	var wrong *sdk.ConfigError
	if _, err := Control().Compile([]byte(`{"flows": 65536, "services": 2}`)); !errors.As(err, &wrong) {
		t.Errorf("%v is no ConfigError", err)
	}
	if _, err := Control().Compile([]byte(`{"flows": 65536, "services": 1}`)); err != nil {
		t.Error(err)
	}
}
