// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"testing"

	"github.com/cilium/ebpf"
)

// A map of maps has its entries after one call, the spec keeps them, and an unknown one is an error.
func TestNested(t *testing.T) {
	needsRoot(t)
	inner := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}
	specs := map[string]*ebpf.MapSpec{"a": inner, "b": inner, "outer": {Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4,
		MaxEntries: 3,
		InnerMap:   inner, Contents: []ebpf.MapKV{{Key: uint32(0), Value: "a"}, {Key: uint32(2), Value: "b"}}}}
	empty, filling := takeNested(specs)
	if len(specs["outer"].Contents) != 2 || len(empty["outer"].Contents) != 0 || len(filling["outer"]) != 2 {
		t.Fatalf("of %v, %v is taken and %v left", specs["outer"].Contents, filling, empty["outer"].Contents)
	}
	coll, err := ebpf.NewCollection(&ebpf.CollectionSpec{Maps: empty})
	if err != nil {
		t.Fatal(err)
	}
	defer coll.Close()
	outer := coll.Maps["outer"]
	if err := filling["outer"].put(outer, coll.Maps); err != nil {
		t.Fatal(err)
	}
	for key, filled := range []bool{true, false, true} {
		var got *ebpf.Map
		if err := outer.Lookup(uint32(key), &got); (err == nil) != filled {
			t.Errorf("entry %d: %v", key, err)
		}
		got.Close()
	}
	if err := (nested{1: "c"}).put(outer, coll.Maps); err == nil {
		t.Error("a map that does not exist was put")
	}
}
