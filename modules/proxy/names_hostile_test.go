// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"testing"

	"github.com/cilium/ebpf"
)

// A forged ICMP error does not create a session with the virtual address of another instance, through which packets
// with that source would pass.
func TestNamesAreNotSpoofedByErrors(t *testing.T) {
	namedFamilies(t, func(t *testing.T, w *named) {
		victim := w.nearVIP
		for _, about := range []packet{udp(w.farOwn, 53, victim, 4000), tcp(w.farOwn, 53, victim, 4000, tcpACK)} {
			w.want(w.out(icmpError(w.client, w.farOwn, about, 8).bytes()), tcShot, nil)
			forged := about
			forged.src, forged.sport, forged.dst, forged.dport = about.dst, about.dport, about.src, about.sport
			for range several {
				w.want(w.out(forged.bytes()), tcShot, nil)
			}
		}
		if n := len(w.table()); n != 0 {
			t.Errorf("%d entries, want none", n)
		}
	})
}

// Packets that cannot be parsed completely cannot have another instance's address either.
func TestNamesAreNotSpoofedByOddPackets(t *testing.T) {
	namedFamilies(t, func(t *testing.T, w *named) {
		odd := udp(w.farOwn, 4000, w.far, 80)
		var frames [][]byte
		if w.v4 {
			odd.options = 40
			frames = append(frames, odd.bytes())
		} else {
			for n := 1; n < 12; n++ {
				odd.ext = append(odd.ext, 60)
				frames = append(frames, odd.bytes())
			}
		}
		bad := tcp(w.farOwn, 4000, w.far, 80, tcpACK).bytes()
		bad[len(bad)-8] = 1 << 4 // TCP data offset
		frames = append(frames, bad)
		for i, frame := range frames {
			if got := w.out(frame); got.action != tcShot {
				t.Errorf("frame %d of %d: action %d", i, len(frames), got.action)
			}
		}
	})
}

// UDP without a checksum stays without one.
func TestNamedWithoutChecksum(t *testing.T) {
	w := newNamed(t, true)
	there, back := udp(w.client, 4000, w.nearVIP, 80), udp(w.near, 80, w.own, 4000)
	arrives, seen := udp(w.own, 4000, w.near, 80), udp(w.nearVIP, 80, w.client, 4000)
	for _, p := range []*packet{&there, &back, &arrives, &seen} {
		p.noCheck = true
	}
	for range several {
		w.want(w.out(there.bytes()), tcRedirect, arrives.to(w.nearMAC).bytes())
		w.want(w.atNear(back.bytes()), tcRedirect, seen.to(w.testMAC).bytes())
	}
}

// handOver loads the proxy with another config and the existing maps.
func (w *named) handOver(constants map[string]any) {
	w.t.Helper()
	next := loadProxy(w.t, constants)
	for name, m := range w.maps {
		if name == mapSlots {
			for i := range w.slots {
				var index uint32
				if err := m.Lookup(i, &index); err != nil {
					w.t.Fatal(err)
				}
				next.put(name, i, index)
			}
			continue
		}
		if m.Type() != ebpf.Hash && m.Type() != ebpf.Array && m.Type() != ebpf.LRUHash || name[0] == '.' {
			continue
		}
		key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
		for it := m.Iterate(); it.Next(&key, &value); {
			if m.Type() == ebpf.Array && bytes.Count(value, []byte{0}) == len(value) {
				continue
			}
			if err := next.maps[name].Put(key, value); err != nil {
				w.t.Fatalf("map %s: %v", name, err)
			}
		}
	}
	next.vips, next.slots, next.instances, next.locals, next.on = w.vips, w.slots, w.instances, w.locals, w.on
	w.kernel = next
}

// When source changes to client, UDP of clients with names continues with their own address. So does TCP, which the
// instance does not know: its reset reaches the client, and the client's reset the instance.
func TestSourceBecomesClient(t *testing.T) {
	namedFamilies(t, func(t *testing.T, w *named) {
		data, reset := tcp(w.client, 4000, w.nearVIP, 80, tcpACK), tcp(w.near, 80, w.client, 4000, tcpRST)
		asked := udp(w.client, 4000, w.nearVIP, 80)
		w.out(tcp(w.client, 4000, w.nearVIP, 80, tcpSYN).bytes())
		for range several {
			w.atNear(tcp(w.near, 80, w.own, 4000, tcpSYN|tcpACK).bytes())
			w.want(w.out(data.bytes()), tcRedirect, tcp(w.own, 4000, w.near, 80, tcpACK).to(w.nearMAC).bytes())
			w.want(w.out(asked.bytes()), tcRedirect, udp(w.own, 4000, w.near, 80).to(w.nearMAC).bytes())
			w.atNear(udp(w.near, 80, w.own, 4000).bytes())
		}
		w.handOver(nil)
		for range several {
			w.want(w.out(asked.bytes()), tcRedirect, udp(w.client, 4000, w.near, 80).to(w.nearMAC).bytes())
			w.want(w.atNear(udp(w.near, 80, w.client, 4000).bytes()), tcRedirect,
				udp(w.nearVIP, 80, w.client, 4000).to(w.testMAC).bytes())
		}
		late, unknown := tcp(w.near, 80, w.own, 4000, tcpACK), tcp(w.near, 80, w.client, 4000, tcpACK)
		w.want(w.atNear(late.bytes()), tcRedirect, unknown.to(w.testMAC).bytes())
		w.want(w.out(tcp(w.client, 4000, w.near, 80, tcpRST).bytes()), tcRedirect,
			tcp(w.own, 4000, w.near, 80, tcpRST).to(w.nearMAC).bytes())
		w.want(w.out(data.bytes()), tcRedirect, tcp(w.client, 4000, w.near, 80, tcpACK).to(w.nearMAC).bytes())
		w.want(w.atNear(reset.bytes()), tcRedirect, tcp(w.nearVIP, 80, w.client, 4000, tcpRST).to(w.testMAC).bytes())
		for key, e := range w.table() {
			if key.Proto == protoTCP && e.Flags&sessionNamed != 0 {
				t.Errorf("entry %v is named", key)
			}
		}
	})
}

// Answers to instances on other nodes count as new sessions of the answering instance, within its quota.
func TestNamedAnswersHaveQuota(t *testing.T) {
	k := loadProxy(t, map[string]any{"source_instance": true, "pending_budget": uint32(4)})
	w := newNamedOn(t, k, true)
	for port := range uint16(20) {
		w.out(tcp(w.client, 80, w.farOwn, 1000+port, tcpSYN|tcpACK).bytes())
	}
	w.want(w.out(tcp(w.client, 4000, w.nearVIP, 80, tcpSYN).bytes()), tcShot, nil)
	if n := len(w.table()); n > 2*5 {
		t.Errorf("%d entries", n)
	}
}
