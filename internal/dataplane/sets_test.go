// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

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

// A data plane that would not find the elements in the table is refused, unless it looks up none.
func TestModuleWithoutTable(t *testing.T) {
	w := newWorld(t, Options{})
	mod := testModule(t, "former", "former", nil)
	mod.Settings.Sets = []sdk.SetReference{{Set: "blocked"}}
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
