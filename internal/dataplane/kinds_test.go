// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/kerb-edge/kerb/internal/chain"
)

// Modules see the same in the copies for the kinds of packets as in the general code, and their verdicts are counted
// alike.
func TestKinds(t *testing.T) {
	udp := udpPacket(t, 9, make([]byte, 40))
	other := udpPacket(t, 10, make([]byte, 40))
	for _, s := range sides {
		for _, tc := range []struct {
			name           string
			frame          []byte
			counted, drops bool
		}{
			{"UDP", other, true, false},
			{"UDP to the port", udp, true, true},
			{"TCP", changed(udp, func(f []byte) { f[23], f[46] = 6, 0x50 }), false, false},
			{"UDP over IPv6", overIPv6(udp, 17), false, true},
			{"TCP over IPv6", overIPv6(changed(udp, func(f []byte) { f[46] = 0x50 }), 6), false, false},
			{"tagged", slices.Concat(udp[:12], []byte{0x81, 0, 0, 42}, udp[12:]), true, true},
			{"first fragment", changed(udp, func(f []byte) { f[20] = 0x20 }), true, true},
			{"later fragment", changed(udp, func(f []byte) { f[21] = 1 }), false, false},
			{"impossible length", changed(udp, func(f []byte) { f[38], f[39] = 0, 4 }), false, false},
			{"ICMP", changed(udp, func(f []byte) { f[23] = 1 }), false, false},
			{"ARP", changed(udp, func(f []byte) { f[12], f[13] = 8, 6 }), false, false},
		} {
			t.Run(fmt.Sprint(s.side, " ", tc.name), func(t *testing.T) {
				testKind(t, s.side, s.dir, tc.frame, tc.counted, tc.drops)
			})
		}
	}
}

func testKind(t *testing.T, side chain.Side, dir chain.Direction, frame []byte, counts, drops bool) {
	names := []string{"first", "second", "third"}
	var mods []Module
	for i, name := range names {
		mods = append(mods, testModule(t, "kinds", name, map[string]any{"port": uint16(7 + i)}))
	}
	l := load(t, side, dir, mods...)
	spec := chain.Spec{Side: side, Direction: dir}
	for _, m := range mods {
		spec.Members = append(spec.Members, chain.Member{Name: m.Name, ID: m.ID})
	}
	members, err := l.members(spec)
	if err != nil {
		t.Fatal(err)
	}
	linker, err := newLinker(spec, members)
	if err != nil {
		t.Fatal(err)
	}
	c, err := linker.chain()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if len(linker.facts) != len(kinds) {
		t.Fatalf("copies for %d kinds, not %d", len(linker.facts), len(kinds))
	}
	run(t, c.entry(), frame)
	for _, name := range names {
		if n, _ := counted(t, l.Maps[name]["totals"]); (n == 1) != counts {
			t.Errorf("%s has counted %d packets", name, n)
		}
	}
	got, err := readCounts(c.counts, len(c.spec.Members))
	if err != nil {
		t.Fatal(err)
	}
	want := Verdicts{{1, uint64(len(frame))}}
	for _, v := range got[:2] {
		if v != want {
			t.Errorf("verdicts %v, not %v", v, want)
		}
	}
	if drops {
		want[0], want[1] = want[1], want[0]
	}
	if got[2] != want {
		t.Errorf("verdicts of the last module %v, not %v", got[2], want)
	}
}

func changed(frame []byte, change func([]byte)) []byte {
	f := slices.Clone(frame)
	change(f)
	return f
}

// overIPv6 puts the payload of an IPv4 packet behind an IPv6 header.
func overIPv6(frame []byte, proto byte) []byte {
	ip := make([]byte, 40)
	ip[0], ip[6], ip[7] = 0x60, proto, 64
	binary.BigEndian.PutUint16(ip[4:], uint16(len(frame)-34))
	return slices.Concat(frame[:12], []byte{0x86, 0xdd}, ip, frame[34:])
}
