// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// The module's drop reasons.
const (
	dropInvalidState = 35
	dropInvalidFlags = 36
)

const allowWeb = `"rules": [{"action": "allow", "direction": "ingress", "protocol": "tcp", "dstPort": 80},
	{"action": "allow", "direction": "ingress", "protocol": "udp", "dstPort": 80}]`

// blind returns a segment of an attacker who knows only the connection's addresses and ports.
func (f *tcpFlow) blind(flags uint8) frame {
	g := *f
	p := g.in(flags, 0)
	p.Seq += 1 << 29
	if flags&tcpACK != 0 {
		p.Ack -= 1 << 29
	}
	return p
}

// Segments of a blind attacker are dropped and change no state.
func TestBlindSegmentsChangeNothing(t *testing.T) {
	k := loadFirewall(t, `{`+allowWeb+`}`)
	f := newTCPFlow(svc4, 80, far4, 999)
	if !k.establish(f, 1) {
		t.Fatal("no handshake")
	}
	never := f.blind(tcpACK)
	never.Seq, never.Ack = f.next[1], f.next[0]+1
	k.steps(
		step{"blind FIN", f.blind(tcpFIN | tcpACK), true, false},
		step{"blind RST", f.blind(tcpRST), true, false},
		step{"blind RST ACK", f.blind(tcpRST | tcpACK), true, false},
		step{"blind data", f.blind(tcpACK | tcpPSH), true, false},
		step{"blind SYN ACK", f.blind(tcpSYN | tcpACK), true, false},
		step{"acknowledgement of what was never sent", never, true, false},
	)
	if n := k.drops(dropInvalidState); n != 6 {
		t.Errorf("%d drops as invalid_state, want 6", n)
	}
	var key key4
	var c conn
	if err := k.maps[mapEstablished4].NextKey(nil, &key); err != nil {
		t.Fatal(err)
	}
	if err := k.maps[mapEstablished4].Lookup(key, &c); err != nil || (c.Peer[0].Flags|c.Peer[1].Flags)&peerFIN != 0 ||
		connPhase(c.State) != phaseEstablished {
		t.Errorf("the connection is now %+v, %v", c, err)
	}
	k.steps(step{"data", f.in(tcpACK, 10), true, true}, step{"answer", f.out(tcpACK, 10), false, true})
}

// A RST ends a connection if it has exactly the next sequence number. One within the window passes, so that the
// receiver can send a challenge ACK (RFC 5961), and the connection continues.
func TestResetOnlyWhereTheReceiverIs(t *testing.T) {
	k := loadFirewall(t, `{`+allowWeb+`}`)
	f := newTCPFlow(svc4, 80, far4, 999)
	if !k.establish(f, 1) {
		t.Fatal("no handshake")
	}
	near := f.blind(tcpRST)
	near.Seq = f.next[1] + 10
	k.steps(step{"RST in the window", near, true, true})
	if s, err := readStats(k.maps); err != nil || s.Established != 1 {
		t.Fatalf("%+v %v: a RST in the window has ended the connection", s, err)
	}
	k.steps(step{"challenge", f.out(tcpACK, 0), false, true}, step{"RST of the real one", f.in(tcpRST, 0), true, true})
	if s, err := readStats(k.maps); err != nil || s.Established != 0 {
		t.Errorf("%+v %v: a RST has not ended the connection", s, err)
	}
}

func TestFlagsThatNoTCPSends(t *testing.T) {
	k := loadFirewall(t, `{`+allowWeb+`}`)
	for i, flags := range []uint8{0, tcpFIN, tcpFIN | tcpPSH | tcpURG, tcpSYN | tcpFIN, tcpSYN | tcpRST, tcpSYN | tcpFIN |
		tcpACK, tcpFIN | tcpRST | tcpACK} {
		k.steps(step{fmt.Sprintf("flags %02x", flags), newTCPFlow(svc4, 80, far4, 999).in(flags, 0), true, false})
		if n := k.drops(dropInvalidFlags); n != uint64(i+1) {
			t.Errorf("%d drops as invalid_flags, want %d", n, i+1)
		}
	}
}

// After one FIN, the other side can keep sending for long; after both are acknowledged, the connection expires soon.
func TestHalfClosed(t *testing.T) {
	c := compileConfig(t, `{`+allowWeb+`, "defaultPolicy": {"egress": "deny"}, "antiSpoof": false}`)
	c.config.State.Timeouts.TCPClosing = 1
	k, f := loadCompiled(t, c, nil), newTCPFlow(svc4, 80, far4, 999)
	if !k.establish(f, 1) {
		t.Fatal("no handshake")
	}
	k.steps(step{"request and FIN", f.in(tcpFIN|tcpACK, 10), true, true})
	tick(t)
	k.steps(step{"answer to a half-closed connection", f.out(tcpACK, 10), false, true},
		step{"FIN back", f.out(tcpFIN|tcpACK, 0), false, true})
	tick(t)
	k.steps(step{"FIN again", f.again(0, tcpFIN|tcpACK), false, true}, step{"last ACK", f.in(tcpACK, 0), true, true})
	tick(t)
	k.steps(step{"data on a closed connection", f.out(tcpACK, 0), false, false})
}

// Two spoofed datagrams and the service's answer do not establish a flow, which requires a minimum duration.
func TestSpoofedDatagramsAreNotEstablished(t *testing.T) {
	k := loadFirewall(t, `{`+allowWeb+`}`)
	in, out := frame{Packet: udp(far4, 999, svc4, 80)}, frame{Packet: udp(svc4, 80, far4, 999)}
	k.steps(step{"spoofed", in, true, true}, step{"answer", out, false, true}, step{"spoofed again", in, true, true})
	if s, err := readStats(k.maps); err != nil || s.Established != 0 {
		t.Errorf("%+v %v: established by two spoofed datagrams", s, err)
	}
}

// ICMP errors pass if they quote a segment that may be in flight.
func TestErrorsQuoteWhatWasSent(t *testing.T) {
	for _, a := range [][2]string{{svc4, far4}, {svc6, far6}} {
		k := loadFirewall(t, `{`+allowWeb+`}`)
		f := newTCPFlow(a[0], 80, a[1], 999)
		if !k.establish(f, 1) {
			t.Fatal("no handshake")
		}
		sent := f.out(tcpACK, 100)
		k.pass(sent.bytes(), false)
		about := func(seq uint32) frame {
			q := sent.Packet
			q.Seq = seq
			e := Packet{Src: q.Dst, Dst: q.Src, Proto: protoICMP, ICMPType: 3, Quoted: &q, Ingress: true}
			if q.Src.Is6() {
				e.Proto, e.ICMPType = protoICMPv6, 1
			}
			return frame{Packet: e}
		}
		k.steps(step{"about a segment", about(sent.Seq), true, true},
			step{"about none", about(sent.Seq + 1<<29), true, false},
			step{"about one of the future", about(f.next[0] + 1), true, false})
	}
}

// Connections from before the firewall continue: always if the service sends, and for a limited time if the peer does.
func TestPickUp(t *testing.T) {
	running := func() *tcpFlow { return newTCPFlow(svc4, 80, far4, 999) }
	k, f := loadFirewall(t, `{`+allowWeb+`}`), running()
	k.steps(
		step{"SYN ACK out of nowhere", running().in(tcpSYN|tcpACK, 0), true, false},
		step{"RST out of nowhere", running().in(tcpRST, 0), true, false},
		step{"from outside", f.in(tcpACK, 10), true, true}, step{"answer", f.out(tcpACK, 10), false, true},
		step{"on", f.in(tcpACK, 10), true, true},
	)
	if s, err := readStats(k.maps); err != nil || s.Established != 1 {
		t.Errorf("%+v %v, want the connection established", s, err)
	}
	f = running()
	loadFirewall(t, `{"state": {"pickup": "0s"}, `+allowWeb+`}`).steps(
		step{"too late from outside", f.in(tcpACK, 10), true, false},
		step{"from the service", f.out(tcpACK, 10), false, true},
		step{"answer", f.in(tcpACK, 10), true, true})
}

// The entry of a version without windows belongs to a connection that continues and ends as others do.
func TestConnectionsOfEarlierVersions(t *testing.T) {
	k, f := loadFirewall(t, `{`+allowWeb+`}`), newTCPFlow(svc4, 80, far4, 999)
	if !k.establish(f, 1) {
		t.Fatal("no handshake")
	}
	var key key4
	var c conn
	m := k.maps[mapEstablished4]
	if err := m.NextKey(nil, &key); err != nil {
		t.Fatal(err)
	}
	if err := m.Lookup(key, &c); err != nil {
		t.Fatal(err)
	}
	c.Peer = [2]peer{}
	if err := m.Put(key, c); err != nil {
		t.Fatal(err)
	}
	k.steps(
		step{"data", f.in(tcpACK, 3000), true, true}, step{"answer", f.out(tcpACK, 3000), false, true},
		step{"FIN", f.in(tcpFIN|tcpACK, 0), true, true}, step{"FIN back", f.out(tcpFIN|tcpACK, 0), false, true},
		step{"last ACK", f.in(tcpACK, 0), true, true},
	)
	if s, err := readStats(k.maps); err != nil || s.Established != 0 {
		t.Errorf("%+v %v: the connection has not ended", s, err)
	}
}

// A SYN on an established connection, which may be forged, does not change it; if the other side answers, the new
// connection replaces the old one.
func TestSYNOnAnEstablishedConnection(t *testing.T) {
	k, f := loadFirewall(t, `{`+allowWeb+`}`), newTCPFlow(svc4, 80, far4, 999)
	if !k.establish(f, 1) {
		t.Fatal("no handshake")
	}
	k.steps(step{"forged SYN", f.blind(tcpSYN), true, true}, step{"data", f.in(tcpACK, 10), true, true},
		step{"answer", f.out(tcpACK, 10), false, true})
	f = newTCPFlow(svc4, 80, far4, 999)
	f.next = [2]uint32{7 << 24, 9 << 24}
	if !k.establish(f, 1) {
		t.Error("a host that has lost its memory cannot connect from the same port")
	}
	k.steps(step{"data", f.in(tcpACK, 10), true, true}, step{"answer", f.out(tcpACK, 10), false, true})
}

// passAt is pass for a packet at an interface.
func (k *kernel) passAt(ifindex int, f frame) bool {
	k.t.Helper()
	skb := make([]byte, 192)
	binary.NativeEndian.PutUint32(skb[40:], uint32(ifindex)) // of struct __sk_buff
	p := k.egress
	if f.Ingress {
		p = k.ingress()
	}
	ret, err := p.Run(&ebpf.RunOptions{Data: f.bytes(), Context: skb})
	if err != nil {
		k.t.Fatal(err)
	}
	return int32(ret) == tcNext
}

// One service's new or established connections cannot fill either table for others.
func TestQuotaPerInterface(t *testing.T) {
	notEmulated(t)
	sdktest.NeedRoot(t)
	lab, err := netlab.NewIn("fwq")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	hosts, err := lab.Hosts(2, netlab.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	k := loadFirewall(t, `{"state": {"maxConnections": 400, "whenFull": "drop"}, `+allowWeb+`}`)
	noisy, quiet := hosts[0].OuterIndex(), hosts[1].OuterIndex()
	if err := k.open(k.live(uint32(noisy), uint32(quiet))).sweep(); err != nil {
		t.Fatal(err)
	}
	connect := func(ifindex, i int) bool {
		f := newTCPFlow(svc4, 80, fmt.Sprintf("198.51.%d.%d", i>>8&0xff, i&0xff), uint16(i))
		return k.passAt(ifindex, f.in(tcpSYN, 0)) && k.passAt(ifindex, f.out(tcpSYN|tcpACK, 0)) &&
			k.passAt(ifindex, f.in(tcpACK, 0))
	}
	err = lab.Node().Do(func() error {
		waiting := newTCPFlow(svc4, 5000, far4, 443)
		if !k.passAt(quiet, waiting.out(tcpSYN, 0)) {
			t.Error("the SYN of the quiet service does not pass")
		}
		for i := range 40000 {
			k.passAt(noisy, newTCPFlow(svc4, 80, fmt.Sprintf("203.0.%d.%d", i>>8&0xff, i&0xff), uint16(i)).in(tcpSYN, 0))
		}
		if !k.passAt(quiet, waiting.in(tcpSYN|tcpACK, 0)) {
			t.Error("a flood to one service costs another one the answer that it waits for")
		}
		room := map[int]int{}
		for _, ifindex := range []int{noisy, quiet} {
			for i := range 400 {
				if connect(ifindex, i) {
					room[ifindex]++
				}
			}
		}
		if room[noisy] != 200 || room[quiet] < 100 {
			t.Errorf("room for %d connections of the first service and %d of the second, want 200 and at least 100", room[noisy],
				room[quiet])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := readStats(k.maps); err != nil || s.Opening > maxOpening {
		t.Errorf("%+v %v", s, err)
	}
}

// With time an answered flow is established.
func TestFlowsThatLastAreEstablished(t *testing.T) {
	c := compileConfig(t, `{`+allowWeb+`}`)
	c.config.State.assured = duration(time.Nanosecond)
	k := loadCompiled(t, c, nil)
	in, out := frame{Packet: udp(far4, 999, svc4, 80)}, frame{Packet: udp(svc4, 80, far4, 999)}
	k.steps(step{"question", in, true, true}, step{"answer", out, false, true})
	tick(t)
	k.steps(step{"question again", in, true, true})
	if s, err := readStats(k.maps); err != nil || s.Established != 1 {
		t.Errorf("%+v %v, want 1 established", s, err)
	}
}
