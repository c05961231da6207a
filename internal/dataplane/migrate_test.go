// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
)

// withState is pass with one more map, called state.
func withState(t *testing.T, rule string, state ebpf.MapSpec) Module {
	needsRoot(t)
	m := testModule(t, "pass", "m", nil)
	object := m.Spec
	m.Spec = func(h chain.Hook) (*ebpf.CollectionSpec, error) {
		spec, err := object(h)
		if err == nil {
			spec.Maps["state"] = state.Copy()
			spec.Maps["state"].Name = "state"
		}
		return spec, err
	}
	if rule != "" {
		m.Migrate = map[string]string{"state": rule}
	}
	return m
}

// upgrade makes a map set from another's maps.
func upgrade(t *testing.T, m Module, from *mapSet) (*mapSet, error) {
	t.Helper()
	var previous map[string]*ebpf.Map
	if from != nil {
		previous = from.maps
	}
	g, err := newMapSet(m, previous, nil)
	if err == nil {
		t.Cleanup(g.Close)
	}
	return g, err
}

func mustUpgrade(t *testing.T, m Module, from *mapSet) *mapSet {
	t.Helper()
	g, err := upgrade(t, m, from)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// key is an entry's key: its number, after the prefix length where the map is a trie.
func key(m *ebpf.Map, n uint32) []byte {
	out := binary.NativeEndian.AppendUint32(nil, n)
	if m.Type() == ebpf.LPMTrie {
		out = append(binary.NativeEndian.AppendUint32(nil, 32), out...)
	}
	return out
}

// content is a value that differs by entry and CPU and has no zero byte.
func content(size, n, cpu int) []byte {
	out := make([]byte, size)
	for i := range out {
		out[i] = byte(1 + (7*n+13*cpu+i)%250)
	}
	return out
}

func put(t *testing.T, m *ebpf.Map, n int) {
	t.Helper()
	var value any = content(int(m.ValueSize()), n, 0)
	if perCPU(m.Type()) {
		var all [][]byte
		for cpu := range ebpf.MustPossibleCPU() {
			all = append(all, content(int(m.ValueSize()), n, cpu))
		}
		value = all
	}
	if err := m.Put(key(m, uint32(n)), value); err != nil {
		t.Fatal(err)
	}
}

// values are those of one entry, one for each CPU that has its own; nil if there is no entry.
func values(t *testing.T, m *ebpf.Map, n int) [][]byte {
	t.Helper()
	var all [][]byte
	var err error
	if perCPU(m.Type()) {
		err = m.Lookup(key(m, uint32(n)), &all)
	} else {
		one := make([]byte, m.ValueSize())
		err = m.Lookup(key(m, uint32(n)), &one)
		all = [][]byte{one}
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// state describes maps of every type whose entries can be copied.
// room is how many entries a map needs that is not to lose any of a few dozen. Up to Linux 6.15 a CPU takes the free
// entries of an LRU map 128 at a time, so that a small map evicts as soon as a second CPU writes to it.
const room = 1024

func state(kind ebpf.MapType, valueSize, entries uint32) ebpf.MapSpec {
	s := ebpf.MapSpec{Type: kind, KeySize: 4, ValueSize: valueSize, MaxEntries: entries}
	if kind == ebpf.LPMTrie {
		s.KeySize, s.Flags = 8, 1 // BPF_F_NO_PREALLOC
	}
	return s
}

// Values grow and shrink by upgrades and downgrades, whether or not their size is one that the kernel pads.
func TestMigrateExtend(t *testing.T) {
	const entries = 20
	for _, kind := range copyable {
		for _, sizes := range [][2]uint32{{8, 16}, {16, 8}, {12, 20}, {20, 12}, {4, 9}} {
			t.Run(fmt.Sprintf("%s/%d-%d", kind, sizes[0], sizes[1]), func(t *testing.T) {
				old := mustUpgrade(t, withState(t, "", state(kind, sizes[0], room)), nil)
				for n := range entries {
					put(t, old.maps["state"], n)
				}
				next := mustUpgrade(t, withState(t, MigrateExtend, state(kind, sizes[1], room)), old).maps["state"]
				for n := range entries {
					got := values(t, next, n)
					if len(got) == 0 {
						t.Fatalf("entry %d is lost", n)
					}
					for cpu, value := range got {
						want := make([]byte, sizes[1])
						copy(want, content(int(sizes[0]), n, cpu))
						if !bytes.Equal(value, want) {
							t.Fatalf("entry %d, CPU %d: %v, want %v", n, cpu, value, want)
						}
					}
				}
			})
		}
	}
}

// What cannot be copied one to one is refused: the package asked for its contents to be kept.
func TestMigrateExtendRefuses(t *testing.T) {
	old := mustUpgrade(t, withState(t, "", state(ebpf.Hash, 8, room)), nil)
	longKey := state(ebpf.Hash, 8, room)
	longKey.KeySize = 8
	for name, spec := range map[string]ebpf.MapSpec{"type": state(ebpf.LRUHash, 8, room), "keys": longKey} {
		var migration *MigrationError
		if _, err := upgrade(t, withState(t, MigrateExtend, spec), old); !errors.As(err, &migration) ||
			migration.Map != "state" {
			t.Errorf("other %s: %v", name, err)
		}
		if _, err := upgrade(t, withState(t, "", spec), old); err != nil {
			t.Errorf("other %s without a rule: %v", name, err)
		}
	}
}

func TestMigrateDiscard(t *testing.T) {
	for _, rule := range []string{"", MigrateDiscard} {
		for _, sizes := range [][2]uint32{{8, 16}, {16, 8}} {
			old := mustUpgrade(t, withState(t, "", state(ebpf.Hash, sizes[0], room)), nil)
			put(t, old.maps["state"], 1)
			next := mustUpgrade(t, withState(t, rule, state(ebpf.Hash, sizes[1], room)), old)
			if got := values(t, next.maps["state"], 1); got != nil {
				t.Errorf("rule %q, %v: %v", rule, sizes, got)
			}
		}
	}
}

func TestMigrateControl(t *testing.T) {
	for _, sizes := range [][2]uint32{{8, 16}, {16, 8}} {
		old := mustUpgrade(t, withState(t, "", state(ebpf.Hash, sizes[0], room)), nil)
		put(t, old.maps["state"], 1)
		m := withState(t, MigrateControl, state(ebpf.Hash, sizes[1], room))
		var offered []byte
		m.Fill = func(maps sdk.Maps) error {
			if values(t, maps["state"], 1) != nil {
				t.Error("the new map is not empty")
			}
			if previous := maps["previous.state"]; previous != nil {
				offered = values(t, previous, 1)[0]
			}
			return nil
		}
		next := mustUpgrade(t, m, old)
		if !bytes.Equal(offered, content(int(sizes[0]), 1, 0)) {
			t.Errorf("%v: Fill was offered %v", sizes, offered)
		}
		if next.maps["previous.state"] != nil || next.sdkMaps()["previous.state"] != nil {
			t.Error("the old map is among those of the map set")
		}
		offered = nil
		mustUpgrade(t, m, next) // the same layout: there is nothing to move
		if offered != nil {
			t.Error("the map itself was offered as its predecessor")
		}
	}
}

// Whatever the rule, a map whose layout stays is the same object.
func TestUnchangedMapsStay(t *testing.T) {
	for _, rule := range []string{"", MigrateDiscard, MigrateExtend, MigrateControl} {
		for _, kind := range append([]ebpf.MapType{ebpf.Queue}, copyable...) {
			spec := state(kind, 8, room)
			if kind == ebpf.Queue {
				spec.KeySize = 0
			}
			old := mustUpgrade(t, withState(t, "", spec), nil)
			m := withState(t, rule, spec)
			m.Fill = func(maps sdk.Maps) error {
				if maps["previous.state"] != nil {
					t.Errorf("%s, rule %q: offered as its own predecessor", kind, rule)
				}
				return nil
			}
			next := mustUpgrade(t, m, old)
			if a, b := mapID(t, old.maps["state"]), mapID(t, next.maps["state"]); a != b {
				t.Errorf("%s, rule %q: map %d became %d", kind, rule, a, b)
			}
		}
	}
}

// A map that only becomes larger or smaller keeps its entries, unless the package says otherwise.
func TestResizedMapsKeepEntries(t *testing.T) {
	for _, kind := range copyable {
		for _, sizes := range [][2]uint32{{room, 2 * room}, {2 * room, room}} {
			old := mustUpgrade(t, withState(t, "", state(kind, 12, sizes[0])), nil)
			for n := range 20 {
				put(t, old.maps["state"], n)
			}
			next := mustUpgrade(t, withState(t, "", state(kind, 12, sizes[1])), old).maps["state"]
			for n := range 20 {
				for cpu, value := range values(t, next, n) {
					if !bytes.Equal(value, content(12, n, cpu)) {
						t.Fatalf("%s %v: entry %d, CPU %d: %v", kind, sizes, n, cpu, value)
					}
				}
				if values(t, next, n) == nil {
					t.Fatalf("%s %v: entry %d is lost", kind, sizes, n)
				}
			}
			empty := mustUpgrade(t, withState(t, MigrateDiscard, state(kind, 12, sizes[1])), old).maps["state"]
			for _, value := range values(t, empty, 1) {
				if !isZero(value) {
					t.Errorf("%s %v: discarded, but there is %v", kind, sizes, value)
				}
			}
		}
	}
}

// Entries that do not fit any more are not dropped silently. An LRU map evicts them.
func TestTooSmallMapsAreRefused(t *testing.T) {
	for _, kind := range copyable {
		old := mustUpgrade(t, withState(t, "", state(kind, 8, 64)), nil)
		for n := range 64 {
			put(t, old.maps["state"], n)
		}
		_, err := upgrade(t, withState(t, "", state(kind, 8, 16)), old)
		var migration *MigrationError
		lru := kind == ebpf.LRUHash || kind == ebpf.LRUCPUHash
		if refused := errors.As(err, &migration); refused == lru {
			t.Errorf("%s: 64 entries in room for 16: %v", kind, err)
		}
	}
}

// A map that a new version wants to map into memory stays as it is, with all it holds.
func TestMappableMapIsTakenOver(t *testing.T) {
	spec := state(ebpf.Array, 8, 4)
	before := mustUpgrade(t, withState(t, "", spec), nil)
	put(t, before.maps["state"], 1)
	spec.Flags = 1 << 10 // BPF_F_MMAPABLE
	after := mustUpgrade(t, withState(t, "", spec), before)
	if !sameObject(before.maps["state"], after.maps["state"]) {
		t.Error("another map")
	}
}
