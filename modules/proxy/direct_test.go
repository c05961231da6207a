// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/binary"
	"testing"
)

// A client uses the same source port to a virtual address and to the instance itself, which could not distinguish the
// two flows. With a session, the direct flow gets another source port, and each answer comes from the address that was
// used. This test covers protocols without a connection setup.
func TestDirectNextToSession(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		request, reply := uint8(8), uint8(0)
		if !w.v4 {
			request, reply = 128, 129
		}
		for name, proto := range map[string]struct {
			request, reply func(from, to string, port uint16) packet
			at             int // offset of the port in the transport header
		}{
			"udp": {
				func(from, to string, port uint16) packet { return udp(from, port, to, 53) },
				func(from, to string, port uint16) packet { return udp(from, 53, to, port) }, 0,
			},
			"echo": {
				func(from, to string, port uint16) packet { return icmp(from, to, request, port) },
				func(from, to string, port uint16) packet { return icmp(from, to, reply, port) }, 4,
			},
		} {
			direct, virtual := proto.request(w.client, w.far, 4000), proto.request(w.client, w.farVIP, 4000)
			var port uint16
			onCPU(t, 0, func() { // that remembers flows without a session
				for range 2 {
					w.want(w.out(direct.bytes()), tcNext, direct.bytes()) // no session yet
				}
				w.want(w.out(virtual.bytes()), tcNext, direct.bytes())
				for i := range 3 {
					got := w.out(direct.bytes())
					at := len(got.frame) - len(direct.payload) - 8 + proto.at
					seen := binary.BigEndian.Uint16(got.frame[at:])
					if seen == 4000 || i > 0 && seen != port {
						t.Fatalf("%s: source port %d, after %d", name, seen, port)
					}
					port = seen
					w.want(got, tcNext, proto.request(w.client, w.far, port).bytes())
				}
			})
			for range 2 {
				w.want(w.in(proto.reply(w.far, w.client, port).bytes()), tcNext,
					proto.reply(w.far, w.client, 4000).bytes())
				w.want(w.in(proto.reply(w.far, w.client, 4000).bytes()), tcNext,
					proto.reply(w.farVIP, w.client, 4000).bytes())
			}
		}
	})
}

// An instance of this node, whose answers pass its own interface.
func TestDirectToLocalNextToSession(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		w.put(mapHomes, addressOf(addr(w.near)), uint32(nearIfindex))
		w.out(udp(w.client, 4000, w.nearVIP, 53).bytes())
		direct := udp(w.client, 4000, w.near, 53)
		got := w.out(direct.bytes())
		port := binary.BigEndian.Uint16(got.frame[len(got.frame)-len(direct.payload)-8:])
		if port == 4000 || got.action != tcNext {
			t.Errorf("source port %d, action %d", port, got.action)
		}
		key := flow{Src: addressOf(addr(w.near)), Dst: addressOf(addr(w.client)), SPort: portOf(53), DPort: portOf(port),
			Ifindex: nearIfindex, Proto: protoUDP}
		if s, there := w.table()[key]; !there || s.Addr.addr() != addr(w.near) || s.DPort != portOf(4000) {
			t.Errorf("answers to the direct flow: %+v, %v", s, there)
		}
	})
}

// A CPU remembers UDP packets without a session, until one is created for them.
func TestRememberedWithoutSession(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		later := addr(w.far).Next().String()
		sent, changed := udp(w.client, 4000, later, 53), udp(w.client, 4000, w.far, 53)
		onCPU(t, 0, func() {
			for range 2 {
				w.want(w.out(sent.bytes()), tcNext, sent.bytes())
			}
			w.addVIP(later, policyTurns, 0, w.farI)
			w.want(w.out(sent.bytes()), tcNext, changed.bytes())
			if err := w.maps[mapVIPs].Delete(addressOf(addr(later))); err != nil {
				t.Fatal(err)
			}
			w.want(w.out(sent.bytes()), tcNext, changed.bytes()) // as its session says
		})
	})
}

// The same for packets of a service to a client, before the client has a session with it.
func TestAnswerRememberedWithoutSession(t *testing.T) {
	n := newNeighbours(t, "")
	n.put(mapHomes, addressOf(addr(evilClient)), n.evil)
	n.addVIP("10.30.7.7", policyTurns, 0, n.addInstance(1, n.client)) // the local index of testIfindex
	answer := udp(n.client, 53, evilClient, 4000)
	onCPU(t, 0, func() {
		for range 2 {
			n.want(n.out(answer.bytes()), tcNext, answer.bytes())
		}
		n.attack(func() { n.out(udp(evilClient, 4000, "10.30.7.7", 53).bytes()) })
		n.want(n.out(answer.bytes()), tcRedirect, nil)
	})
}
