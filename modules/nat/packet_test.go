// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

const (
	own4, own6       = "192.0.2.9", "2001:db8::9"
	client4, client6 = "10.18.0.2", "fc00::2"
	remote4, remote6 = "198.51.100.7", "2001:db8:7::7"
	testConfig       = `{"to_ip": "192.0.2.9", "to_ip6": "2001:db8::9", "except": ["10.30.0.0/16", "fdff::/16"],
		"ports": {"first": 40000, "last": 40007}, "services": 2,
		"forward": [{"port": 8080, "to_ip": "10.18.0.2", "to_port": 80},
			{"proto": "udp", "port": 53, "to_ip": "fc00::2", "to_port": 5353}]}`
)

func load(t *testing.T, config string) *sdktest.Module {
	t.Helper()
	return sdktest.Load(t, sdktest.Options{Control: Control(), Config: config})
}

// packet has the fields that tests change: addresses and ports, or an echo identifier as either port.
type packet struct {
	proto    string // tcp, udp, request, reply
	src, dst string
	from, to uint16
	flags    string
	payload  string
}

func (p packet) frame(t testing.TB) []byte {
	t.Helper()
	f := sdktest.Fields{Src: netip.MustParseAddr(p.src), Dst: netip.MustParseAddr(p.dst), Payload: p.payload}
	if f.Payload == "" {
		f.Payload = "some payload of odd length."
	}
	ports := sdktest.Ports{Src: p.from, Dst: p.to}
	six := f.Src.Is6()
	switch p.proto {
	case "tcp":
		if p.flags == "" {
			p.flags = "A"
		}
		f.TCP = &sdktest.TCP{Ports: ports, Flags: p.flags, Seq: 7, Ack: 9}
	case "udp":
		f.UDP = &ports
	case "request":
		f.ICMP = &sdktest.ICMP{Type: kindOf(six, 8, 128), ID: p.from, Seq: 1}
	case "reply":
		f.ICMP = &sdktest.ICMP{Type: kindOf(six, 0, 129), ID: p.to, Seq: 1}
	}
	return sdktest.Frame(t, f)
}

func kindOf(six bool, v4, v6 uint8) uint8 {
	if six {
		return v6
	}
	return v4
}

// expect runs a frame, and checks verdict, reason and all bytes.
func expect(t *testing.T, m *sdktest.Module, direction string, frame, want []byte, reason string) {
	t.Helper()
	verdict := "next"
	if reason != "" {
		verdict = "drop"
	}
	r := m.Run(direction, frame)
	if r.Verdict != verdict || r.Reason != reason {
		t.Errorf("%s: %s %q, want %s %q", direction, r.Verdict, r.Reason, verdict, reason)
	}
	if want != nil && !bytes.Equal(r.Packet, want) {
		t.Errorf("%s:\ngot  %x\nwant %x", direction, r.Packet, want)
	}
}

// open sends a packet from the service and returns its mapped port.
func open(t *testing.T, m *sdktest.Module, p packet) uint16 {
	t.Helper()
	r := m.Run("egress", p.frame(t))
	if r.Verdict != "next" {
		t.Fatalf("%+v: %s %s", p, r.Verdict, r.Reason)
	}
	at := 34
	if netip.MustParseAddr(p.src).Is6() {
		at = 54
	}
	if p.proto == "request" {
		at += 4
	}
	port := binary.BigEndian.Uint16(r.Packet[at:])
	p.src, p.from = ownOf(p.src), port
	if want := p.frame(t); !bytes.Equal(r.Packet, want) {
		t.Fatalf("%+v:\ngot  %x\nwant %x", p, r.Packet, want)
	}
	return port
}

func ownOf(client string) string {
	if netip.MustParseAddr(client).Is6() {
		return own6
	}
	return own4
}

// Packets and answers of each protocol, with all checksums. The port is the same for other hosts, and admits no other
// packets.
func TestTranslates(t *testing.T) {
	for _, proto := range []string{"tcp", "udp", "request"} {
		for client, remote := range map[string]string{client4: remote4, client6: remote6} {
			t.Run(proto+" "+client, func(t *testing.T) {
				m := load(t, testConfig)
				out := packet{proto: proto, src: client, dst: remote, from: 1234, to: 443, flags: "S"}
				port := open(t, m, out)
				if port < 40000 || port > 40007 {
					t.Fatalf("port %d", port)
				}
				answer := packet{proto: proto, src: remote, dst: ownOf(client), from: 443, to: port}
				if proto == "request" {
					answer.proto = "reply"
				}
				back := answer
				back.dst, back.to = client, 1234
				expect(t, m, "ingress", answer.frame(t), back.frame(t), "")
				out.to = 444
				if again := open(t, m, out); again != port {
					t.Errorf("port %d, then %d", port, again)
				}
				answer.to = 40000 + (port-40000+1)%8
				expect(t, m, "ingress", answer.frame(t), answer.frame(t), "no_mapping")
				answer.to = 50000
				expect(t, m, "ingress", answer.frame(t), answer.frame(t), "no_mapping")
				other := map[string]string{"tcp": "udp", "udp": "tcp", "request": "udp"}[proto]
				answer.proto, answer.to = other, port
				expect(t, m, "ingress", answer.frame(t), answer.frame(t), "no_mapping")
				all, err := sdk.ReadTable[outside, mapping](m.Maps, mapMappings)
				if err != nil || len(all) != 1 {
					t.Errorf("%v, %v", all, err)
				}
			})
		}
	}
}

// Packets that are not translated, and packets that are dropped.
func TestPasses(t *testing.T) {
	m := load(t, testConfig)
	for name, p := range map[string]packet{
		"exception":         {proto: "tcp", src: client4, dst: "10.30.7.7", from: 1, to: 2},
		"exception of IPv6": {proto: "tcp", src: client6, dst: "fdff:2000::1", from: 1, to: 2},
		"multicast":         {proto: "udp", src: client4, dst: "224.0.0.251", from: 1, to: 2},
		"DHCP":              {proto: "udp", src: "0.0.0.0", dst: "255.255.255.255", from: 68, to: 67},
		"link-local":        {proto: "udp", src: "fe80::1", dst: client6, from: 1, to: 2},
		"to link-local":     {proto: "udp", src: client4, dst: "169.254.1.1", from: 1, to: 2},
	} {
		t.Run(name, func(t *testing.T) { expect(t, m, "egress", p.frame(t), p.frame(t), "") })
	}
	direct := packet{proto: "tcp", src: remote4, dst: client4, from: 1, to: 2}.frame(t)
	expect(t, m, "ingress", direct, direct, "")
	neighbour := sdktest.Frame(t, sdktest.Fields{Src: netip.MustParseAddr(client6), Dst: netip.MustParseAddr(remote6),
		ICMP: &sdktest.ICMP{Type: 135}, Payload: "0123456789abcdef"})
	expect(t, m, "egress", neighbour, neighbour, "")
	gre := packet{proto: "udp", src: client4, dst: remote4}.frame(t)
	gre[23] = 47
	sumIPv4(gre)
	expect(t, m, "egress", gre, gre, "unsupported")
	arp := make([]byte, 60)
	arp[12], arp[13] = 8, 6
	expect(t, m, "egress", arp, arp, "")
	cut := packet{proto: "tcp", src: client4, dst: remote4}.frame(t)
	cut[16], cut[17] = 255, 255 // the length
	expect(t, m, "egress", cut, cut, "malformed")

	only4 := load(t, `{"to_ip": "192.0.2.9"}`)
	six := packet{proto: "udp", src: client6, dst: remote6, from: 1, to: 2}.frame(t)
	expect(t, only4, "egress", six, six, "")
}

// sumIPv4 computes the header checksum of a frame.
func sumIPv4(frame []byte) {
	frame[24], frame[25] = 0, 0
	binary.BigEndian.PutUint16(frame[24:], ^fold(frame[14:34]))
}

func fold(data []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

func TestForwards(t *testing.T) {
	m := load(t, testConfig)
	in := packet{proto: "tcp", src: remote4, dst: own4, from: 5000, to: 8080, flags: "S"}
	served := packet{proto: "tcp", src: remote4, dst: client4, from: 5000, to: 80, flags: "S"}
	expect(t, m, "ingress", in.frame(t), served.frame(t), "")
	answer := packet{proto: "tcp", src: client4, dst: remote4, from: 80, to: 5000, flags: "SA"}
	if port := open(t, m, answer); port != 8080 {
		t.Errorf("the answer has port %d", port)
	}
	in6 := packet{proto: "udp", src: remote6, dst: own6, from: 5000, to: 53}
	served6 := packet{proto: "udp", src: remote6, dst: client6, from: 5000, to: 5353}
	expect(t, m, "ingress", in6.frame(t), served6.frame(t), "")
	in6.dst, in6.src = own4, remote4
	expect(t, m, "ingress", in6.frame(t), nil, "no_mapping")
}

// If all ports are in use, new connections are dropped and existing ones continue; the other protocols share the ports.
func TestPortsRunOut(t *testing.T) {
	m := load(t, testConfig)
	ports := map[uint16]bool{}
	for i := range 8 {
		ports[open(t, m, packet{proto: "udp", src: client4, dst: remote4, from: uint16(1000 + i), to: 2})] = true
	}
	if len(ports) != 8 {
		t.Errorf("ports %v", ports)
	}
	for _, proto := range []string{"udp", "tcp", "request"} {
		p := packet{proto: proto, src: client4, dst: remote4, from: 2000, to: 2, flags: "S"}.frame(t)
		expect(t, m, "egress", p, p, "no_port")
	}
	open(t, m, packet{proto: "udp", src: client4, dst: remote4, from: 1003, to: 9})
}

// age moves the last use of all mappings into the past.
func age(t *testing.T, m *sdktest.Module, seconds uint64) {
	t.Helper()
	all, err := sdk.ReadTable[outside, mapping](m.Maps, mapMappings)
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range all {
		value.Used -= seconds * 1e9
		if err := m.Maps[mapMappings].Update(key, value, ebpf.UpdateLock); err != nil {
			t.Fatal(err)
		}
	}
}

// An idle mapping admits no packets, and its port can be reused after a timeout that depends on the protocol.
func TestExpires(t *testing.T) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, proto string
		answers     []string // flags
		seconds     uint64
	}{
		{"udp", "udp", []string{""}, 300},
		{"echo", "request", nil, 60},
		{"half-open", "tcp", nil, 240},
		{"established", "tcp", []string{"SA"}, 7440},
		{"reset", "tcp", []string{"SA", "R"}, 240},
		{"finished", "tcp", []string{"SA", "FA"}, 240},
	} {
		t.Run(c.name, func(t *testing.T) {
			if uint64(now.Sec) < c.seconds+10 {
				t.Skipf("the machine has been up for %d s", now.Sec)
			}
			m := load(t, `{"to_ip": "192.0.2.9", "ports": {"first": 40000, "last": 40000}}`)
			first := packet{proto: c.proto, src: client4, dst: remote4, from: 1000, to: 443, flags: "S"}
			second := packet{proto: c.proto, src: "10.18.0.3", dst: remote4, from: 1000, to: 443, flags: "S"}
			open(t, m, first)
			answer := packet{proto: c.proto, src: remote4, dst: own4, from: 443, to: 40000, flags: "A"}
			if c.proto == "request" {
				answer.proto = "reply"
			}
			for _, flags := range c.answers {
				answer.flags = flags
				expect(t, m, "ingress", answer.frame(t), nil, "")
			}
			age(t, m, c.seconds-5)
			expect(t, m, "egress", second.frame(t), nil, "no_port")
			age(t, m, 6)
			expect(t, m, "ingress", answer.frame(t), answer.frame(t), "no_mapping")
			open(t, m, second)
			index, err := sdk.ReadTable[inside, uint32](m.Maps, mapPorts)
			if err != nil || len(index) != 1 {
				t.Errorf("%v, %v", index, err)
			}
			expect(t, m, "egress", first.frame(t), nil, "no_port")
		})
	}
}

// quoting returns an ICMP error that quotes n bytes of a packet.
func quoting(t *testing.T, src, dst string, quoted packet, n int) []byte {
	t.Helper()
	inner := quoted.frame(t)[14:]
	inner = inner[:min(n, len(inner))]
	six := netip.MustParseAddr(src).Is6()
	return sdktest.Frame(t, sdktest.Fields{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst),
		ICMP: &sdktest.ICMP{Type: kindOf(six, 3, 1), Code: 3}, Payload: string(inner)})
}

// ICMP errors to a service must quote a packet that it has sent, those from it a packet that it has received.
func TestErrors(t *testing.T) {
	const router4, router6 = "203.0.113.1", "2001:db8:1::1"
	for _, proto := range []string{"tcp", "udp", "request"} {
		for _, ends := range [][3]string{{client4, remote4, router4}, {client6, remote6, router6}} {
			for _, n := range []int{48, 80} { // IPv4: with TCP's checksum, IPv6: without
				t.Run(proto+" "+ends[0], func(t *testing.T) {
					client, remote, router := ends[0], ends[1], ends[2]
					m := load(t, testConfig)
					sent := packet{proto: proto, src: client, dst: remote, from: 1000, to: 443, payload: "payload."}
					port := open(t, m, sent)
					left := sent
					left.src, left.from = ownOf(client), port
					expect(t, m, "ingress", quoting(t, router, ownOf(client), left, n), quoting(t, router, client, sent, n), "")
					left.from = 50000
					unknown := quoting(t, router, ownOf(client), left, n)
					expect(t, m, "ingress", unknown, unknown, "no_mapping")
					left.from, left.src = port, router // quotes another host's packet
					foreign := quoting(t, router, ownOf(client), left, n)
					expect(t, m, "ingress", foreign, foreign, "no_mapping")

					answer := packet{proto: proto, src: remote, dst: ownOf(client), from: 443, to: port, payload: "payload."}
					if proto == "request" {
						answer.proto = "reply"
					}
					got := answer
					got.dst, got.to = client, 1000
					expect(t, m, "egress", quoting(t, client, remote, got, n), quoting(t, ownOf(client), remote, answer, n), "")
					got.to = 1001
					stray := quoting(t, client, remote, got, n)
					expect(t, m, "egress", stray, stray, "no_mapping")
				})
			}
		}
	}
}

// fragment returns a first or later fragment of an IPv4 frame.
func fragment(frame []byte, offset uint16, more bool) []byte {
	frame = bytes.Clone(frame)
	binary.BigEndian.PutUint16(frame[18:], 77)
	if more {
		offset |= 0x2000
	}
	binary.BigEndian.PutUint16(frame[20:], offset)
	sumIPv4(frame)
	return frame
}

func TestFragments(t *testing.T) {
	m := load(t, testConfig)
	out := packet{proto: "udp", src: client4, dst: remote4, from: 1000, to: 443}
	port := open(t, m, out)
	left := packet{proto: "udp", src: own4, dst: remote4, from: port, to: 443}
	expect(t, m, "egress", fragment(out.frame(t), 0, true), fragment(left.frame(t), 0, true), "")
	later := fragment(out.frame(t), 100, false)
	want := bytes.Clone(later)
	copy(want[26:30], []byte{192, 0, 2, 9})
	sumIPv4(want)
	expect(t, m, "egress", later, want, "")

	in := packet{proto: "udp", src: remote4, dst: own4, from: 443, to: port}
	delivered := packet{proto: "udp", src: remote4, dst: client4, from: 443, to: 1000}
	last := fragment(in.frame(t), 100, false)
	expect(t, m, "ingress", last, last, "fragment")
	expect(t, m, "ingress", fragment(in.frame(t), 0, true), fragment(delivered.frame(t), 0, true), "")
	want = bytes.Clone(last)
	copy(want[30:34], []byte{10, 18, 0, 2})
	sumIPv4(want)
	expect(t, m, "ingress", last, want, "")
	binary.BigEndian.PutUint16(last[18:], 78) // of another datagram
	sumIPv4(last)
	expect(t, m, "ingress", last, last, "fragment")
}

func TestLayouts(t *testing.T) {
	spec, err := pkgstest.Package(t).Spec("tc")
	if err != nil {
		t.Fatal(err)
	}
	for name, mirror := range map[string]any{"nat_inside": inside{}, "nat_outside": outside{}, "nat_mapping": mapping{},
		"nat_prefix": prefix{}} {
		sdktest.Layout(t, spec.Types, name, mirror)
	}
}
