// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// twoSlots adds a virtual address of two slots, whose sessions are not re-created within a connection.
func (w *world) twoSlots() { w.addVIP(w.farVIP, policyTurns, 0, w.farI, w.farI) }

// open opens a connection to the far instance.
func (w *world) open(port uint16) {
	w.out(tcp(w.client, port, w.farVIP, 80, tcpSYN).bytes())
	w.in(tcp(w.far, 80, w.client, port, tcpSYN|tcpACK).bytes())
	w.out(tcp(w.client, port, w.farVIP, 80, tcpACK).bytes())
}

// talk sends data in a connection and reports whether it continues.
func (w *world) talk(port uint16) bool {
	w.t.Helper()
	p := tcp(w.client, port, w.farVIP, 80, tcpACK)
	want := p
	want.dst = addr(w.far)
	got := w.out(p.bytes())
	return got.action == tcNext && bytes.Equal(got.frame, want.bytes())
}

func (w *world) close(port uint16) {
	w.talk(port)
	w.out(tcp(w.client, port, w.farVIP, 80, tcpACK|tcpFIN).bytes())
	w.in(tcp(w.far, 80, w.client, port, tcpACK|tcpFIN).bytes())
	w.out(tcp(w.client, port, w.farVIP, 80, tcpACK).bytes())
}

// Closed connections take no room from live ones.
func TestClosedSessionsEvictNoLiveOnes(t *testing.T) {
	for _, v4 := range []bool{true, false} {
		w := newWorldOn(loadConfigured(t, `{"tables": {"sessions": 4096}}`), v4)
		w.twoSlots()
		const n = 3200
		for i := range uint16(n) {
			w.open(10000 + i)
		}
		for i := range uint16(n) {
			for range 2 {
				w.talk(10000 + i)
				w.in(tcp(w.far, 80, w.client, 10000+i, tcpACK).bytes())
			}
		}
		for i := range uint16(n) {
			w.close(10000 + i)
		}
		for i := range uint16(n) {
			w.open(20000 + i)
		}
		reset := 0
		for i := range uint16(n) {
			if !w.talk(20000 + i) {
				reset++
			}
		}
		if reset > 0 {
			t.Errorf("%d of %d live connections are reset", reset, n)
		}
	}
}

// sessionsPerService and ranges change without a new program, and connections continue.
func TestValuesChange(t *testing.T) {
	const many, few = `{"ranges": ["10.77.0.0/16"]}`, `{"ranges": ["10.78.0.0/16"], "tables": {"sessionsPerService": 2}}`
	for _, v4 := range []bool{true, false} {
		w := newWorldOn(loadConfigured(t, many), v4)
		w.twoSlots()
		w.change(compileConfig(t, many))
		w.open(10000)
		opened, local := uint16(1), w.client
		crowded := func() uint64 { return w.count(countCrowded) }
		for _, step := range []struct {
			config         string
			unknown, other string
			limited        bool
		}{
			{few, "10.78.1.1", "10.77.1.1", true},
			{many, "10.77.1.1", "10.78.1.1", false},
			{few, "10.78.1.1", "10.77.1.1", true},
		} {
			w.change(compileConfig(t, step.config))
			before := crowded()
			for range 3 {
				w.open(10000 + opened)
				opened++
			}
			if got := crowded() != before; got != step.limited {
				t.Errorf("%s: a limit of two sessions is in force: %t", step.config, got)
			}
			if !w.talk(10000) {
				t.Errorf("%s: a connection of before is reset", step.config)
			}
			client := local
			if !v4 {
				client = "10.18.9.9"
			}
			if got := w.out(tcp(client, 1000, step.unknown, 80, tcpSYN).bytes()); got.action != tcShot {
				t.Errorf("%s: %s is not asked for: action %d", step.config, step.unknown, got.action)
			}
			if got := w.out(tcp(client, 1000, step.other, 80, tcpSYN).bytes()); got.action != tcNext {
				t.Errorf("%s: %s: action %d", step.config, step.other, got.action)
			}
		}
	}
}

// neighbours is a node with another, hostile service.
type neighbours struct {
	*world
	lab  *netlab.Lab
	evil uint32 // its interface
}

func newNeighbours(t *testing.T, config string) *neighbours {
	t.Helper()
	w := newWorldOn(loadConfigured(t, config), true)
	if err := netlab.Sweep("kpxe"); err != nil {
		t.Fatal(err)
	}
	lab, err := netlab.Open("kpxe", netlab.Options{OwnNode: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	host, err := lab.Host("evil", netlab.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := &neighbours{world: w, lab: lab, evil: uint32(host.OuterIndex())}
	n.addLocal(n.evil, [6]byte(host.MAC()), localPeer)
	w.twoSlots()
	return n
}

// attack runs f with packets on the other service's interface.
func (n *neighbours) attack(do func()) {
	n.t.Helper()
	err := n.lab.Node().Do(func() error {
		n.on = n.evil
		defer func() { n.on = 0 }()
		do()
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
}

const evilClient = "10.18.66.6"

// flood sends packets from n ports; if answered, the instance answers each.
func (n *neighbours) flood(flows, packets int, answered bool) {
	for i := range flows {
		for range packets {
			n.out(udp(evilClient, uint16(1024+i), n.farVIP, 53).bytes())
		}
		if answered {
			n.in(udp(n.far, 53, evilClient, uint16(1024+i)).bytes())
		}
	}
}

// Packets of one service evict no session of another one, neither idle connections nor unanswered ones; and new ones
// find room.
func TestFloodsEvictNoSessionsOfOthers(t *testing.T) {
	for _, c := range []struct {
		name     string
		packets  int
		answered bool
	}{{"one packet", 1, false}, {"two packets", 2, false}, {"answered", 2, true}} {
		t.Run(c.name, func(t *testing.T) {
			// On emulated machines, a flood takes longer than the default of tcpSyn.
			n := newNeighbours(t, `{"tables": {"sessions": 4096}, "timeouts": {"tcpSyn": "10m"}}`)
			n.open(1000)
			n.out(tcp(n.client, 1001, n.farVIP, 80, tcpSYN).bytes())
			n.attack(func() { n.flood(6000, c.packets, c.answered) })
			if !n.talk(1000) {
				t.Error("an idle connection of another service is reset")
			}
			back := tcp(n.farVIP, 80, n.client, 1001, tcpSYN|tcpACK)
			if got := n.in(tcp(n.far, 80, n.client, 1001, tcpSYN|tcpACK).bytes()); !bytes.Equal(got.frame, back.bytes()) {
				t.Error("another service's connection that waits for its answer is forgotten")
			}
			for port := range uint16(100) {
				n.open(2000 + port)
			}
			n.attack(func() { n.flood(30000, c.packets, c.answered) })
			for port := range uint16(100) {
				if !n.talk(2000 + port) {
					t.Fatalf("connection %d that was opened under the flood is reset", port)
				}
			}
		})
	}
}

// askWindow returns the window in which packets to unknown addresses are counted: px_share_of() of share.h.
func askWindow(t testing.TB) int64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return now.Nano() >> 30
}

// askMuch sends more packets to unknown addresses than a service's share, and reports whether all were sent within one
// window. In two windows a service gets twice its share, which fills the ring buffer unless a control plane reads it.
func (n *neighbours) askMuch(same bool) bool {
	n.t.Helper()
	begin := askWindow(n.t)
	n.attack(func() {
		for i := range 700 {
			p := udp(evilClient, 1000, "10.30.77.77", 53)
			if !same {
				a := addr("10.30.64.0").As4()
				a[2], a[3] = a[2]+byte(i>>8), byte(i)
				p.dst = netip.AddrFrom4(a)
			}
			p.payload = make([]byte, 1400)
			n.out(p.bytes())
		}
	})
	return askWindow(n.t) == begin
}

// Lookups of one service for unknown addresses do not reduce the share of others, for the same and for other addresses.
func TestUnknownAddressesOfOthers(t *testing.T) {
	for _, same := range []bool{false, true} {
		for done := false; !done && !t.Failed(); {
			t.Run(fmt.Sprintf("same=%t", same), func(t *testing.T) {
				done = true // also when it is skipped
				n := newNeighbours(t, "")
				if done = n.askMuch(same); done { // otherwise retry with empty tables
					n.stillHeld()
				}
			})
		}
	}
}

// stillHeld checks that a packet to an unknown address is held for the control plane.
func (n *neighbours) stillHeld() {
	n.t.Helper()
	events := readEvents(n.t, n.maps[mapUnknown])
	asked := n.count(countUnknown)
	p := udp(n.client, 1000, "10.30.77.77", 53)
	p.payload = make([]byte, 1400)
	n.out(p.bytes())
	if n.count(countUnknown) != asked+1 {
		n.t.Fatalf("after %d packets of one service another one's is not held", asked)
	}
	for {
		if e, _ := events(); e.Ifindex == testIfindex {
			return
		}
	}
}

// hotHash is px_hot_hash of hot.h.
func hotHash(src, dst netip.Addr, sport, dport uint16, ifindex uint32) uint32 {
	word := func(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }
	from, to, s, d := addressOf(src), addressOf(dst), portOf(sport), portOf(dport)
	return ((word(from[12:]) ^ word(to[12:])) + word([]byte{s[0], s[1], d[0], d[1]})*31 + ifindex) * 2654435769
}

// New sessions do not invalidate other sessions' copies on CPUs, even in the same slot.
func TestNewSessionsKeepCopiesOfOthers(t *testing.T) {
	w := newWorld(t, true)
	w.twoSlots()
	sent, changed := w.connect()
	key := w.entry(false)
	s := w.table()[key]
	var others [][]byte
	place := hotHash(sent.src, sent.dst, sent.sport, sent.dport, testIfindex) >> 23
	for port := uint16(1); len(others) < 100; port++ {
		if p := udp("10.18.66.7", port, w.farVIP, 53); hotHash(p.src, p.dst, port, 53, testIfindex)>>23 == place {
			others = append(others, p.bytes())
		}
	}
	served := false
	onCPU(t, 0, func() {
		for try := 0; try < len(others) && !served; try++ { // the moment may end between the packets
			w.want(w.out(sent.bytes()), tcNext, changed.bytes())
			w.want(w.out(sent.bytes()), tcNext, changed.bytes())
			w.out(others[try])
			if err := w.maps[mapSessions].Delete(key); err != nil {
				t.Fatal(err)
			}
			served = w.out(sent.bytes()).action == tcNext
			w.put(mapSessions, key, s)
		}
	})
	if !served {
		t.Error("a new session of others makes a copy useless")
	}
}

// A connection to an instance's own address with the source port of one to its virtual address works, whether the
// latter is open or closed.
func TestDirectNextToVirtual(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		for port, end := range map[uint16]string{4000: "closed", 4001: "reset", 4002: "open"} {
			w.open(port)
			switch end {
			case "closed":
				w.close(port)
			case "reset":
				w.in(tcp(w.far, 80, w.client, port, tcpRST).bytes())
			}
			syn := tcp(w.client, port, w.far, 80, tcpSYN)
			got := w.out(syn.bytes())
			seen := binary.BigEndian.Uint16(got.frame[len(got.frame)-len(syn.payload)-20:])
			if end != "open" && seen != port || end == "open" && seen == port || got.action != tcNext {
				t.Errorf("%s: the instance sees source port %d of %d", end, seen, port)
			}
			answer, back := tcp(w.far, 80, w.client, seen, tcpSYN|tcpACK), tcp(w.far, 80, w.client, port, tcpSYN|tcpACK)
			w.want(w.in(answer.bytes()), tcNext, back.bytes())
			data, onward := tcp(w.client, port, w.far, 80, tcpACK), tcp(w.client, seen, w.far, 80, tcpACK)
			for range 3 {
				w.want(w.out(data.bytes()), tcNext, onward.bytes())
			}
			if end == "open" && !w.talk(port) {
				t.Error("the connection to the virtual address does not continue")
			}
		}
	})
}

// A TCP packet without a session creates one if only one instance can have the connection; otherwise it is answered
// with a reset.
func TestSessionsAreRecovered(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		if !w.talk(4000) {
			t.Error("the only instance does not get the packet")
		}
		back := tcp(w.farVIP, 80, w.client, 4000, tcpACK)
		w.want(w.in(tcp(w.far, 80, w.client, 4000, tcpACK).bytes()), tcNext, back.bytes())
		w.twoSlots()
		if w.talk(4001) {
			t.Error("one of two instances gets the packet")
		}
	})
}
