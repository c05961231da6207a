// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
)

// A module whose struct kerb_pkt has another layout finds every field, those that it writes included.
func TestFieldsAreRelocated(t *testing.T) {
	for _, s := range sides {
		l := load(t, s.side, s.dir, testModule(t, "moved", "moved", nil))
		if ret, _ := run(t, l.Program, udpPacket(t, 9, nil)); ret != s.drop {
			t.Errorf("%s: port 9: action %d, want %d", s.side, ret, s.drop)
		}
		if ret, _ := run(t, l.Program, udpPacket(t, 10, nil)); ret != s.pass {
			t.Errorf("%s: port 10: action %d, want %d", s.side, ret, s.pass)
		}
		if drops, err := l.Drops("moved"); err != nil || drops[33] != 1 {
			t.Errorf("%s: drops by reason: %v (%v), want one of reason 33", s.side, drops, err)
		}
	}
}

// testdata/contract1 is modules/counter as it was compiled before accesses had relocations.
func TestModuleWithoutRelocations(t *testing.T) {
	needsRoot(t)
	m := Module{Name: "counter", ID: "0123456789", Spec: func(h chain.Hook) (*ebpf.CollectionSpec, error) {
		if h != chain.TC {
			return nil, nil
		}
		raw, err := testModules.ReadFile("testdata/contract1/counter.tc.elf")
		if err != nil {
			return nil, err
		}
		return ebpf.LoadCollectionSpecFromReader(bytes.NewReader(raw))
	}}
	l := load(t, chain.OnTCIngress, chain.Egress, testModule(t, "moved", "moved", nil), m)
	packet := udpPacket(t, 10, make([]byte, 58))
	if ret, _ := run(t, l.Program, packet); ret != tcNext {
		t.Errorf("action %d, want %d", ret, tcNext)
	}
	var places []struct{ Key, Packets, Bytes uint64 }
	var found int
	for i := range l.Maps["counter"]["places"].MaxEntries() {
		if err := l.Maps["counter"]["places"].Lookup(i, &places); err != nil {
			t.Fatal(err)
		}
		for _, p := range places {
			if p.Packets > 0 {
				found++
			}
			if family, proto := byte(p.Key>>40), byte(p.Key>>48); p.Packets > 0 &&
				(family != 4 || proto != 17 || p.Bytes != uint64(len(packet))) {
				t.Errorf("counted family %d, protocol %d, %d bytes, want 4, 17, %d", family, proto, p.Bytes, len(packet))
			}
		}
	}
	if found != 1 {
		t.Errorf("%d counts, want 1", found)
	}
}
