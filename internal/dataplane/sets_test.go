// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
)

// Sets beyond the room of the kernel are refused with what to do, and leave the set that is there as it is.
func TestSetsFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	made, s := newSets(t, 2)
	p := netip.MustParsePrefix
	few := Elements{List: []netip.Prefix{p("192.0.2.1/32")}}
	if err := s.Replace(1, 1, few, nil); err != nil {
		t.Fatal(err)
	}
	many := Elements{List: []netip.Prefix{p("192.0.2.2/32"), p("192.0.2.3/32")}}
	for what, err := range map[string]error{"elements": s.Replace(1, 2, many, &few), "sets": s.Replace(2, 1, few, nil)} {
		if !errors.Is(err, ErrSetsFull) || !strings.Contains(err.Error(), "delete sets that no module uses") {
			t.Errorf("too many %s: %v", what, err)
		}
	}
	if has, err := made.SetContains(1, p("192.0.2.1/32").Addr()); err != nil || !has {
		t.Errorf("the set has lost its element: %v", err)
	}
}

// blockedSet is the set whose addresses testdata/former drops.
var blockedSet = sdk.SetReference{Set: "blocked"}

// formerModule is compiled as modules were before sdk.SetTableMap.
func formerModule(t *testing.T) Module {
	mod := testModule(t, "former", "former", map[string]any{"blocked": blockedSet.ID()})
	mod.Settings.Sets = []sdk.SetReference{blockedSet}
	return mod
}

// A new data plane that would not find the elements in the table is refused, unless it looks up none.
func TestModuleWithoutTable(t *testing.T) {
	w := newWorld(t, Options{})
	mod := formerModule(t)
	b := w.Bind(map[string]Module{mod.Name: mod})
	defer b.Close()
	for what, err := range map[string]error{"create": create(w.Dataplane, mod, ""), "verify": b.Verify(mod.Name)} {
		if err == nil || !strings.Contains(err.Error(), "compile it again") {
			t.Errorf("%s with sets: %v", what, err)
		}
	}
	mod.Settings.Sets = nil
	if err := create(w.Dataplane, mod, ""); err != nil {
		t.Errorf("without sets: %v", err)
	}
}

// pinFormer pins a map set as an earlier agent has, and links its chain.
func (w *world) pinFormer(t *testing.T, mod Module) *ebpf.Program {
	t.Helper()
	shared, err := openMaps(w.layout.shared())
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(shared)
	g, err := newMapSet(mod, nil, shared)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if err := g.pin(w.layout); err != nil {
		t.Fatal(err)
	}
	b := w.Bind(map[string]Module{mod.Name: mod})
	defer b.Close()
	if err := b.Verify(mod.Name); err != nil {
		t.Errorf("a module that runs: %v", err)
	}
	spec := chain.Spec{Side: chain.OnTCIngress, Direction: chain.Ingress,
		Members: []chain.Member{{Name: mod.Name, ID: mod.ID}}}
	if err := b.CreateChain(spec); err != nil {
		t.Fatal(err)
	}
	prog, err := ebpf.LoadPinnedProgram(entryPin(w.layout.chain(spec)), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	return prog
}

// As long as a program runs that does not know the table, sets that are replaced or changed are where it finds them.
// The table has them when it has gone, and the earlier agent would replace those of the table.
func TestProgramWithoutTable(t *testing.T) {
	w := newWorld(t, Options{})
	s, err := w.OpenSets(true)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	mod, id := formerModule(t), blockedSet.ID()
	prog := w.pinFormer(t, mod)
	packet, from := udpPacket(t, 7, nil), netip.MustParsePrefix("10.0.0.1/32")
	for i, list := range [][]netip.Prefix{{from}, nil, {from}} {
		if err := s.Replace(id, uint64(2*i+1), Elements{List: list}, nil); err != nil {
			t.Fatal(err)
		}
		if verdict, _ := run(t, prog, packet); (verdict == tcShot) != (list != nil) {
			t.Errorf("set is %v, verdict of the former program: %d", list, verdict)
		}
	}
	if err := s.Change(id, 7, nil, []netip.Prefix{from}); err != nil {
		t.Fatal(err)
	}
	if verdict, _ := run(t, prog, packet); verdict == tcShot {
		t.Error("the former program finds an element that was removed")
	}
	if set := s.all[id]; set.Kind != sdk.SetKindExact || set.Revision != 7 || !s.Has(id, 7) {
		t.Errorf("for the former program the set is %+v", set)
	}
	w.privateTable(t, mod)
	if err := s.Replace(id, 9, Elements{}, nil); err != nil || s.all[id].Kind != sdk.SetKindExact {
		t.Errorf("for a program with a table of its own the set is %+v, %v", s.all[id], err)
	}
	if err := w.RemoveMapSet(mod.Name, mod.ID); err != nil {
		t.Fatal(err)
	}
	if err := s.Replace(id, 11, Elements{List: []netip.Prefix{from}}, nil); err != nil {
		t.Fatal(err)
	}
	if set := s.all[id]; set.Kind != sdk.SetKindTable || set.Revision == 11 || !s.Has(id, 11) || s.Has(id, 9) {
		t.Errorf("without the former program the set is %+v", set)
	}
}

// privateTable gives a map set a table of its own, as an agent that does not share it.
func (w *world) privateTable(t *testing.T, mod Module) {
	t.Helper()
	m, err := ebpf.NewMap(setSpecs()[sdk.SetTableMap])
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := pinCopy(m, filepath.Join(w.layout.mapSet(mod.Name, mod.ID), sdk.SetTableMap)); err != nil {
		t.Fatal(err)
	}
}

// A bucket into which more elements fell than it has places is free again when they are removed, or else each packet
// would look into a second map for good.
func TestFullBucketIsFreed(t *testing.T) {
	needsRoot(t)
	made, s := newSets(t, 0)
	const bucket, set = 7, 1
	check := func(when string, all []netip.Prefix, want bool) {
		t.Helper()
		for _, p := range all {
			if has, err := made.SetContains(set, p.Addr()); err != nil || has != want {
				t.Errorf("%s: %s is in the set: %t, %v", when, p, has, err)
			}
		}
	}
	var old Elements
	for revision := range uint64(3) {
		next := Elements{List: inBucket(s.latest+1, bucket, 3*sdk.SetBucketSize)}
		if err := s.Replace(set, 2*revision+1, next, &old); err != nil {
			t.Fatal(err)
		}
		check("replaced", next.List, true)
		old = next
	}
	few, rest := old.List[:5], old.List[5:]
	if err := s.Change(set, 7, few, rest); err != nil { // few are there already
		t.Fatal(err)
	}
	check("few are left", few, true)
	check("few are left", rest, false)
	if err := s.Replace(set, 9, Elements{}, &Elements{List: few}); err != nil {
		t.Fatal(err)
	}
	var b sdk.SetBucket
	if err := made[sdk.SetTableMap].Lookup(uint32(bucket), &b); err != nil || b != (sdk.SetBucket{}) {
		t.Errorf("an empty bucket is %x, %v", b, err)
	}
}

// newSets makes the maps of sets, with a number of entries each; 0: as on a node.
func newSets(t *testing.T, entries uint32) (sdk.Maps, *Sets) {
	t.Helper()
	made := sdk.Maps{}
	for name, spec := range setSpecs() {
		if entries > 0 {
			spec.MaxEntries = entries
		}
		m, err := ebpf.NewMap(spec)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		made[name] = m
	}
	s, err := NewSets(made)
	if err != nil {
		t.Fatal(err)
	}
	return made, s
}

// inBucket returns n addresses that are in one bucket in a version of a set.
func inBucket(version, bucket uint32, n int) (all []netip.Prefix) {
	for a := netip.MustParseAddr("100.64.0.0"); len(all) < n; a = a.Next() {
		if at, _ := sdk.ElementOf(version, a).Bucket(); at == bucket {
			all = append(all, netip.PrefixFrom(a, 32))
		}
	}
	return all
}

// A change of some elements maps the pages of their buckets alone. One of many, which maps the whole table, meets the
// same elements.
func TestChangeMapsPages(t *testing.T) {
	needsRoot(t)
	made, s := newSets(t, 0)
	const set = 1
	list := inBucket(s.latest+1, sdk.SetBuckets-1, 2)
	for a := netip.MustParseAddr("10.0.0.0"); len(list) < 4*fewBuckets; a = a.Next() {
		list = append(list, netip.PrefixFrom(a, 32))
	}
	if err := s.Replace(set, 1, Elements{List: list[:3*fewBuckets]}, nil); err != nil {
		t.Fatal(err)
	}
	few, added := slices.Concat(list[:2], list[10:30]), list[3*fewBuckets:]
	for _, c := range []struct{ add, remove []netip.Prefix }{
		{nil, few}, {added, list[40 : 41+fewBuckets]}, {few, added[:4]},
	} {
		buckets := bucketsOf(s.all[set], c.add, c.remove)
		table, err := openTable(made[sdk.SetTableMap], buckets)
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for _, memory := range table.parts {
			size += len(memory)
		}
		table.close()
		if pages := size / os.Getpagesize(); buckets != nil && pages > len(buckets) {
			t.Errorf("%d pages are mapped for %d buckets", pages, len(buckets))
		}
		if err := s.Change(set, 3, c.add, c.remove); err != nil {
			t.Fatal(err)
		}
		for _, p := range slices.Concat(c.add, c.remove) {
			has, err := made.SetContains(set, p.Addr())
			if want := slices.Contains(c.add, p); err != nil || has != want {
				t.Errorf("%s is in the set: %t, %v", p, has, err)
			}
		}
	}
}
