// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/seed"
	"github.com/kerb-edge/kerb/sdk"
)

// phases counts the IPv4 connections of both tables by state.
func (k *kernel) phases() map[connPhase]int {
	k.t.Helper()
	out := map[connPhase]int{}
	for _, name := range []string{mapEstablished4, mapOpening4} {
		count := func(_ key4, c *conn) bool { out[connPhase(c.State)]++; return true }
		if err := sdk.EachElement(k.maps, name, connBatch, count); err != nil {
			k.t.Fatal(err)
		}
	}
	return out
}

// Simultaneous FINs of both sides on two CPUs are both recorded: after their acknowledgements, the connection is not in
// the table of established ones.
func TestBothSidesCloseAtOnce(t *testing.T) {
	needTwoCPUs(t)
	k := loadFirewall(t, `{}`)
	ingress := k.ingress()
	const rounds = 2000
	for round := range rounds {
		a := &endpoint{program: k.egress, port: uint16(10000 + round), next: 1000}
		b := &endpoint{program: ingress, ingress: true, port: a.port, next: 5000}
		err := errors.Join(a.send(b, tcpSYN, 0), b.send(a, tcpSYN|tcpACK, 0), a.send(b, tcpACK, 0))
		if err != nil {
			t.Fatal(err)
		}
		ackA, ackB := b.next, a.next
		err = twoCPUs(t, func() error { return a.sendWith(tcpFIN|tcpACK, 0, ackA) },
			func() error { return b.sendWith(tcpFIN|tcpACK, 0, ackB) })
		err = errors.Join(err, a.send(b, tcpACK, 0), b.send(a, tcpACK, 0))
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	if p := k.phases(); p[phaseClosed] != rounds || p[phaseEstablished] != 0 {
		t.Errorf("connections by state %v, want %d closed", p, rounds)
	}
}

// The sweep detects what the data plane has missed: acknowledgements of both FINs, if the last two acknowledgements
// were simultaneous, and FINs that an earlier version recorded in a separate byte.
func TestAgeOfClosedConnections(t *testing.T) {
	k, f := loadFirewall(t, `{`+allowWeb+`}`), newTCPFlow(svc4, 80, far4, 999)
	if !k.establish(f, 1) {
		t.Fatal("no handshake")
	}
	limits := &timeouts{TCPEstablished: 3, TCPHalfClosed: 2, TCPClosing: 1}
	want := func(when string, fins uint8, limit time.Duration) {
		t.Helper()
		var found []conn
		add := func(_ key4, c *conn) bool { found = append(found, *c); return true }
		err := sdk.EachElement(k.maps, mapEstablished4, connBatch, add)
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: established %+v, %v; want one", when, found, err)
		}
		c := found[0]
		c.Fins = fins // instead of the flags
		c.Peer[0].Flags &^= fins & 1 * peerFIN
		c.Peer[1].Flags &^= fins >> 1 * peerFIN
		if got := c.timeout(protoTCP, 0, limits); got != limit {
			t.Errorf("%s, fins %d: ends after %d, want %d: %+v", when, fins, got, limit, c)
		}
	}
	want("established", 0, 3)
	k.steps(step{"FIN", f.in(tcpFIN|tcpACK, 10), true, true})
	want("one FIN", 0, 2)
	want("one FIN", 2, 2)
	k.steps(step{"FIN back", f.out(tcpFIN|tcpACK, 0), false, true})
	want("before the last acknowledgement", 0, 2)
	want("before the last acknowledgement", 3, 2)
	k.acknowledgeUnseen(f)
	want("both acknowledged", 0, 1)
	want("both acknowledged", 2, 1)
	want("both acknowledged", 3, 1)
}

// acknowledgeUnseen sets the other side's record to acknowledged, without a segment that would detect it.
func (k *kernel) acknowledgeUnseen(f *tcpFlow) {
	k.t.Helper()
	var key key4
	var c conn
	m := k.maps[mapEstablished4]
	err := errors.Join(m.NextKey(nil, &key), m.Lookup(&key, &c))
	c.Peer[1].Acked = f.next[0]
	if err = errors.Join(err, m.Put(key, c)); err != nil {
		k.t.Fatal(err)
	}
}

// A connection ends when both sides have acknowledged the other one's FIN. A FIN that is not acknowledged, and that is
// followed by data, was not sent by the peer.
func TestFINsCountOnceAcknowledged(t *testing.T) {
	for _, learnt := range []bool{false, true} {
		k, f := loadFirewall(t, `{`+allowWeb+`}`), newTCPFlow(svc4, 80, far4, 999)
		if learnt {
			k.steps(step{"picked up", f.in(tcpACK, 10), true, true}, step{"answer", f.out(tcpACK, 10), false, true},
				step{"on", f.in(tcpACK, 10), true, true})
		} else if !k.establish(f, 1) {
			t.Fatal("no handshake")
		}
		want := func(when string, phase connPhase) {
			t.Helper()
			if p := k.phases(); p[phase] != 1 {
				t.Errorf("learnt %t, %s: connections by state %v, want 1 %s", learnt, when, p, stateNames[phase])
			}
		}
		k.steps(step{"FIN", f.in(tcpFIN|tcpACK, 10), true, true}, step{"download", f.out(tcpACK, 1000), false, true},
			step{"its acknowledgement", f.in(tcpACK, 0), true, true})
		want("half closed", phaseEstablished)
		forged := *f
		k.steps(step{"forged FIN", forged.out(tcpFIN|tcpACK, 0), false, true})
		want("after a forged FIN", phaseEstablished)
		k.steps(step{"download", f.out(tcpACK, 1000), false, true}, step{"its acknowledgement", f.in(tcpACK, 0), true, true})
		want("after data behind the forged FIN", phaseEstablished)
		k.steps(step{"FIN back", f.out(tcpFIN|tcpACK, 0), false, true})
		want("before the last acknowledgement", phaseEstablished)
		k.steps(step{"last acknowledgement", f.in(tcpACK, 0), true, true})
		want("closed", phaseClosed)
	}
}

// A FIN counts at its sequence number, also after a fragment of unknown length, and after data that a third party has
// sent beyond it.
func TestFINsBeforeTheSupposedEnd(t *testing.T) {
	for _, learnt := range []bool{false, true} {
		for from := range 2 {
			for what, prepare := range map[string]func(k *kernel, f *tcpFlow){
				"after a fragment": func(k *kernel, f *tcpFlow) {
					first := f.segment(from, tcpACK, 700)
					first.more, first.payload = true, 468 // the rest follows in another fragment
					k.steps(step{"fragment", first, from == 1, true})
				},
				"after data of a third party": func(k *kernel, f *tcpFlow) {
					forged := *f
					k.steps(step{"forged", forged.segment(from, tcpACK, 300), from == 1, true})
				},
			} {
				k, f := loadFirewall(t, `{`+allowWeb+`}`), newTCPFlow(svc4, 80, far4, 999)
				if learnt {
					k.steps(step{"picked up", f.in(tcpACK, 10), true, true}, step{"answer", f.out(tcpACK, 10), false, true},
						step{"on", f.in(tcpACK, 10), true, true})
				} else if !k.establish(f, 1) {
					t.Fatal("no handshake")
				}
				prepare(k, f)
				k.steps(step{"acknowledgement", f.segment(1-from, tcpACK, 0), from == 0, true},
					step{"FIN", f.segment(from, tcpFIN|tcpACK, 0), from == 1, true},
					step{"FIN back", f.segment(1-from, tcpFIN|tcpACK, 0), from == 0, true},
					step{"last acknowledgement", f.segment(from, tcpACK, 0), from == 1, true})
				if p := k.phases(); p[phaseClosed] != 1 {
					t.Errorf("learnt %t, from %d, %s: connections by state %v, want 1 closed", learnt, from, what, p)
				}
			}
		}
	}
}

// A forged FIN within data in flight causes a retransmission, but does not end the connection; a FIN before
// acknowledged data is ignored.
func TestForgedFINInFlight(t *testing.T) {
	k, f := loadFirewall(t, `{`+allowWeb+`}`), newTCPFlow(svc4, 80, far4, 999)
	if !k.establish(f, 1) {
		t.Fatal("no handshake")
	}
	forged := *f
	data := f.out(tcpACK, 500)
	ack := f.in(tcpACK, 0)
	k.steps(step{"data", data, false, true}, step{"forged FIN", forged.out(tcpFIN|tcpACK, 0), false, true},
		step{"acknowledgement", ack, true, false}, step{"data again", data, false, true},
		step{"acknowledgement", ack, true, true}, step{"late FIN", forged.again(0, tcpFIN|tcpACK), false, true},
		step{"more", f.in(tcpACK, 10), true, true})
	data.Ifindex = 1
	if phase, half := k.phase(&data.Packet); phase != phaseEstablished || half {
		t.Errorf("state %d, FIN %t: the forged FIN is still believed", phase, half)
	}
}

// A client continues to download after its FIN; when the server closes, too, the connection is removed from the table
// of established ones.
func TestDownloadAfterFIN(t *testing.T) {
	notEmulated(t)
	b := newBridged(t)
	k := loadFirewall(t, `{`+allowWeb+`, "defaultPolicy": {"egress": "deny"}, "antiSpoof": false}`)
	b.filter(k)
	var listener net.Listener
	err := b.tenant.Do(func() (err error) {
		listener, err = net.Listen("tcp4", ":80")
		return
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	const size = 8 << 20
	half := make(chan map[connPhase]int, 1)
	go func() {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := io.ReadAll(c); err != nil { // up to the client's FIN
			return
		}
		for range size >> 16 {
			if _, err := c.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
		half <- k.phases()
	}()
	var got int64
	err = b.neighbour.Do(func() error {
		c, err := net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(netip.AddrPortFrom(b.tenant.Addr4(), 80)))
		if err != nil {
			return err
		}
		defer c.Close()
		if err := errors.Join(c.SetDeadline(time.Now().Add(time.Minute)), c.CloseWrite()); err != nil {
			return err
		}
		got, err = io.Copy(io.Discard, c)
		return err
	})
	if err != nil || got != size {
		t.Fatalf("%d of %d bytes after the FIN: %v", got, size, err)
	}
	if p := <-half; p[phaseEstablished] != 1 {
		t.Errorf("while half closed: connections by state %v, want 1 established", p)
	}
	deadline := time.Now().Add(20 * time.Second)
	for k.phases()[phaseClosed] != 1 {
		if time.Now().After(deadline) {
			t.Fatalf("connections by state %v, want 1 closed", k.phases())
		}
		time.Sleep(10 * time.Millisecond) // until the last acknowledgement has passed
	}
}

// Conversations between two hosts, with packets of a third party such as FINs within the windows, pass through data
// plane and model: after each packet both have the same state of its connection.
func TestStatesAgainstModel(t *testing.T) {
	fw := compileConfig(t, `{"rules": [
		{"action": "allow", "direction": "ingress", "protocol": "tcp", "dstPort": 7777}]}`)
	k, m := loadCompiled(t, fw, nil), NewModel(fw)
	r := rand.New(rand.NewPCG(seed.Of(t), 4))
	mix, reached := &mixer{Rand: r}, map[connPhase]int{}
	check := func(p Packet, kind string) {
		t.Helper()
		p.Ifindex = 1
		got, want := k.pass(frame{Packet: p, payload: p.Len}.bytes(), p.Ingress), m.Decide(&p, 0).Allow
		phase, half := k.phase(&p)
		c := m.conns[p.key()]
		if c == nil {
			c = &connState{phase: -1}
		}
		reached[c.phase]++
		if got != want || phase != c.phase || half != (c.peer[0].fin || c.peer[1].fin) {
			t.Fatalf("%s %+v:\npasses %t, state %d, FIN %t; the model says %t, %+v", kind, p, got, phase, half, want, c)
		}
	}
	for _, p := range mix.batch(2500) {
		if p.Proto != protoTCP {
			continue
		}
		check(p.Packet, p.kind)
		if !p.hostile && p.tcp(tcpACK) && r.IntN(12) == 0 {
			forged := p.Packet
			forged.TCPFlags, forged.Seq, forged.Len = tcpFIN|tcpACK, p.end()+r.Uint32N(40), r.IntN(20)
			check(forged, "FIN in the window")
			forged.TCPFlags, forged.Seq, forged.Len = tcpACK, forged.Seq-20, r.IntN(200)
			check(forged, "data in the window")
		}
	}
	if reached[phaseEstablished] < 100 || reached[phaseClosed] < 50 || reached[phaseReset] < 10 {
		t.Errorf("packets by the state that they led to: %v", reached)
	}
}

// phase returns the state of a packet's connection, or -1 without one, and whether a side has sent a FIN.
func (k *kernel) phase(p *Packet) (phase connPhase, half bool) {
	k.t.Helper()
	var key any
	id, names := p.key(), []string{mapEstablished6, mapOpening6, mapPending6}
	port := func(n uint16) [2]byte { return [2]byte(binary.BigEndian.AppendUint16(nil, n)) }
	if id.local.Is4() {
		names = []string{mapEstablished4, mapOpening4, mapPending4}
		key = key4{Ifindex: id.ifindex, Local: id.local.As4(), Remote: id.remote.As4(), LocalPort: port(id.localPort),
			RemotePort: port(id.remotePort), Proto: uint8(id.proto), Kind: uint8(id.kind)}
	} else {
		key = key6{Ifindex: id.ifindex, Local: id.local.As16(), Remote: id.remote.As16(), LocalPort: port(id.localPort),
			RemotePort: port(id.remotePort), Proto: uint8(id.proto), Kind: uint8(id.kind)}
	}
	for _, name := range names {
		var c conn
		err := k.maps[name].Lookup(key, &c)
		if err == nil {
			return connPhase(c.State), (c.Peer[0].Flags|c.Peer[1].Flags)&peerFIN != 0
		}
		if !errors.Is(err, ebpf.ErrKeyNotExist) {
			k.t.Fatal(err)
		}
	}
	return -1, false
}
