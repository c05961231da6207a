// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/sdk"
)

const loopback = 1 // the interface of test runs

// wantDrops checks a module's drops by policy: all of them, and those of the interface of test runs.
func wantDrops(t *testing.T, m sdk.Maps, all, here uint64) {
	t.Helper()
	total, err := Drops(m)
	if err != nil {
		t.Fatal(err)
	}
	by, err := IfindexDrops(m)
	if err != nil {
		t.Fatal(err)
	}
	if n := by[DropKey{loopback, uint32(kerbabi.DropPolicy)}]; total[kerbabi.DropPolicy] != all || n != here {
		t.Errorf("%d drops, %d of them on the interface; want %d and %d", total[kerbabi.DropPolicy], n, all, here)
	}
}

func TestIfindexDrops(t *testing.T) {
	for _, s := range sides {
		l := load(t, s.side, s.dir, testModule(t, "drop", "dropper", map[string]any{"port": 53}))
		for range 3 {
			run(t, l.Program, udpPacket(t, 53, nil))
		}
		run(t, l.Program, udpPacket(t, 54, nil))
		wantDrops(t, l.Maps["dropper"], 3, 3)
	}
}

// A full table changes neither the verdict nor the sum. It has room again when interfaces are forgotten.
func TestIfindexDropsAreBounded(t *testing.T) {
	l := load(t, chain.OnTCIngress, chain.Egress, testModule(t, "drop", "dropper", map[string]any{"port": 53}))
	m := l.Maps["dropper"]
	for i := range uint32(ifindexDropsEntries) {
		key, zeros := DropKey{loopback + 1 + i, 1}, make([]uint64, ebpf.MustPossibleCPU())
		err := m[ifindexDropsMap].Put(key, zeros)
		for errors.Is(err, unix.ENOMEM) { // the kernel refills its stock of entries in the background
			err = m[ifindexDropsMap].Put(key, zeros)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if ret, _ := run(t, l.Program, udpPacket(t, 53, nil)); ret != tcShot {
		t.Errorf("action %d with a full table, want %d", ret, tcShot)
	}
	wantDrops(t, m, 1, 0)
	if err := ForgetDrops(m, func(ifindex int) bool { return ifindex != loopback+1 }); err != nil {
		t.Fatal(err)
	}
	if by, _ := IfindexDrops(m); len(by) != ifindexDropsEntries-1 {
		t.Errorf("%d entries after one was forgotten, want %d", len(by), ifindexDropsEntries-1)
	}
	run(t, l.Program, udpPacket(t, 53, nil))
	wantDrops(t, m, 2, 1)
}

// A map set that an older agent pinned has no drops by interface: the chain that links it adds them.
func TestIfindexDropsOfOlderMapSet(t *testing.T) {
	w := newWorld(t, Options{})
	m := testModule(t, "drop", "dropper", map[string]any{"port": 53})
	if err := create(w.Dataplane, m, ""); err != nil {
		t.Fatal(err)
	}
	pin := filepath.Join(w.layout.mapSet(m.Name, m.ID), ifindexDropsMap)
	if err := os.Remove(pin); err != nil {
		t.Fatal(err)
	}
	w.deploy(t, chain.Point{Ifindex: w.a.OuterIndex(), Side: chain.OnTCIngress}, chain.Egress, m)
	if !w.dropped(t, 53) {
		t.Error("the chain does not drop")
	}
	live, err := w.Maps(m.Name, m.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(live)
	by, err := IfindexDrops(live)
	want := map[DropKey]uint64{{uint32(w.a.OuterIndex()), uint32(kerbabi.DropPolicy)}: 5}
	if err != nil || !maps.Equal(by, want) {
		t.Errorf("%v (%v), want %v", by, err, want)
	}
}

// What chains of an older agent have dropped counts on, next to what new chains drop, also in the map set that replaces
// the older one.
func TestDropsOfOlderMapSet(t *testing.T) {
	w := newWorld(t, Options{})
	m, next := testModule(t, "drop", "dropper", map[string]any{"port": 53}), testModule(t, "drop", "dropper",
		map[string]any{"port": 54})
	if err := create(w.Dataplane, m, ""); err != nil {
		t.Fatal(err)
	}
	former, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8,
		MaxEntries: uint32(kerbabi.DropReasonCount)})
	if err != nil {
		t.Fatal(err)
	}
	defer former.Close()
	cpus := uint64(ebpf.MustPossibleCPU())
	dir := w.layout.mapSet(m.Name, m.ID)
	if err := errors.Join(former.Put(uint32(kerbabi.DropPolicy), slices.Repeat([]uint64{7}, int(cpus))),
		former.Pin(filepath.Join(dir, formerDropsMap)), os.Remove(filepath.Join(dir, dropsMap))); err != nil {
		t.Fatal(err)
	}
	want := func(m Module, dropped uint64) {
		t.Helper()
		maps, err := w.Maps(m.Name, m.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer closeAll(maps)
		all, err := Drops(maps)
		if n := all[kerbabi.DropPolicy]; err != nil || n != 7*cpus+dropped || maps[dropsMap] == nil {
			t.Errorf("%d drops (%v), want %d and %d; maps %v", n, err, 7*cpus, dropped, maps)
		}
	}
	want(m, 0)
	point := chain.Point{Ifindex: w.a.OuterIndex(), Side: chain.OnTCIngress}
	w.deploy(t, point, chain.Egress, m)
	if !w.dropped(t, 53) {
		t.Error("the chain does not drop")
	}
	want(m, 5)
	if err := create(w.Dataplane, next, m.ID); err != nil {
		t.Fatal(err)
	}
	want(next, 5)
}

// Chains that are created at once complete such a map set together: both use the same maps.
func TestOlderMapSetIsCompletedOnce(t *testing.T) {
	w := newWorld(t, Options{})
	var mods []Module
	byName := map[string]Module{}
	for i := range 40 {
		m := testModule(t, "drop", fmt.Sprintf("dropper%d", i), map[string]any{"port": 53})
		if err := create(w.Dataplane, m, ""); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{ifindexDropsMap, retiredMap} {
			if err := os.Remove(filepath.Join(w.layout.mapSet(m.Name, m.ID), name)); err != nil {
				t.Fatal(err)
			}
		}
		byName[m.Name] = m
		mods = append(mods, m)
	}
	spec := chain.Spec{Side: chain.OnTCIngress, Direction: chain.Egress}
	for _, m := range mods {
		spec.Members = append(spec.Members, chain.Member{Name: m.Name, ID: m.ID})
	}
	var opening sync.WaitGroup
	ids := make([][]ebpf.MapID, 4)
	for i := range ids {
		opening.Go(func() {
			members, err := w.openMembers(spec, byName)
			defer closeMembers(members)
			if err != nil {
				t.Error(err)
			}
			for _, g := range members {
				info, err := g.maps[ifindexDropsMap].Info()
				if err != nil {
					t.Error(err)
					return
				}
				id, _ := info.ID()
				ids[i] = append(ids[i], id)
			}
		})
	}
	opening.Wait()
	for _, other := range ids[1:] {
		if !slices.Equal(other, ids[0]) {
			t.Errorf("maps %v and %v", ids[0], other)
		}
	}
}

// The kernel refuses a map with a type for keys alone, and the loader then tries it without: two system calls, for each
// module of each chain that is made.
func TestCounterTypes(t *testing.T) {
	for name, spec := range counterSpecs(1) {
		if (spec.Key == nil) != (spec.Value == nil) {
			t.Errorf("%s has a type for keys or values only", name)
		}
	}
}
