// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// world is a small node: a client on the interface of PROG_TEST_RUN, and instances on this and other nodes.
type world struct {
	*kernel
	v4               bool
	client           string
	near, far        string // instances
	nearI, farI      uint32
	nearVIP, farVIP  string
	nearMAC, testMAC [6]byte
}

const nearIfindex = 77

func families(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	for _, v4 := range []bool{true, false} {
		t.Run(map[bool]string{true: "ip4", false: "ip6"}[v4], func(t *testing.T) { test(t, newWorld(t, v4)) })
	}
}

func newWorld(t testing.TB, v4 bool) *world { t.Helper(); return newWorldOn(loadProxy(t, nil), v4) }

func newWorldOn(k *kernel, v4 bool) *world {
	w := &world{kernel: k, v4: v4, nearMAC: [6]byte{2, 0, 0, 0, 0, 0x77}, testMAC: [6]byte{2, 0, 0, 0, 0, 2}}
	if v4 {
		w.client, w.near, w.far, w.nearVIP, w.farVIP = "10.18.0.2", "10.18.0.3", "10.19.0.3", "10.30.0.2", "10.30.0.3"
	} else {
		w.client, w.near, w.far, w.nearVIP, w.farVIP = "fd00::2", "fd00::3", "fd01::3", "fdff:2000::2", "fdff:2000::3"
	}
	w.addLocal(testIfindex, w.testMAC, localPeer)
	w.nearI = w.addInstance(w.addLocal(nearIfindex, w.nearMAC, localPeer), w.near)
	w.farI = w.addInstance(0, w.far)
	w.addVIP(w.nearVIP, policyTurns, 0, w.nearI)
	w.addVIP(w.farVIP, policyTurns, 0, w.farI)
	w.addRange("10.30.0.0/16", "fdff:2000::/21")
	return w
}

func (w *world) want(got result, action int32, frame []byte) {
	w.t.Helper()
	if got.action != action {
		w.t.Errorf("action %d, want %d", got.action, action)
	}
	if frame != nil {
		if diff := cmp.Diff(frame, got.frame); diff != "" {
			w.t.Errorf("frame (-want +got):\n%s", diff)
		}
	}
}

func (p packet) to(mac [6]byte) packet { p.dstMAC = mac[:]; return p }

// Modules after the proxy see the packets that it redirects, and another proxy after it does not change their target.
func TestRedirectIsDeferred(t *testing.T) {
	sdktest.NeedRoot(t)
	first, second := module(t, nil), module(t, nil)
	second.Name = "second"
	l, err := dataplane.Load(chain.OnTCIngress, chain.Egress, first, second, pkgstest.Reader(chain.Egress))
	sdktest.Explain(t, err)
	defer l.Close()
	w := newWorldOn(&kernel{t: t, loaded: l, egress: l.Program, maps: l.Maps[first.Name]}, true)
	for _, p := range []packet{tcp(w.client, 40000, w.nearVIP, 80, tcpSYN), udp(w.client, 40000, w.nearVIP, 80)} {
		for range 3 { // of a new session, a known one, and one with the CPU's copy
			want := p.to(w.nearMAC)
			want.dst = addr(w.near)
			w.want(w.out(p.bytes()), tcRedirect, want.bytes())
		}
	}
}

// A connection to an instance on the node is redirected to its interface; one to another node passes to the stack.
func TestForward(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		for _, proto := range []int{protoTCP, protoUDP, protoSCTP} {
			p := tcp(w.client, 40000, w.nearVIP, 80, tcpSYN)
			p.proto = proto
			want := p.to(w.nearMAC)
			want.dst = addr(w.near)
			w.want(w.out(p.bytes()), tcRedirect, want.bytes())
			w.want(w.out(p.bytes()), tcRedirect, want.bytes()) // of a known session

			p.dst = addr(w.farVIP)
			want = p
			want.dst = addr(w.far)
			w.want(w.out(p.bytes()), tcNext, want.bytes())
			w.want(w.out(p.bytes()), tcNext, want.bytes())
		}
		if n := len(w.table()); n != 12 {
			t.Errorf("%d entries, want 12", n)
		}
		if n := w.count(countOpened); n != 6 {
			t.Errorf("%d sessions opened, want 6", n)
		}
	})
}

// Answers from other nodes get the virtual address on the path to the client.
func TestAnswerFromAfar(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		w.out(udp(w.client, 40000, w.farVIP, 80).bytes())
		p := udp(w.far, 80, w.client, 40000)
		want := p
		want.src = addr(w.farVIP)
		w.want(w.in(p.bytes()), tcNext, want.bytes())
		w.want(w.in(p.bytes()), tcNext, want.bytes())
		p.sport = 81
		w.want(w.in(p.bytes()), tcNext, p.bytes()) // not of the session
	})
}

// Packets that are not for the proxy pass unchanged, hostile frames included.
func TestOthersPass(t *testing.T) {
	w := newWorld(t, true)
	arp := make([]byte, 60)
	arp[12], arp[13] = 8, 6
	for _, frame := range [][]byte{
		udp("10.18.0.2", 1, "10.18.0.9", 2).bytes(),
		udp("fd00::2", 1, "fd00::9", 2).bytes(),
		icmp("10.18.0.2", "10.18.0.9", 8, 1).bytes(),
		arp,
	} {
		w.want(w.out(frame), tcNext, frame)
		w.want(w.in(frame), tcNext, frame)
	}
	if n := len(w.table()); n != 0 {
		t.Errorf("%d entries", n)
	}
}

// Target ports, source port 65535 and UDP without checksum.
func TestPorts(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		id := w.addVIP(addr(w.nearVIP).Next().Next().String(), policyTurns, vipPorts, w.farI)
		vip := addr(w.nearVIP).Next().Next().String()
		w.addPort(id, protoTCP, 80, 8080)
		w.addPort(id, protoUDP, 53, 53)
		for _, p := range []packet{tcp(w.client, 65535, vip, 80, tcpSYN), udp(w.client, 65535, vip, 53)} {
			want := p
			want.dst = addr(w.far)
			if p.proto == protoTCP {
				want.dport = 8080
			}
			for range 2 {
				w.want(w.out(p.bytes()), tcNext, want.bytes())
			}
			answer := want
			answer.src, answer.dst, answer.sport, answer.dport, answer.flags = want.dst, want.src, want.dport, want.sport,
				tcpSYN|tcpACK
			back := answer
			back.src, back.sport = p.dst, p.dport
			for range 2 {
				w.want(w.in(answer.bytes()), tcNext, back.bytes())
			}
		}
		p := udp(w.client, 1234, vip, 53)
		p.noCheck = true
		want := p
		want.dst = addr(w.far)
		for range 2 {
			w.want(w.out(p.bytes()), tcNext, want.bytes())
		}
	})
}

// Packets to ports without a virtual service are refused: TCP with a reset, UDP with an ICMP error.
func TestPortNotServed(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		vip := addr(w.nearVIP).Next().Next().String()
		w.addPort(w.addVIP(vip, policyTurns, vipPorts, w.farI), protoTCP, 80, 8080)
		p := tcp(w.client, 1000, vip, 81, tcpSYN)
		p.payload = []byte("early data")
		want := tcp(vip, 81, w.client, 1000, tcpRST|tcpACK)
		want.srcMAC, want.dstMAC = gatewayMAC, clientMAC
		want.seq, want.ack = 0, p.seq+1+uint32(len(p.payload))
		got := w.out(p.bytes())
		w.want(got, tcRedirect, nil)
		compareReset(t, got.frame, want)

		u := udp(w.client, 1000, vip, 80)
		got = w.out(u.bytes())
		w.want(got, tcRedirect, unreachable(u, 3, 4))
		if n := w.count(countNoPort); n != 2 {
			t.Errorf("counted %d", n)
		}
	})
}

// unreachable returns the answer that quotes p; code4 and code6 are the codes of the families.
func unreachable(p packet, code4, code6 uint16) []byte {
	e := packet{src: p.dst, dst: p.src, srcMAC: gatewayMAC, dstMAC: clientMAC, proto: protoICMP, sport: 3<<8 | code4}
	most := 548
	if p.src.Is6() {
		e.proto, e.sport, most = protoICMPv6, 1<<8|code6, 1232
	}
	quoted := p.ip()
	e.quoted = quoted[:min(most, len(quoted)&^3)]
	out := e.bytes()
	if p.src.Is4() {
		out[14+1], out[14+6] = 0xc0, 0x40
		fixIP4(out)
	}
	return out
}

func fixIP4(frame []byte) {
	frame[24], frame[25] = 0, 0
	binary.BigEndian.PutUint16(frame[24:], ^fold(onesSum(frame[14:34])))
}

func compareReset(t *testing.T, got []byte, want packet) {
	t.Helper()
	frame := want.bytes()
	off := 54
	if want.src.Is4() {
		frame[20] = 0x40
		fixIP4(frame)
		off = 34
	}
	frame[off+14], frame[off+15] = 0, 0 // window
	frame[off+16], frame[off+17] = 0, 0
	sum := pseudoSum(want.src, want.dst, protoTCP, 20) + onesSum(frame[off:off+20])
	binary.BigEndian.PutUint16(frame[off+16:], ^fold(sum))
	if diff := cmp.Diff(frame, got); diff != "" {
		t.Errorf("reset (-want +got):\n%s", diff)
	}
}

// ICMP echo is translated like other protocols, with the identifier as port.
func TestEcho(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		request, reply := uint8(8), uint8(0)
		if !w.v4 {
			request, reply = 128, 129
		}
		for _, id := range []uint16{0, 1, 8, 128, 65535} {
			p := icmp(w.client, w.farVIP, request, id)
			want := p
			want.dst = addr(w.far)
			for range 2 {
				w.want(w.out(p.bytes()), tcNext, want.bytes())
			}
			p = icmp(w.far, w.client, reply, id)
			want = p
			want.src = addr(w.farVIP)
			for range 2 {
				w.want(w.in(p.bytes()), tcNext, want.bytes())
			}
		}
	})
}

// Errors about packets of sessions, in both directions, from an end or a router, with short and long quotes.
func TestICMPErrors(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		vip := addr(w.nearVIP).Next().Next().String()
		w.addPort(w.addVIP(vip, policyTurns, vipPorts, w.farI), protoUDP, 53, 5353)
		router := "192.0.2.1"
		if !w.v4 {
			router = "2001:db8::1"
		}
		sent, arrived := udp(w.client, 4000, vip, 53), udp(w.client, 4000, w.far, 5353)
		w.want(w.out(sent.bytes()), tcNext, arrived.bytes())
		for _, from := range []string{w.far, router} {
			for _, quote := range []int{8, 18} {
				p, want := icmpError(from, w.client, arrived, quote), icmpError(from, w.client, sent, quote)
				if from == w.far {
					want.src = addr(vip)
				}
				w.want(w.in(p.bytes()), tcNext, want.bytes())
			}
		}
		answer, seen := udp(w.far, 5353, w.client, 4000), udp(vip, 53, w.client, 4000)
		p, want := icmpError(w.client, vip, seen, 8), icmpError(w.client, w.far, answer, 8)
		w.want(w.out(p.bytes()), tcNext, want.bytes())

		stranger := icmpError(w.client, vip, udp(vip, 53, w.client, 4001), 8)
		w.want(w.out(stranger.bytes()), tcShot, nil)
		if n := w.drops(kerbabi.DropState); n != 1 {
			t.Errorf("%d drops by state", n)
		}
	})
}

// ICMP errors of the node's own stack about a packet to an instance of this node quote the virtual address, for the
// client.
func TestICMPErrorsOfTheNode(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		vip := addr(w.nearVIP).Next().Next().String()
		w.addPort(w.addVIP(vip, policyTurns, vipPorts, w.nearI), protoUDP, 53, 5353)
		node := "10.18.0.1"
		if !w.v4 {
			node = "fd00::1"
		}
		sent, forwarded := udp(w.client, 4000, vip, 53), udp(w.client, 4000, w.near, 5353)
		w.want(w.out(sent.bytes()), tcRedirect, forwarded.to(w.nearMAC).bytes())
		p, want := icmpError(node, w.client, forwarded, 8), icmpError(node, w.client, sent, 8)
		w.want(w.in(p.bytes()), tcNext, p.bytes()) // the address is not known as one of this node
		w.put(mapHomes, addressOf(addr(w.near)), uint32(nearIfindex))
		w.want(w.in(p.bytes()), tcNext, want.bytes())
		other := icmpError(node, w.client, udp(w.client, 4001, w.near, 5353), 8)
		w.want(w.in(other.bytes()), tcNext, other.bytes()) // of no session
		if n := len(w.table()); n != 2 {
			t.Errorf("%d entries, want 2", n)
		}
	})
}

// icmpError returns a port unreachable error that quotes n bytes after the IP header.
func icmpError(from, to string, about packet, quote int) packet {
	p := packet{src: addr(from), dst: addr(to), proto: protoICMP, sport: 3<<8 | 3}
	head := 20
	if p.src.Is6() {
		p.proto, p.sport, head = protoICMPv6, 1<<8|4, 40
	}
	p.quoted = about.ip()[:head+quote]
	return p
}

// Later fragments follow the first one, the only one with ports.
func TestFragments(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		big := udp(w.client, 4000, w.farVIP, 53)
		big.payload, big.fragID = bytes.Repeat([]byte("0123456789abcdef"), 200), 77
		whole := big
		whole.dst = addr(w.far)
		in, out := big.fragments(1480), whole.fragments(1480)
		w.want(w.out(in[1].frame()), tcShot, nil) // before the first
		for i := range in {
			w.want(w.out(in[i].frame()), tcNext, out[i].frame())
		}
		if n := w.count(countFragment); n != 1 {
			t.Errorf("%d fragments counted", n)
		}
		other := in[1]
		other.fragID++
		w.want(w.out(other.frame()), tcShot, nil)

		back := udp(w.far, 53, w.client, 4000)
		back.payload, back.fragID = big.payload, 78
		seen := back
		seen.src = addr(w.farVIP)
		in, out = back.fragments(1480), seen.fragments(1480)
		for i := range in {
			w.want(w.in(in[i].frame()), tcNext, out[i].frame())
		}
	})
}

// IPv4 options and IPv6 extension headers.
func TestOptions(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		for _, p := range []packet{tcp(w.client, 40000, w.farVIP, 80, tcpSYN), udp(w.client, 40000, w.farVIP, 80)} {
			p.options, p.ext = 12, []int{0, 60}
			want := p
			want.dst = addr(w.far)
			for range 2 {
				w.want(w.out(p.bytes()), tcNext, want.bytes())
			}
		}
	})
}

// A service that connects to itself through its virtual address sees the virtual address on both sides.
func TestHairpin(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		vip := addr(w.nearVIP).Next().Next().String()
		self := w.addInstance(1, w.client) // the local index of testIfindex
		w.addVIP(vip, policyTurns, 0, self)
		for _, sport := range []uint16{40000, 80} {
			there, back := udp(w.client, sport, vip, 80), udp(w.client, 80, vip, sport)
			for range 2 {
				got := w.out(there.bytes())
				w.want(got, tcRedirect, nil)
				at := 34
				if !w.v4 {
					at = 54
				}
				nport := binary.BigEndian.Uint16(got.frame[at:])
				if (nport == sport) == (sport == 80) {
					t.Errorf("source port %d became %d", sport, nport)
				}
				back.dport = nport
				w.want(got, tcRedirect, udp(vip, nport, w.client, 80).to(w.testMAC).bytes())
				w.want(w.out(back.bytes()), tcRedirect, udp(vip, 80, w.client, sport).to(w.testMAC).bytes())
			}
		}
	})
}

// Two sessions that the instance could not distinguish get different source ports.
func TestClash(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		vip := addr(w.nearVIP).Next().Next().String()
		w.addVIP(vip, policyTurns, 0, w.farI)
		first, second := udp(w.client, 4000, w.farVIP, 53), udp(w.client, 4000, vip, 53)
		w.want(w.out(first.bytes()), tcNext, udp(w.client, 4000, w.far, 53).bytes())
		got := w.out(second.bytes())
		at := 34
		if !w.v4 {
			at = 54
		}
		nport := binary.BigEndian.Uint16(got.frame[at:])
		if nport == 4000 || w.count(countClash) != 1 {
			t.Errorf("source port %d, %d clashes", nport, w.count(countClash))
		}
		w.want(w.in(udp(w.far, 53, w.client, nport).bytes()), tcNext, udp(vip, 53, w.client, 4000).bytes())
		w.want(w.in(udp(w.far, 53, w.client, 4000).bytes()), tcNext, udp(w.farVIP, 53, w.client, 4000).bytes())
	})
}

// Packets to unknown addresses are passed to the control plane whole, up to a number; those to addresses known not to
// exist are answered.
func TestUnknown(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		nobody := "10.30.9.9"
		if !w.v4 {
			nobody = "fdff:2000::99"
		}
		events := readEvents(t, w.maps[mapUnknown])
		for _, size := range []int{10, 200, 1400, 3000} {
			p := udp(w.client, 4000, nobody, 53)
			p.payload = bytes.Repeat([]byte{7}, size)
			w.want(w.out(p.bytes()), tcShot, nil)
			e, frame := events()
			if e.Ifindex != testIfindex || e.Dst != addressOf(addr(nobody)) || e.Proto != protoUDP || e.Partial != 0 {
				t.Errorf("event %+v", e)
			}
			if !bytes.Equal(frame, p.bytes()) {
				t.Errorf("%d bytes of frame, want %d", len(frame), len(p.bytes()))
			}
		}
		for range 100 {
			w.want(w.out(udp(w.client, 4000, nobody, 53).bytes()), tcShot, nil)
		}
		if asked, not := w.count(countUnknown), w.count(countUnanswered); asked != 64 || not != 40 {
			t.Errorf("%d asked, %d not", asked, not)
		}
		w.put(mapVIPs, addressOf(addr(nobody)), vip{Expires: 1 << 62, ID: 9, Flags: vipNegative})
		p := tcp(w.client, 4000, nobody, 53, tcpSYN)
		w.want(w.out(p.bytes()), tcRedirect, unreachable(p, 1, 3))
		w.put(mapVIPs, addressOf(addr(nobody)), vip{Expires: 1, ID: 9, Flags: vipNegative}) // over
		w.want(w.out(p.bytes()), tcShot, nil)
		if n := w.drops(32); n != 64 {
			t.Errorf("%d drops as held", n)
		}
	})
}

// Instances that are removed, moved or draining.
func TestInstancesComeAndGo(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		vip := addr(w.nearVIP).Next().Next().String()
		elsewhere := addr(w.far).Next().String()
		other := w.addInstance(0, elsewhere)
		w.addVIP(vip, policyTurns, 0, w.farI, other)
		var flows []packet
		for port := range uint16(4) { // 0 and 2 at far, 1 and 3 at other
			flows = append(flows, tcp(w.client, 5000+port, vip, 80, tcpSYN))
			if port >= 2 {
				flows[port] = udp(w.client, 5000+port, vip, 80)
			}
			w.want(w.out(flows[port].bytes()), tcNext, nil)
		}
		synack := tcp(w.far, 80, w.client, 5000, tcpSYN|tcpACK)
		w.want(w.in(synack.bytes()), tcNext, tcp(vip, 80, w.client, 5000, tcpSYN|tcpACK).bytes())

		w.setFlags(w.farI, instanceDraining) // continues, but nothing new
		flows[0].flags = tcpACK
		w.want(w.out(flows[0].bytes()), tcNext, tcp(w.client, 5000, w.far, 80, tcpACK).bytes())
		for port := range uint16(4) {
			w.want(w.out(udp(w.client, 6000+port, vip, 80).bytes()), tcNext, udp(w.client, 6000+port, elsewhere, 80).bytes())
		}

		moved := addr(w.far).Next().Next().String()
		w.place(w.farI, 3, 0, moved)
		w.want(w.out(flows[2].bytes()), tcNext, udp(w.client, 5002, moved, 80).bytes())
		w.want(w.in(udp(moved, 80, w.client, 5002).bytes()), tcNext, udp(vip, 80, w.client, 5002).bytes())
		got := w.out(flows[0].bytes())
		want := tcp(vip, 80, w.client, 5000, tcpRST)
		want.srcMAC, want.dstMAC, want.seq, want.ack = gatewayMAC, clientMAC, flows[0].ack, 0
		w.want(got, tcRedirect, nil)
		compareReset(t, got.frame, want)

		w.setFlags(w.farI, instanceGone)
		w.want(w.out(flows[2].bytes()), tcNext, udp(w.client, 5002, elsewhere, 80).bytes())
		w.setFlags(other, instanceGone)
		w.want(w.out(flows[3].bytes()), tcRedirect, unreachable(flows[3], 1, 3))
		if n := w.count(countMoved); n != 1 {
			t.Errorf("%d moved", n)
		}
	})
}

// A client that reuses its ports gets a new connection, also if the instance of the old one, closed or not, was
// removed.
func TestPortsAreUsedAgain(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		elsewhere := addr(w.far).Next()
		w.addInstance(0, elsewhere.String())
		for port, closed := range map[uint16]bool{5000: true, 5001: false} {
			w.setFlags(w.farI, 0)
			w.addVIP(w.farVIP, policyTurns, 0, w.farI)
			p := tcp(w.client, port, w.farVIP, 80, tcpSYN)
			w.out(p.bytes())
			w.in(tcp(w.far, 80, w.client, port, tcpSYN|tcpACK).bytes())
			if closed {
				w.out(tcp(w.client, port, w.farVIP, 80, tcpACK|tcpFIN).bytes())
				w.in(tcp(w.far, 80, w.client, port, tcpACK|tcpFIN).bytes())
			}
			w.addVIP(w.farVIP, policyTurns, 0, w.instances)
			w.setFlags(w.farI, instanceGone)
			want := p
			want.dst = elsewhere
			w.want(w.out(p.bytes()), tcNext, want.bytes())
		}
	})
}

// A burst of connections from ports of the whole range, each of which is found again: the published proxy has room for
// 128.
func TestManySessions(t *testing.T) {
	w := newWorld(t, true)
	for port := range 16000 {
		p := tcp(w.client, uint16(port*4), w.farVIP, 80, tcpSYN)
		w.want(w.out(p.bytes()), tcNext, nil)
	}
	missing := 0
	for port := range 16000 {
		got := w.in(tcp(w.far, 80, w.client, uint16(port*4), tcpSYN|tcpACK).bytes())
		if !bytes.Equal(got.frame, tcp(w.farVIP, 80, w.client, uint16(port*4), tcpSYN|tcpACK).bytes()) {
			missing++
		}
	}
	if missing > 0 {
		t.Errorf("%d of 16000 sessions are lost", missing)
	}
	if testing.Verbose() {
		fmt.Println(len(w.table()), "entries")
	}
}

// Truncated or modified frames pass, or are translated, answered or dropped, without an error.
func TestHostileFrames(t *testing.T) {
	notEmulated(t)
	families(t, func(t *testing.T, w *world) {
		big := udp(w.client, 4000, w.farVIP, 53)
		big.payload, big.fragID = make([]byte, 64), 7
		parts := big.fragments(32)
		for _, frame := range [][]byte{tcp(w.client, 1, w.farVIP, 80, tcpSYN).bytes(), parts[0].frame(), parts[1].frame(),
			icmpError(w.client, w.farVIP, udp(w.farVIP, 53, w.client, 4000), 8).bytes()} {
			for n := 14; n < len(frame); n++ {
				if n >= 54 || w.v4 && n >= 34 { // PROG_TEST_RUN refuses less
					w.valid(w.out(frame[:n]))
					w.valid(w.in(frame[:n]))
				}
				changed := bytes.Clone(frame)
				changed[n] ^= 0xff
				w.valid(w.out(changed))
				w.valid(w.in(changed))
			}
		}
	})
}

func (w *world) valid(got result) {
	w.t.Helper()
	if got.action != tcNext && got.action != tcShot && got.action != tcRedirect {
		w.t.Errorf("action %d", got.action)
	}
}
