// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// model is the data plane in plain Go, with slices instead of hash tables, and without times.
type model struct {
	quota      int
	flows      map[string]*modelFlow
	unrecorded uint64
}

type modelFlow struct {
	sides       [2]modelSide
	initiator   int
	handshake   string // "", syn, syn-ack, done, ambiguous
	connections int
	responder   bool // the time to the responder was measured
	toInitiator bool
}

type modelSide struct {
	packets, bytes, retransmits int
	flags                       string
	next                        uint32
	known                       bool
}

// event is a packet of a test. src and from belong to the sender.
type event struct {
	direction int
	proto     string // tcp, udp, icmp
	local     netip.AddrPort
	remote    netip.AddrPort
	flags     string
	seq, ack  uint32
	payload   int
}

func (e event) frame(t testing.TB) []byte {
	t.Helper()
	src, dst := e.local, e.remote
	if e.direction == ingress {
		src, dst = dst, src
	}
	f := sdktest.Fields{Src: src.Addr(), Dst: dst.Addr(), Payload: strings.Repeat("x", e.payload)}
	ports := sdktest.Ports{Src: src.Port(), Dst: dst.Port()}
	switch e.proto {
	case "tcp":
		f.TCP = &sdktest.TCP{Ports: ports, Flags: e.flags, Seq: e.seq, Ack: e.ack}
	case "udp":
		f.UDP = &ports
	default:
		f.ICMP = &sdktest.ICMP{Type: map[bool]uint8{false: 8, true: 128}[src.Addr().Is6()], ID: 7, Seq: 1}
	}
	return sdktest.Frame(t, f)
}

func (e event) key() string {
	if e.proto == "icmp" {
		return fmt.Sprintf("icmp %s %s", e.local.Addr(), e.remote.Addr())
	}
	return fmt.Sprintf("%s %s %s", e.proto, e.local, e.remote)
}

func (e event) has(flag string) bool { return strings.Contains(e.flags, flag) }

func (m *model) packet(e event, length int) {
	f := m.flows[e.key()]
	if f == nil {
		if len(m.flows) >= m.quota {
			m.unrecorded++
			return
		}
		f = &modelFlow{initiator: e.direction}
		m.flows[e.key()] = f
	}
	own := &f.sides[e.direction]
	own.packets++
	own.bytes += length
	if e.proto == "tcp" {
		f.tcp(e)
	}
}

func (f *modelFlow) tcp(e event) {
	own, other := &f.sides[e.direction], &f.sides[1-e.direction]
	space := uint32(e.payload)
	for _, flag := range []string{"S", "F"} {
		if e.has(flag) {
			space++
		}
	}
	end := e.seq + space
	switch {
	case e.has("R"):
	case e.has("S") && !e.has("A"):
		if f.handshake != "" && f.initiator == e.direction && own.known && own.next == end {
			own.retransmits++
			f.handshake = "ambiguous"
			break
		}
		f.connections++
		f.initiator, f.handshake = e.direction, "syn"
		f.responder, f.toInitiator = false, false
		own.next, own.known, other.known = end, true, false
		own.flags, other.flags = "", ""
	case e.has("S"):
		if own.known && own.next == end {
			own.retransmits++
			if f.handshake == "syn-ack" {
				f.handshake = "ambiguous"
			}
			break
		}
		if f.connections == 0 {
			f.connections, f.initiator = 1, 1-e.direction
		}
		if f.handshake == "syn" && f.initiator != e.direction && e.ack == other.next {
			f.handshake, f.responder = "syn-ack", true
		}
		own.next, own.known = end, true
	default:
		if f.handshake == "syn-ack" && f.initiator == e.direction && e.has("A") && e.ack == other.next {
			f.handshake, f.toInitiator = "done", true
		}
		if space == 0 {
			break
		}
		if own.known && int32(e.seq-own.next) < 0 {
			own.retransmits++
		}
		if !own.known || int32(end-own.next) > 0 {
			own.next, own.known = end, true
		}
	}
	for _, flag := range e.flags {
		if !strings.ContainsRune(own.flags, flag) {
			own.flags += string(flag)
		}
	}
}

// figures returns a flow of the model as text, for the comparison with the data plane.
func (f *modelFlow) figures() string {
	out := fmt.Sprintf("by %s, %s, %d connections, measured %t %t", directions[f.initiator], f.handshake, f.connections,
		f.responder, f.toInitiator)
	for _, s := range f.sides {
		out += fmt.Sprintf("; %d packets %d bytes %d retransmits flags %#x", s.packets, s.bytes, s.retransmits,
			flagBits(s.flags))
		if s.known {
			out += fmt.Sprintf(" next %d", s.next)
		}
	}
	return out
}

func flagBits(flags string) (bits int) {
	for i, flag := range "FSRPAU" {
		if strings.ContainsRune(flags, flag) {
			bits |= 1 << i
		}
	}
	return bits
}

// figures returns a flow of the data plane as text.
func (v *value) figures() string {
	handshake := []string{"", "syn", "syn-ack", "done", "ambiguous"}[v.Handshake]
	out := fmt.Sprintf("by %s, %s, %d connections, measured %t %t", directions[v.Initiator], handshake, v.Connections,
		v.ToResponder > 0, v.ToInitiator > 0)
	for _, s := range v.Side {
		out += fmt.Sprintf("; %d packets %d bytes %d retransmits flags %#x", s.Packets, s.Bytes, s.Retransmits, s.TCPFlags)
		if s.Known != 0 {
			out += fmt.Sprintf(" next %d", s.Next)
		}
	}
	return out
}

func (k key) text() string {
	local, remote := address(k.Local), address(k.Remote)
	if k.Proto != 6 && k.Proto != 17 {
		return fmt.Sprintf("icmp %s %s", local, remote)
	}
	return fmt.Sprintf("%s %s %s", protocolName(k.Proto), netip.AddrPortFrom(local, portOf(k.LocalPort)),
		netip.AddrPortFrom(remote, portOf(k.RemotePort)))
}

// random returns a packet of one of few connections, with similar sequence numbers close to wrap-around.
func random(r *rand.Rand) event {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	local, remote := pick("10.0.0.1", "10.0.0.2"), pick("192.0.2.1", "192.0.2.2")
	if r.IntN(3) == 0 {
		local, remote = "fd00::1", pick("2001:db8::1", "2001:db8::2")
	}
	port := func() uint16 { return uint16(80 + r.IntN(2)) }
	e := event{direction: r.IntN(2), proto: pick("tcp", "tcp", "tcp", "tcp", "udp", "icmp"),
		local:  netip.AddrPortFrom(netip.MustParseAddr(local), port()),
		remote: netip.AddrPortFrom(netip.MustParseAddr(remote), port()), payload: r.IntN(4)}
	if e.proto == "tcp" {
		e.flags = pick("S", "SA", "A", "A", "PA", "FA", "R", "F", "", "RA", "SRA")
		e.seq, e.ack = 0xfffffffd+uint32(r.IntN(6)), 0xfffffffe+uint32(r.IntN(6))
		if strings.HasPrefix(e.flags, "S") {
			e.payload = 0
		}
	}
	return e
}

// The data plane behaves as the model for random packets.
func TestModel(t *testing.T) {
	for _, hook := range []string{"tc", "xdp"} {
		t.Run(hook, func(t *testing.T) {
			m := load(t, sdktest.Options{Hook: hook, Config: `{"flows": 30, "services": 2}`})
			want := &model{quota: 30, flows: map[string]*modelFlow{}}
			r := rand.New(rand.NewPCG(1, 2))
			for n := range 12000 {
				e := random(r)
				frame := e.frame(t)
				want.packet(e, len(frame))
				if got := m.Run(directions[e.direction], frame); got.Verdict != "next" || string(got.Packet) != string(frame) {
					t.Fatalf("packet %d: %+v", n, got)
				}
				if n%500 == 499 {
					m.equal(want)
				}
			}
			if want.unrecorded == 0 || len(want.flows) < 30 {
				t.Errorf("%d flows, %d packets unrecorded: the test has not filled the table", len(want.flows), want.unrecorded)
			}
		})
	}
}

// loaded is the module in the kernel.
type loaded struct {
	*sdktest.Module
	t testing.TB
}

func load(t testing.TB, o sdktest.Options) *loaded {
	t.Helper()
	o.Control = Control()
	return &loaded{sdktest.Load(t, o), t}
}

func (l *loaded) running() *running {
	l.t.Helper()
	return sdktest.Open[*running](l.t, l.Compiled, l.Live())
}

// table returns the entries as text.
func (l *loaded) table() map[string]string {
	l.t.Helper()
	out := map[string]string{}
	if err := l.running().each(func(k key, v *value) { out[k.text()] = v.figures() }); err != nil {
		l.t.Fatal(err)
	}
	return out
}

func (l *loaded) equal(want *model) {
	l.t.Helper()
	all := map[string]string{}
	for name, f := range want.flows {
		all[name] = f.figures()
	}
	if diff := cmp.Diff(all, l.table()); diff != "" {
		l.t.Fatal(diff)
	}
	used, err := l.running().usages()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, u := range used {
		if u.Created > 0 && (u.Created != uint64(len(want.flows)) || u.Unrecorded != want.unrecorded) {
			l.t.Fatalf("%+v, want %d flows and %d packets unrecorded", u, len(want.flows), want.unrecorded)
		}
	}
}
