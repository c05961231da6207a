// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/kerbabi"
)

// lastDropsOfLoaded are those of a module of a loaded chain.
func lastDropsOfLoaded(t *testing.T, l *Loaded, module string) []DroppedPacket {
	t.Helper()
	all, err := readLastDrops(l.chain.counts, l.chain.spec)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(p DroppedPacket) bool { return p.Module != module })
}

// droppedOf reads what a chain keeps, and returns how to write it.
func droppedOf(t *testing.T, l *Loaded) (all lastDrops, write func(lastDrops)) {
	t.Helper()
	m := l.chain.counts
	value, err := m.LookupBytes(uint32(0))
	if err != nil {
		t.Fatal(err)
	}
	at := len(value) - int(lastDropsSize)
	if _, err := binary.Decode(value[at:], binary.NativeEndian, &all); err != nil {
		t.Fatal(err)
	}
	return all, func(all lastDrops) {
		t.Helper()
		if _, err := binary.Encode(value[at:], binary.NativeEndian, all); err != nil {
			t.Fatal(err)
		}
		if err := m.Put(uint32(0), value); err != nil {
			t.Fatal(err)
		}
	}
}

// Each hook keeps the frame as far as there is room, whatever its length, and says where it was dropped.
func TestLastDrops(t *testing.T) {
	for _, s := range sides {
		for _, payload := range []int{0, 1, 77, 85, 86, 87, 200, 1400} { // 86: the frame has droppedBytes
			l := load(t, s.side, s.dir, testModule(t, "pass", "first", nil),
				testModule(t, "drop", "dropper", map[string]any{"port": 53}))
			frame := udpPacket(t, 53, bytes.Repeat([]byte{0xa5, 0x5a}, payload)[:payload])
			run(t, l.Program, udpPacket(t, 54, nil))
			if ret, _ := run(t, l.Program, frame); ret != s.drop {
				t.Fatalf("%s: action %d", s.side, ret)
			}
			got := lastDropsOfLoaded(t, l, "dropper")
			want := frame[:min(len(frame), droppedBytes)]
			if len(got) != 1 || got[0].Side != s.side || got[0].Ifindex != loopback || int(got[0].Len) != len(frame) ||
				got[0].Reason != uint16(kerbabi.DropPolicy) || got[0].Key != 1 || got[0].Note != 53 ||
				!bytes.Equal(got[0].Frame, want) {
				t.Errorf("%s, %d bytes: %+v", s.side, len(frame), got)
			}
			if others := lastDropsOfLoaded(t, l, "first"); len(others) != 0 {
				t.Errorf("of a module that drops nothing: %+v", others)
			}
		}
	}
}

// flood has a chain drop as many packets one after the other in the kernel, without a pause.
func flood(t *testing.T, l *Loaded, frame []byte, packets uint32) {
	t.Helper()
	if _, err := l.Program.Run(&ebpf.RunOptions{Data: frame, Repeat: packets}); err != nil {
		t.Fatal(err)
	}
}

// Of a flood only some packets are kept, and a packet that was dropped for another reason before it stays.
func TestLastDropsInAFlood(t *testing.T) {
	for _, s := range sides {
		l := load(t, s.side, s.dir, testModule(t, "drop", "dropper", map[string]any{"port": 53}),
			testModule(t, "verdict", "other", map[string]any{"verdict": uint64(1)}))
		quiet := udpPacket(t, 54, []byte("quiet"))
		run(t, l.Program, quiet)
		const packets = 100000
		began := time.Now()
		flood(t, l, udpPacket(t, 53, nil), packets)
		most := droppedBurst + int(time.Since(began)/droppedPeriod) + 1
		got := lastDropsOfLoaded(t, l, "dropper")
		if len(got) < droppedBurst || len(got) > min(most, droppedBefore+1) {
			t.Errorf("%s: %d packets of a flood are kept, want %d to %d", s.side, len(got), droppedBurst, most)
		}
		if total, _ := l.Drops("dropper"); total[kerbabi.DropPolicy] < packets { // some kernels run one more
			t.Errorf("%s: %d drops are counted", s.side, total[kerbabi.DropPolicy])
		}
		if other := lastDropsOfLoaded(t, l, "other"); len(other) != 1 || !bytes.Equal(other[0].Frame, quiet) {
			t.Errorf("%s: of the other module: %+v", s.side, other)
		}
	}
}

// Packets of one group replace each other, and the last one of every other group stays, however many come.
func TestLastDropsOfOneReasonStay(t *testing.T) {
	l := load(t, chain.OnTCIngress, chain.Egress, testModule(t, "drop", "dropper", map[string]any{"port": 53}))
	frame := udpPacket(t, 53, nil)
	run(t, l.Program, frame)
	all, write := droppedOf(t, l)
	own := slices.IndexFunc(all.Last[:], func(p droppedPacket) bool { return p.Time != 0 })
	for i := range all.Last { // as other services would have left it
		if i != own {
			all.Last[i] = droppedPacket{Time: 1, Ifindex: uint32(1000 + i), Len: 1000, Bytes: 60}
		}
	}
	for range 3 * droppedBefore {
		all.Limits[own] = droppedLimit{} // time passes
		write(all)
		run(t, l.Program, frame)
		all, write = droppedOf(t, l)
	}
	got := lastDropsOfLoaded(t, l, "dropper")
	if len(got) != droppedGroups+droppedBefore {
		t.Fatalf("%d packets, want %d", len(got), droppedGroups+droppedBefore)
	}
	others := slices.DeleteFunc(got, func(p DroppedPacket) bool { return p.Ifindex == loopback })
	if len(others) != droppedGroups-1 {
		t.Errorf("%d packets of other interfaces are left, want %d", len(others), droppedGroups-1)
	}
}

// What the map says of places and lengths is checked: all CPUs write it without a lock.
func TestLastDropsAreChecked(t *testing.T) {
	l := load(t, chain.OnXDP, chain.Egress, testModule(t, "drop", "dropper", map[string]any{"port": 53}))
	all, write := droppedOf(t, l)
	all.Written = 1<<64 - 1
	all.Last[0] = droppedPacket{Time: 3, Len: 70000, Bytes: 65535, Reason: 65535}
	all.Last[1] = droppedPacket{Time: 2, Len: 7, Bytes: 100}
	all.Last[2] = droppedPacket{Time: 1, Len: 100, Bytes: 100, Place: 1}
	all.Before[31] = droppedPacket{Len: 100, Bytes: 100}
	write(all)
	got := lastDropsOfLoaded(t, l, "dropper")
	if len(got) != 2 || len(got[0].Frame) != 7 || len(got[1].Frame) != droppedBytes {
		t.Errorf("%+v", got)
	}
	run(t, l.Program, udpPacket(t, 53, nil))
	if got = lastDropsOfLoaded(t, l, "dropper"); len(got) < 2 {
		t.Errorf("%+v", got)
	}
}

// The counts of CPUs are those that they were, and a chain of an older agent has no packets.
func TestLastDropsAreBehindTheCounts(t *testing.T) {
	l := load(t, chain.OnTCIngress, chain.Egress, testModule(t, "drop", "dropper", map[string]any{"port": 53}))
	for range 3 {
		run(t, l.Program, udpPacket(t, 53, nil))
	}
	if v, err := l.Counts(); err != nil || v[0][kerbabi.Drop].Packets != 3 || v[0].Sum().Packets != 3 {
		t.Errorf("%+v (%v)", v, err)
	}
	for cpus := range uint32(300) {
		for _, size := range []uint32{0, lastDropsSize} {
			spec := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: (1+cpus)*192 + size, MaxEntries: 1}
			m, err := ebpf.NewMap(spec)
			if err != nil {
				t.Fatal(err)
			}
			if keepsDrops(m) != (size > 0) {
				t.Errorf("a map for %d CPUs, with %d bytes of drops: %v", 1+cpus, size, keepsDrops(m))
			}
			m.Close()
		}
	}
}

// The packets of a chain outlive it.
func TestLastDropsOutliveTheirChain(t *testing.T) {
	w := newWorld(t, Options{})
	p := chain.Point{Ifindex: w.a.OuterIndex(), Side: chain.OnTCIngress}
	first := testModule(t, "drop", "dropper", map[string]any{"port": 53})
	spec := w.deploy(t, p, chain.Egress, first)
	if !w.dropped(t, 53) {
		t.Fatal("the chain does not drop")
	}
	before, err := w.LastDrops()
	if err != nil || len(before) == 0 || before[0].Ifindex != uint32(w.a.OuterIndex()) || before[0].Module != "dropper" ||
		before[0].Side != p.Side || before[0].Direction != chain.Egress {
		t.Fatalf("%+v (%v)", before, err)
	}
	second := testModule(t, "drop", "dropper", map[string]any{"port": 54})
	if err := create(w.Dataplane, second, first.ID); err != nil {
		t.Fatal(err)
	}
	w.deploy(t, p, chain.Egress, second)
	if err := w.RemoveChainSpec(spec); err != nil {
		t.Fatal(err)
	}
	after, err := w.LastDrops()
	if err != nil || len(after) < len(before) || !bytes.Equal(after[0].Frame, before[0].Frame) {
		t.Errorf("%d packets before, after: %+v (%v)", len(before), after, err)
	}
}
