// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/internal/pkttest"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// rejectAll rejects everything, in both directions.
const rejectAll = `{"antiSpoof": false, "defaultPolicy": {"ingress": "deny", "egress": "deny"},
	"rules": [{"name": "no", "action": "reject"}]}`

// wayIn is a hook and a direction of packets at the firewall.
type wayIn struct{ hook, direction string }

var waysIn = []wayIn{{"tc", "egress"}, {"tc", "ingress"}, {"xdp", "egress"}}

// answers runs a test for each hook, direction and IP version.
func answers(t *testing.T, config string, test func(t *testing.T, run func(frame []byte) pkttest.Result, v4 bool)) {
	sdktest.NeedRoot(t)
	for _, hook := range []string{"tc", "xdp"} {
		bench, err := pkttest.NewBench(pkgstest.Package(t), hook, module(t, compileConfig(t, config)))
		sdktest.Explain(t, err)
		t.Cleanup(bench.Close)
		for _, way := range waysIn {
			if way.hook != hook {
				continue
			}
			for name, v4 := range map[string]bool{"ip4": true, "ip6": false} {
				t.Run(hook+"-"+way.direction+"-"+name, func(t *testing.T) {
					test(t, func(frame []byte) pkttest.Result {
						t.Helper()
						r, err := bench.Run(way.direction, frame)
						if err != nil {
							t.Fatal(err)
						}
						return r
					}, v4)
				})
			}
		}
	}
}

// packetOf completes the fields of a packet.
func packetOf(t testing.TB, f pkttest.Fields, v4 bool) []byte {
	t.Helper()
	f.Src, f.Dst = addr(far6), addr(svc6)
	if v4 {
		f.Src, f.Dst = addr(far4), addr(svc4)
	}
	frames, err := pkttest.Packet{Fields: &f}.Frames("")
	if err != nil {
		t.Fatal(err)
	}
	return frames[0]
}

// checkSums fails if a length or a checksum of a frame is wrong.
func checkSums(t *testing.T, frame []byte) gopacket.Packet {
	t.Helper()
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	if e := p.ErrorLayer(); e != nil {
		t.Fatalf("%v: % x", e.Error(), frame)
	}
	switch l := p.TransportLayer().(type) {
	case *layers.TCP:
		if err := l.SetNetworkLayerForChecksum(p.NetworkLayer()); err != nil {
			t.Fatal(err)
		}
	}
	if l, ok := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6); ok {
		if err := l.SetNetworkLayerForChecksum(p.NetworkLayer()); err != nil {
			t.Fatal(err)
		}
	}
	again := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	var parts []gopacket.SerializableLayer
	for _, l := range p.Layers() {
		s, ok := l.(gopacket.SerializableLayer)
		if !ok {
			parts = append(parts, gopacket.Payload(append(l.LayerContents(), l.LayerPayload()...)))
			break
		}
		parts = append(parts, s)
	}
	if err := gopacket.SerializeLayers(again, opts, parts...); err != nil {
		t.Fatal(err)
	}
	if want := again.Bytes()[:len(frame)]; !bytes.Equal(want, frame) { // gopacket pads short frames
		t.Errorf("lengths or checksums:\n  % x\nwant\n  % x", frame, want)
	}
	return p
}

// checkTurned fails if a frame is not addressed from the destination of another one to its source.
func checkTurned(t *testing.T, answer gopacket.Packet, of []byte) {
	t.Helper()
	was := gopacket.NewPacket(of, layers.LayerTypeEthernet, gopacket.Default)
	if answer.LinkLayer().LinkFlow() != was.LinkLayer().LinkFlow().Reverse() ||
		answer.NetworkLayer().NetworkFlow() != was.NetworkLayer().NetworkFlow().Reverse() {
		t.Errorf("%v is no answer to %v", answer, was)
	}
}

// TCP is answered by a reset with the sequence numbers of RFC 9293, 3.10.7.1.
func TestRejectResets(t *testing.T) {
	answers(t, rejectAll, func(t *testing.T, run func([]byte) pkttest.Result, v4 bool) {
		for _, c := range []struct {
			flags, payload string
			vlan           uint16
			seq, ack       uint32
			wantSeq        uint32
			wantAck        uint32 // of a reset with ACK
		}{
			{flags: "S", seq: 1000, wantAck: 1001},
			{flags: "S", seq: 0xffffffff, wantAck: 0, vlan: 5},
			{flags: "S", seq: 1000, payload: "early data", wantAck: 1011},
			{flags: "SA", seq: 1000, ack: 77, wantSeq: 77},
			{flags: "A", seq: 1000, ack: 0xfffffff0, payload: "data", wantSeq: 0xfffffff0},
			{flags: "FA", seq: 1000, ack: 77, wantSeq: 77},
		} {
			ports := pkttest.Ports{Src: 40000, Dst: 80}
			of := packetOf(t, pkttest.Fields{VLAN: c.vlan, Payload: c.payload,
				TCP: &pkttest.TCP{Ports: ports, Flags: c.flags, Seq: c.seq, Ack: c.ack}}, v4)
			r := run(of)
			if r.Verdict != "reply" {
				t.Fatalf("%s: %s %s", c.flags, r.Verdict, r.Reason)
			}
			p := checkSums(t, r.Packet)
			checkTurned(t, p, of)
			tcp := p.TransportLayer().(*layers.TCP)
			if tcp.SrcPort != 80 || tcp.DstPort != 40000 || !tcp.RST || tcp.SYN || tcp.FIN || len(tcp.Payload) != 0 {
				t.Errorf("%s: %+v", c.flags, tcp)
			}
			withACK := c.flags == "S"
			if tcp.ACK != withACK || tcp.Seq != c.wantSeq || tcp.Ack != c.wantAck {
				t.Errorf("%s seq %d ack %d: ACK %t, seq %d, ack %d", c.flags, c.seq, c.ack, tcp.ACK, tcp.Seq, tcp.Ack)
			}
		}
	})
}

// Other packets are answered by an ICMP error that quotes them.
func TestRejectProhibits(t *testing.T) {
	answers(t, rejectAll, func(t *testing.T, run func([]byte) pkttest.Result, v4 bool) {
		echo := pkttest.ICMP{Type: echoRequest(map[bool]string{true: svc4, false: svc6}[v4]), ID: 7}
		for name, f := range map[string]pkttest.Fields{
			"udp":  {UDP: &pkttest.Ports{Src: 40000, Dst: 53}, Payload: "a question of 24 bytes.."},
			"echo": {ICMP: &echo, Payload: "an echo of 24 bytes....."},
			"long": {UDP: &pkttest.Ports{Src: 40000, Dst: 53}, Payload: string(bytes.Repeat([]byte("x."), 700))},
		} {
			of := packetOf(t, f, v4)
			r := run(of)
			if r.Verdict != "reply" {
				t.Fatalf("%s: %s %s", name, r.Verdict, r.Reason)
			}
			p := checkSums(t, r.Packet)
			checkTurned(t, p, of)
			prohibited, at, most := false, 14+20+8, 548
			if l, ok := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4); ok {
				prohibited = l.TypeCode == layers.CreateICMPv4TypeCode(3, 13)
			} else if l, ok := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6); ok {
				prohibited, at, most = l.TypeCode == layers.CreateICMPv6TypeCode(1, 1), 14+40+8, 1232
			}
			want := of[14:min(len(of), 14+most)]
			if !prohibited || !bytes.Equal(r.Packet[at:], want) {
				t.Errorf("%s: %v\nquotes % x\nof     % x", name, p, r.Packet[at:], want)
			}
		}
	})
}

// Packets that must not be answered are dropped, and so are packets whose source is not a single host.
func TestRejectStaysSilent(t *testing.T) {
	notEmulated(t)
	answers(t, rejectAll, func(t *testing.T, run func([]byte) pkttest.Result, v4 bool) {
		svc, other := svc6, far6
		group, groupMAC := "ff0e::1", "33:33:00:00:00:01"
		if v4 {
			svc, other = svc4, far4
			group, groupMAC = "239.1.2.3", "01:00:5e:01:02:03"
		}
		ports := pkttest.Ports{Src: 40000, Dst: 53}
		quoting := frame{Packet: Packet{Src: addr(other), Dst: addr(svc), Proto: protoICMP, ICMPType: 3,
			Quoted: ptr(udp(svc, 1, other, 80))}}
		toGroup := frame{Packet: udp(other, 1, group, 80)}
		fromGroup := frame{Packet: udp(group, 1, svc, 80)}
		fromNone := frame{Packet: udp("0.0.0.0", 1, svc4, 80)}
		options := frame{Packet: udp(other, 1, svc, 80), options: 8}
		first := frame{Packet: tcp(other, 1, svc, 80, tcpSYN), more: true, payload: 12}
		later := frame{Packet: udp(other, 1, svc, 80), fragOff: 64, payload: 8}
		if !v4 {
			quoting.Proto, quoting.ICMPType = protoICMPv6, 1
			fromNone.Packet = udp("::", 1, svc, 80)
			options.ext, first.ext, later.ext = []int{60}, []int{44}, []int{44}
		}
		for name, f := range map[string][]byte{
			"reset":      packetOf(t, pkttest.Fields{TCP: &pkttest.TCP{Ports: ports, Flags: "R", Seq: 1}}, v4),
			"error":      quoting.bytes(),
			"group":      toGroup.bytes(),
			"group MAC":  packetOf(t, pkttest.Fields{DstMAC: groupMAC, UDP: &ports}, v4),
			"from group": fromGroup.bytes(),
			"from none":  fromNone.bytes(),
			"options":    options.bytes(),
			"first":      first.bytes(),
			"later":      later.bytes(),
		} {
			r := run(f)
			reason := "policy"
			if name == "later" {
				reason = "fragment"
			}
			if r.Verdict != "drop" || r.Reason != reason {
				t.Errorf("%s: %s %s", name, r.Verdict, r.Reason)
			}
		}
	})
}

// An answer passes the other direction of the firewall once, although no rule allows it; similar packets do not.
func TestRejectAnswerPassesOnce(t *testing.T) {
	notEmulated(t)
	for _, state := range []string{"true", "false"} {
		k := loadFirewall(t, rejectAll[:len(rejectAll)-1]+`, "state": {"enabled": `+state+`}}`)
		for _, v4 := range []bool{true, false} {
			for name, f := range map[string]pkttest.Fields{
				"tcp": {TCP: &pkttest.TCP{Ports: pkttest.Ports{Src: 40000, Dst: 80}, Flags: "S", Seq: 5}},
				"udp": {UDP: &pkttest.Ports{Src: 40000, Dst: 53}, Payload: "a question of 24 bytes.."},
				"echo": {ICMP: &pkttest.ICMP{Type: map[bool]uint8{true: 8, false: 128}[v4], ID: 9},
					Payload: "an echo of 24 bytes....."},
			} {
				of := packetOf(t, f, v4)
				for _, ingress := range []bool{true, false} {
					action, answer := k.run(of, ingress)
					if action != tcRedirect {
						t.Fatalf("%s: action %d", name, action)
					}
					stranger := bytes.Clone(answer)
					at := map[bool]int{true: 14 + 20, false: 14 + 40}[v4]
					if name == "tcp" {
						stranger[at+3]++ // port
					} else {
						stranger[len(stranger)-len(of)+14+map[bool]int{true: 19, false: 39}[v4]] ^= 1 // quoted destination
					}
					if action, _ = k.run(stranger, !ingress); action == tcNext {
						t.Errorf("%s: an answer to nothing passes", name)
					}
					if action, out := k.run(answer, !ingress); action != tcNext || !bytes.Equal(out, answer) {
						t.Errorf("%s, ingress %t: the answer does not pass: action %d", name, ingress, action)
					}
					if action, _ = k.run(answer, !ingress); action == tcNext {
						t.Errorf("%s, ingress %t: the answer passes twice", name, ingress)
					}
				}
			}
		}
		if state == "true" && k.other()["related"].Packets != 12 {
			t.Errorf("related: %v", k.other())
		}
	}
}

// Only the one answer passes, in its direction: not a reset or a forged error of the sender, nor packets that cannot be
// an answer.
func TestRejectPassesNothingForged(t *testing.T) {
	notEmulated(t)
	k := loadFirewall(t, rejectAll)
	for _, v4 := range []bool{true, false} {
		svc, other := svc6, far6
		if v4 {
			svc, other = svc4, far4
		}
		for _, ingress := range []bool{true, false} {
			checkForged(t, k, ingress, svc, other)
		}
	}
}

// rejectedFlow generates packets of one port to a service, and forged answers to them.
type rejectedFlow struct {
	svc, other string
	port       uint16
}

func (r rejectedFlow) tcp(flags uint8) frame {
	return frame{Packet: tcp(r.other, r.port, r.svc, 80, flags)}
}

func (r rejectedFlow) udp() frame { return frame{Packet: udp(r.other, r.port, r.svc, 80)} }

func (r rejectedFlow) reset() frame {
	return frame{Packet: tcp(r.svc, 80, r.other, r.port, tcpRST|tcpACK)}
}

// prohibited returns the error about a datagram of the flow, or about one of the service.
func (r rejectedFlow) prohibited(back bool) frame {
	about, p := r.udp().Packet, icmp(r.svc, r.other, 3, 0)
	p.ICMPCode = 13
	if !back {
		about, p.Src, p.Dst = udp(r.svc, 80, r.other, r.port), p.Dst, p.Src
	}
	if p.Src.Is6() {
		p.ICMPType, p.ICMPCode = 1, 1
	}
	p.Quoted = &about
	return frame{Packet: p}
}

// hiding adds IPv4 options or an IPv6 extension header to a packet, which no answer has.
func (f frame) hiding() frame {
	if f.Src.Is4() {
		f.options = 8
	} else {
		f.ext = []int{60}
	}
	return f
}

// first makes a packet a first fragment.
func (f frame) first() frame {
	f.more = true
	if f.Src.Is6() {
		f.ext = []int{44}
	}
	return f
}

func (f frame) with(payload int) frame {
	f.payload, f.Len = payload, payload
	return f
}

func checkForged(t *testing.T, k *kernel, ingress bool, svc, other string) {
	const there, back = false, true
	type packet struct {
		back bool
		f    frame
		want int32
	}
	lie := func(of, answer, lie frame) []packet {
		return []packet{{there, of, tcRedirect}, {back, lie, tcShot}, {back, answer, tcNext}}
	}
	port := uint16(30000)
	for name, packets := range map[string]func(r rejectedFlow) []packet{
		"resets": func(r rejectedFlow) []packet {
			rst := packet{there, r.tcp(tcpRST), tcShot}
			return []packet{rst, rst, rst, {back, r.reset(), tcShot}}
		},
		"resets to an answered SYN": func(r rejectedFlow) []packet {
			return []packet{{there, r.tcp(tcpSYN), tcRedirect}, {there, r.tcp(tcpRST), tcShot},
				{back, r.reset(), tcNext}, {back, r.reset(), tcShot}}
		},
		"a reset with payload": func(r rejectedFlow) []packet {
			return lie(r.tcp(tcpSYN), r.reset(), r.reset().with(10))
		},
		"the fragment of a reset": func(r rejectedFlow) []packet {
			return lie(r.tcp(tcpSYN), r.reset(), r.reset().first())
		},
		"a reset behind options": func(r rejectedFlow) []packet {
			return lie(r.tcp(tcpSYN), r.reset(), r.reset().hiding())
		},
		"the fragment of an error": func(r rejectedFlow) []packet {
			return lie(r.udp(), r.prohibited(true), r.prohibited(true).first())
		},
		"an error behind options": func(r rejectedFlow) []packet {
			return lie(r.udp(), r.prohibited(true), r.prohibited(true).hiding())
		},
		"a long error": func(r rejectedFlow) []packet {
			return lie(r.udp(), r.prohibited(true), r.prohibited(true).with(1300))
		},
		"errors": func(r rejectedFlow) []packet {
			return []packet{{there, r.udp(), tcRedirect}, {there, r.prohibited(false), tcShot},
				{back, r.prohibited(true), tcNext}, {back, r.prohibited(true), tcShot}}
		},
		"after what is not answered": func(r rejectedFlow) []packet {
			return []packet{{there, r.tcp(tcpSYN).hiding(), tcShot}, {back, r.reset(), tcShot},
				{there, r.tcp(tcpRST), tcShot}, {there, r.udp().hiding(), tcShot},
				{back, r.prohibited(true), tcShot}, {there, r.prohibited(false), tcShot}}
		},
	} {
		port++
		for i, p := range packets(rejectedFlow{svc, other, port}) {
			k.refillAnswers()
			if action, _ := k.run(p.f.bytes(), ingress != p.back); action != p.want {
				t.Errorf("%s, ingress %t, from %s: packet %d: action %d, want %d", name, ingress, other, i, action, p.want)
			}
		}
	}
}

// For packets beyond the rate limit of answers, no answer passes.
func TestRejectBeyondRatePassesNothing(t *testing.T) {
	notEmulated(t)
	k := loadFirewall(t, rejectAll)
	due := make([]uint64, ebpf.MustPossibleCPU())
	for i := range due {
		due[i] = 1 << 62
	}
	if err := k.maps["kerb_answers"].Put(uint32(0), due); err != nil {
		t.Fatal(err)
	}
	r := rejectedFlow{svc4, far4, 1}
	for i, f := range []frame{r.tcp(tcpSYN), r.reset(), r.udp(), r.prohibited(true)} {
		if action, _ := k.run(f.bytes(), i%2 == 0); action != tcShot {
			t.Errorf("packet %d: action %d", i, action)
		}
	}
}

// On XDP, where answers leave without passing the firewall, packets that look like answers do not pass.
func TestRejectPassesNothingOnXDP(t *testing.T) {
	notEmulated(t)
	sdktest.NeedRoot(t)
	bench, err := pkttest.NewBench(pkgstest.Package(t), "xdp", module(t, compileConfig(t, rejectAll)))
	sdktest.Explain(t, err)
	t.Cleanup(bench.Close)
	for _, r := range []rejectedFlow{{svc4, far4, 1}, {svc6, far6, 1}} {
		for i, f := range []frame{r.tcp(tcpRST), r.tcp(tcpRST), r.tcp(tcpSYN), r.tcp(tcpRST), r.reset(), r.udp(),
			r.prohibited(false), r.prohibited(true)} {
			got, err := bench.Run("egress", f.bytes())
			if err != nil {
				t.Fatal(err)
			}
			if got.Verdict != "drop" && got.Verdict != "reply" {
				t.Errorf("packet %d from %s: %s", i, r.other, got.Verdict)
			}
		}
	}
}

// A flood is answered at Linux' rate of ICMP errors: a burst of up to 50, then one per millisecond and CPU.
func TestRejectRate(t *testing.T) {
	notEmulated(t)
	k := loadFirewall(t, rejectAll)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin, replies := time.Now(), 0
	const flood = 3000
	for i := range flood {
		f := pkttest.Fields{TCP: &pkttest.TCP{Ports: pkttest.Ports{Src: uint16(i), Dst: 80}, Flags: "S"}}
		if action, _ := k.run(packetOf(t, f, true), true); action == tcRedirect {
			replies++
		}
	}
	most := runtime.NumCPU() * (51 + int(time.Since(begin).Milliseconds()))
	if replies < 50 || replies > most || replies == flood {
		t.Errorf("%d of %d packets were answered, at most %d should be", replies, flood, most)
	}
	if n := k.drops(dropPolicy); int(n) != flood-replies {
		t.Errorf("%d drops, %d packets were not answered", n, flood-replies)
	}
	if n := k.hits(k.slotOf(0)); n != flood {
		t.Errorf("%d hits of the rule", n)
	}
}

// In audit mode a rejected packet passes, and is counted as one that would be dropped.
func TestRejectInAudit(t *testing.T) {
	notEmulated(t)
	k := loadFirewall(t, `{"mode": "audit", "rules": [{"action": "reject"}]}`)
	of := packetOf(t, pkttest.Fields{TCP: &pkttest.TCP{Flags: "S"}}, true)
	if action, out := k.run(of, true); action != tcNext || !bytes.Equal(of, out) {
		t.Errorf("action %d", action)
	}
	if would, err := wouldDrop(k.maps); err != nil || would["policy"].Packets != 1 {
		t.Errorf("would drop %v, %v", would, err)
	}
}

// Clients of a rejected port, and a service whose outgoing connections are rejected, get errors immediately, although
// nothing else passes.
func TestRejectedSocketsGetErrors(t *testing.T) {
	notEmulated(t)
	b := newBridged(t)
	b.filter(loadFirewall(t, rejectAll))
	for _, c := range []struct {
		from interface{ Do(func() error) error }
		to   []netip.Addr
	}{
		{b.neighbour, []netip.Addr{b.tenant.Addr4(), b.tenant.Addr6()}},
		{b.lab.Node(), []netip.Addr{b.tenant.Addr4(), b.tenant.Addr6()}},
		{b.tenant, []netip.Addr{b.neighbour.Addr4(), b.neighbour.Addr6()}},
	} {
		for _, to := range c.to {
			if err := c.from.Do(func() error { return dial("tcp", to) }); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("TCP to %v: %v", to, err)
			}
			prohibited := unix.EACCES
			if to.Is4() {
				prohibited = unix.EHOSTUNREACH
			}
			if err := c.from.Do(func() error { return dial("udp", to) }); !errors.Is(err, prohibited) {
				t.Errorf("UDP to %v: %v, want %v", to, err, prohibited)
			}
		}
	}
}

// dial connects, or sends a datagram and waits for the error.
func dial(network string, to netip.Addr) error {
	conn, err := net.DialTimeout(network, netip.AddrPortFrom(to, 7).String(), 20*time.Second)
	if err != nil || network == "tcp" {
		return err
	}
	defer conn.Close()
	if _, err = conn.Write([]byte("question")); err != nil {
		return err
	}
	conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err = conn.Read(make([]byte, 1))
	return err
}
