// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/kerb-edge/kerb/internal/chain"
)

// ringModule has a ring buffer of so many bytes and nothing else.
func ringModule(size uint32) Module {
	return Module{Name: "rings", ID: "0123456789", Spec: func(chain.Hook) (*ebpf.CollectionSpec, error) {
		return &ebpf.CollectionSpec{Maps: map[string]*ebpf.MapSpec{
			"ring":    {Name: "ring", Type: ebpf.RingBuf, MaxEntries: size},
			eventsMap: {Name: eventsMap, Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 3},
		}}, nil
	}}
}

func ringMapSet(t *testing.T, size uint32, previous map[string]*ebpf.Map) *mapSet {
	t.Helper()
	needsRoot(t)
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	g, err := newMapSet(ringModule(size), previous, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

func mapID(t *testing.T, m *ebpf.Map) ebpf.MapID {
	t.Helper()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

// The next map set continues with the ring and its counters; one of another size begins with an empty ring.
func TestRingIsCarriedOver(t *testing.T) {
	page := uint32(os.Getpagesize())
	first := ringMapSet(t, page, nil)
	second := ringMapSet(t, page, first.maps)
	larger := ringMapSet(t, 2*page, second.maps)
	for _, name := range []string{"ring", eventsMap} {
		if mapID(t, first.maps[name]) != mapID(t, second.maps[name]) {
			t.Errorf("the next map set has another %s", name)
		}
	}
	if mapID(t, larger.maps["ring"]) == mapID(t, second.maps["ring"]) || larger.maps["ring"].MaxEntries() != 2*page {
		t.Error("a larger ring is the old one")
	}
	if mapID(t, larger.maps[eventsMap]) != mapID(t, second.maps[eventsMap]) {
		t.Error("a larger ring has new counters")
	}
}

// A ring for smaller pages than the machine's becomes a page, and is carried over all the same.
func TestRingHasWholePages(t *testing.T) {
	first := ringMapSet(t, uint32(os.Getpagesize())/2, nil)
	if n := first.maps["ring"].MaxEntries(); n != uint32(os.Getpagesize()) {
		t.Errorf("%d bytes", n)
	}
	second := ringMapSet(t, uint32(os.Getpagesize())/2, first.maps)
	if mapID(t, first.maps["ring"]) != mapID(t, second.maps["ring"]) {
		t.Error("the next map set has another ring")
	}
}

// The same for machines with larger pages (arm64: 16 and 64 KiB), and for rings inside of other maps, at every level.
func TestRingsHaveWholePagesAtEveryLevel(t *testing.T) {
	ring := func(size uint32) *ebpf.MapSpec { return &ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: size} }
	user := &ebpf.MapSpec{Type: ebpf.UserRingbuf, MaxEntries: 4096}
	outer := &ebpf.MapSpec{Type: ebpf.ArrayOfMaps, MaxEntries: 16, InnerMap: &ebpf.MapSpec{Type: ebpf.HashOfMaps,
		MaxEntries: 3, InnerMap: user}}
	for _, page := range []uint32{4096, 16384, 65536} {
		small, large := ring(4096), ring(1<<20)
		for _, m := range []*ebpf.MapSpec{small, large, outer} {
			wholePages(m, page)
		}
		if small.MaxEntries != page || user.MaxEntries != page || large.MaxEntries != 1<<20 || outer.MaxEntries != 16 ||
			outer.InnerMap.MaxEntries != 3 {
			t.Errorf("pages of %d bytes: rings of %d, %d inside of maps, and %d; other maps of %d and %d entries", page,
				small.MaxEntries, user.MaxEntries,
				large.MaxEntries, outer.MaxEntries, outer.InnerMap.MaxEntries)
		}
	}
}
