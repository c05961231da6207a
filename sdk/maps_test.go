// SPDX-License-Identifier: Apache-2.0

package sdk_test

import (
	"errors"
	"maps"
	"runtime"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

func TestMaps(t *testing.T) {
	sdktest.NeedRoot(t)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	all := sdk.Maps{"table": m}
	var value uint64
	if err := errors.Join(all.Put("table", uint32(1), uint64(7)), all.Lookup("table", uint32(1), &value)); err != nil ||
		value != 7 {
		t.Errorf("%d, %v", value, err)
	}
	if err := all.Put("table", uint32(2), uint64(7)); err == nil || !strings.Contains(err.Error(), "write map table") {
		t.Errorf("into a full map: %v", err)
	}
	if err := errors.Join(all.Delete("table", uint32(1)), all.Delete("table", uint32(1))); err != nil {
		t.Error(err)
	}
	if err := all.Lookup("table", uint32(1), &value); !errors.Is(err, ebpf.ErrKeyNotExist) ||
		!strings.Contains(err.Error(), "read map table") {
		t.Errorf("what was deleted: %v", err)
	}
	if err := all.Delete("none", uint32(1)); !errors.Is(err, sdk.ErrNoMap) {
		t.Errorf("of a map that is not there: %v", err)
	}
}

func TestSyncTable(t *testing.T) {
	sdktest.NeedRoot(t)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	all := sdk.Maps{"table": m}
	small := func(_ uint32, v uint64) bool { return v < 10 }
	for _, step := range []struct{ want, have map[uint32]uint64 }{
		{map[uint32]uint64{1: 1, 2: 20, 3: 3}, map[uint32]uint64{1: 1, 2: 20, 3: 3}},
		{map[uint32]uint64{1: 7, 4: 4}, map[uint32]uint64{1: 7, 2: 20, 4: 4}}, // 3 goes before 4 comes: the map is full
		{nil, map[uint32]uint64{2: 20}},
	} {
		if err := sdk.SyncTable(all, "table", step.want, small); err != nil {
			t.Fatal(err)
		}
		if got, err := sdk.ReadTable[uint32, uint64](all, "table"); err != nil || !maps.Equal(got, step.have) {
			t.Errorf("%v, %v, want %v", got, err, step.have)
		}
	}
	if err := sdk.SyncTable(all, "none", map[uint32]uint64{}, small); !errors.Is(err, sdk.ErrNoMap) {
		t.Error(err)
	}
}

// Sum adds up numbers, also in arrays and structs, over all CPUs.
func TestSum(t *testing.T) {
	sdktest.NeedRoot(t)
	type counts struct {
		Packets uint64
		Reasons [2]uint64
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 24, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	perCPU := make([]counts, ebpf.MustPossibleCPU())
	var want counts
	for i := range perCPU {
		perCPU[i] = counts{uint64(i + 1), [2]uint64{10, uint64(i)}}
		want.Packets += perCPU[i].Packets
		want.Reasons[0] += perCPU[i].Reasons[0]
		want.Reasons[1] += perCPU[i].Reasons[1]
	}
	if err := m.Put(uint32(0), perCPU); err != nil {
		t.Fatal(err)
	}
	if got, err := sdk.Sum[counts](sdk.Maps{"m": m}, "m", uint32(0)); got != want || err != nil {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if _, err := sdk.Sum[counts](sdk.Maps{"m": m}, "m", uint32(1)); err == nil {
		t.Error("an element that does not exist has a sum")
	}
}

// Each element is visited once, in batches that are initially smaller than a bucket may be, until the function returns
// false.
func TestEachElement(t *testing.T) {
	sdktest.NeedRoot(t)
	const elements = 100
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: elements})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	all, want := sdk.Maps{"table": m}, map[uint32]uint64{}
	for i := range uint32(elements) {
		want[i] = uint64(i) << 32
		if err := m.Put(i, want[i]); err != nil {
			t.Fatal(err)
		}
	}
	for _, size := range []int{1, 7, 1000} {
		got, calls := map[uint32]uint64{}, 0
		err := sdk.EachElement(all, "table", size, func(k uint32, v *uint64) bool { got[k] = *v; calls++; return true })
		if err != nil || calls != elements || !maps.Equal(got, want) {
			t.Errorf("in batches of %d: %d elements in %d calls, %v", size, len(got), calls, err)
		}
		calls = 0
		err = sdk.EachElement(all, "table", size, func(uint32, *uint64) bool { calls++; return calls < 5 })
		if err != nil || calls != 5 {
			t.Errorf("5 of all in batches of %d: %d, %v", size, calls, err)
		}
	}
	err = sdk.EachElement(all, "none", 1, func(uint32, *uint64) bool { return true })
	if !errors.Is(err, sdk.ErrNoMap) {
		t.Errorf("of a map that is not there: %v", err)
	}
}

// No memory for a batch is allocated for an empty map.
func TestEachBatchOfNone(t *testing.T) {
	sdktest.NeedRoot(t)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 64, MaxEntries: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	const times, size = 100, 4096
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range times {
		err = errors.Join(err, sdk.EachBatch(m, size, func([]uint32, [][64]byte) bool { return true }))
	}
	runtime.ReadMemStats(&after)
	if used := (after.TotalAlloc - before.TotalAlloc) / times; err != nil || used > 16<<10 {
		t.Errorf("%d bytes are allocated, %v", used, err)
	}
}
