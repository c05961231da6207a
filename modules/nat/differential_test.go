// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// end is the owner of a mapping.
type end struct {
	proto, addr string
	port        uint16
}

// model is the module as a table of ports and their owners. Nothing expires during a test.
type model struct {
	ports  map[end]uint16
	owners map[uint16]end
}

const modelPorts = 24 // fewer than the data plane's probes, so that it finds every free port

func protoOf(p packet) string {
	if p.proto == "request" || p.proto == "reply" {
		return "icmp"
	}
	return p.proto
}

// Random packets in both directions, with few and many ends, match the model to the last byte.
func TestAgainstModel(t *testing.T) {
	const packets = 6000
	config := fmt.Sprintf(`{"to_ip": %q, "to_ip6": %q, "except": ["198.51.100.64/26", "2001:db8:7:1::/64"],
		"ports": {"first": 40000, "last": %d}, "forward": [{"port": 8080, "to_ip": %q, "to_port": 1001}]}`,
		own4, own6, 40000+modelPorts-1, client4)
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m, r := load(t, config), rand.New(rand.NewPCG(seed, 1))
			table := model{map[end]uint16{}, map[uint16]end{}}
			verdicts := map[string]int{}
			for i := range packets {
				if i%2000 == 1999 { // begin again
					m, table = load(t, config), model{map[end]uint16{}, map[uint16]end{}}
				}
				direction, p := randomPacket(r)
				got := m.Run(direction, p.frame(t))
				want, reason := table.step(direction, p, got)
				verdicts[direction+" "+reason]++
				if got.Reason != reason || !bytes.Equal(got.Packet, want.frame(t)) {
					t.Fatalf("packet %d, %s %+v:\ngot  %s %q %x\nwant %q %x", i, direction, p, got.Verdict, got.Reason, got.Packet,
						reason, want.frame(t))
				}
			}
			if len(verdicts) != 4 || verdicts["egress no_port"] == 0 {
				t.Errorf("not all outcomes occurred: %v", verdicts)
			}
		})
	}
}

func randomPacket(r *rand.Rand) (direction string, p packet) {
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	clients, remotes, own := []string{client4, "10.18.0.3"}, []string{remote4, "198.51.100.65"}, own4
	if r.IntN(2) == 0 {
		clients, remotes, own = []string{client6, "fc00::3"}, []string{remote6, "2001:db8:7:1::5"}, own6
	}
	p = packet{proto: pick("tcp", "udp", "request", "reply"), flags: pick("S", "SA", "A", "PA"),
		payload: string(make([]byte, 20+r.IntN(40)))}
	if r.IntN(2) == 0 {
		p.src, p.dst, p.from, p.to = pick(clients...), pick(remotes...), uint16(1000+r.IntN(5)), uint16(r.IntN(3))
		return "egress", p
	}
	p.src, p.dst, p.from, p.to = pick(remotes...), pick(append(clients, own, own, own)...), uint16(r.IntN(3)),
		uint16(39998+r.IntN(modelPorts+4))
	if r.IntN(8) == 0 {
		p.to = 8080
	}
	return "ingress", p
}

func (m model) step(direction string, p packet, got sdktest.Result) (packet, string) {
	proto := protoOf(p)
	v4 := netip.MustParseAddr(p.src).Is4()
	if direction == "ingress" {
		owner, found := m.owners[p.to]
		switch {
		case p.dst != ownOf(p.src):
			return p, ""
		case p.to == 8080 && proto == "tcp" && v4:
			p.dst, p.to = client4, 1001
			return p, ""
		case p.proto == "request": // its identifier is the sender's, in this test in from
			owner, found = m.owners[p.from]
		}
		if !found || owner.proto != proto || netip.MustParseAddr(owner.addr).Is4() != v4 {
			return p, "no_mapping"
		}
		p.dst = owner.addr
		if p.proto == "request" {
			p.from = owner.port
		} else {
			p.to = owner.port
		}
		return p, ""
	}
	if netip.MustParsePrefix("198.51.100.64/26").Contains(netip.MustParseAddr(p.dst)) ||
		netip.MustParsePrefix("2001:db8:7:1::/64").Contains(netip.MustParseAddr(p.dst)) {
		return p, ""
	}
	from := &p.from
	if p.proto == "reply" {
		from = &p.to
	}
	e := end{proto, p.src, *from}
	if e == (end{"tcp", client4, 1001}) {
		p.src, *from = own4, 8080
		return p, ""
	}
	port, known := m.ports[e]
	if !known {
		if len(m.owners) == modelPorts {
			return p, "no_port"
		}
		if port = leftBy(p, got); m.owners[port] != (end{}) || port < 40000 || port >= 40000+modelPorts {
			return p, fmt.Sprintf("given port %d, which is %v's", port, m.owners[port])
		}
		m.ports[e], m.owners[port] = port, e
	}
	p.src, *from = ownOf(p.src), port
	return p, ""
}

// leftBy returns the port that the data plane has chosen, which the model adopts.
func leftBy(p packet, got sdktest.Result) uint16 {
	at := 34
	if netip.MustParseAddr(p.src).Is6() {
		at = 54
	}
	if protoOf(p) == "icmp" {
		at += 4
	}
	return uint16(got.Packet[at])<<8 | uint16(got.Packet[at+1])
}

// Packets with random bytes: none leaves with the service's address, and none aborts the program.
func TestDamagedPackets(t *testing.T) {
	m, r := load(t, testConfig), rand.New(rand.NewPCG(1, 2))
	verdicts := map[string]int{}
	for range 4000 {
		_, p := randomPacket(r)
		p.src, p.dst = client4, remote4
		frame := p.frame(t)
		if r.IntN(3) == 0 {
			frame = quoting(t, client4, remote4, packet{proto: "udp", src: remote4, dst: client4}, 8+r.IntN(60))
		}
		for range 1 + r.IntN(4) {
			frame[14+r.IntN(len(frame)-14)] = byte(r.Uint32())
		}
		copy(frame[26:], netip.MustParseAddr(client4).AsSlice())
		copy(frame[30:], netip.MustParseAddr(remote4).AsSlice())
		if r.IntN(4) > 0 {
			sumIPv4(frame)
		}
		got := m.Run("egress", frame)
		verdicts[got.Reason]++
		if got.Verdict == "next" && bytes.Equal(got.Packet[26:30], frame[26:30]) {
			t.Fatalf("left: %x", frame)
		}
		copy(frame[30:], netip.MustParseAddr(own4).AsSlice())
		if in := m.Run("ingress", frame); in.Verdict == "next" && bytes.Equal(in.Packet, frame) {
			t.Fatalf("entered: %x", frame)
		}
	}
	if verdicts[""] == 0 || verdicts["malformed"] == 0 {
		t.Errorf("%v", verdicts)
	}
}
