// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
)

// The estimate may be this far from the kernel's account of a full map: a tenth, and the fixed part of a map, which
// differs between versions.
const (
	memoryTolerance = 0.10
	memorySlack     = 512
)

func TestMemoryIsWhatTheKernelAccounts(t *testing.T) {
	needRoot(t)
	if code, err := features.LinuxVersionCode(); err != nil || code < 6<<16|4<<8 {
		t.Skip("kernels before 6.4 account for maps differently")
	}
	for _, spec := range []*ebpf.MapSpec{
		{Type: ebpf.Array, KeySize: 4, ValueSize: 12, MaxEntries: 5000},
		{Type: ebpf.Array, KeySize: 4, ValueSize: 100, MaxEntries: 1000, Flags: mmapable},
		{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 24, MaxEntries: 4000},
		{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 10000},
		{Type: ebpf.Hash, KeySize: 13, ValueSize: 100, MaxEntries: 3000},
		{Type: ebpf.Hash, KeySize: 13, ValueSize: 20, MaxEntries: 3000, Flags: noPrealloc},
		{Type: ebpf.LRUHash, KeySize: 16, ValueSize: 32, MaxEntries: 10000},
		{Type: ebpf.PerCPUHash, KeySize: 8, ValueSize: 16, MaxEntries: 5000},
		{Type: ebpf.LRUCPUHash, KeySize: 8, ValueSize: 16, MaxEntries: 5000},
		{Type: ebpf.LPMTrie, KeySize: 8, ValueSize: 4, MaxEntries: 4096, Flags: noPrealloc},
		{Type: ebpf.LPMTrie, KeySize: 20, ValueSize: 16, MaxEntries: 4096, Flags: noPrealloc},
		{Type: ebpf.RingBuf, MaxEntries: 1 << 18},
		{Type: ebpf.Queue, ValueSize: 16, MaxEntries: 1000},
		{Type: ebpf.Stack, ValueSize: 32, MaxEntries: 1000},
		{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1000},
		{Type: ebpf.DevMap, KeySize: 4, ValueSize: 4, MaxEntries: 1000},
		{Type: ebpf.HashOfMaps, KeySize: 8, ValueSize: 4, MaxEntries: 100,
			InnerMap: &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 10}},
		{Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 100,
			InnerMap: &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 10}},
	} {
		t.Run(fmt.Sprintf("%s/%d-%d/%d", spec.Type, spec.KeySize, spec.ValueSize, spec.MaxEntries), func(t *testing.T) {
			least := float64(kernelMemory(t, spec))
			most := least
			if spec.Type == ebpf.LPMTrie { // forks are not in the kernel's account, and nodes were larger before 6.14
				most = 3.5 * least
			}
			have := float64(MapMemory(spec))
			if have < least*(1-memoryTolerance)-memorySlack || have > most*(1+memoryTolerance)+memorySlack {
				t.Errorf("estimated %.0f bytes, the kernel says %.0f", have, least)
			}
		})
	}
}

// kernelMemory creates the map, fills it as far as its size depends on that, and asks the kernel.
func kernelMemory(t *testing.T, spec *ebpf.MapSpec) int64 {
	t.Helper()
	m, err := ebpf.NewMap(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if spec.Flags&noPrealloc != 0 {
		fill(t, m)
	}
	total := memlock(t, m)
	if spec.InnerMap != nil { // the kernel accounts for inner maps on their own
		total += int64(spec.MaxEntries) * kernelMemory(t, spec.InnerMap)
	}
	return total
}

// fill puts in keys that differ in their last bits, as many as fit: in a trie each but the first needs a fork too.
func fill(t *testing.T, m *ebpf.Map) {
	t.Helper()
	for i := range m.MaxEntries() {
		key := make([]byte, m.KeySize())
		binary.BigEndian.PutUint32(key[len(key)-4:], i)
		if m.Type() == ebpf.LPMTrie {
			binary.NativeEndian.PutUint32(key, (m.KeySize()-4)*8)
		}
		if err := m.Put(key, make([]byte, m.ValueSize())); err != nil {
			t.Fatal(err)
		}
	}
}

func memlock(t *testing.T, m *ebpf.Map) int64 {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/self/fdinfo/%d", m.FD()))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if text, ok := strings.CutPrefix(s.Text(), "memlock:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no memlock in fdinfo")
	return 0
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// Where pages are 16 or 64 KiB (arm64) a smaller ring takes a page all the same, inside of another map, too.
func TestRingsTakeWholePages(t *testing.T) {
	defer func(n int64) { pageSize = n }(pageSize)
	for _, pageSize = range []int64{4096, 16384, 65536} {
		for _, kind := range []ebpf.MapType{ebpf.RingBuf, ebpf.UserRingbuf} {
			small, whole := &ebpf.MapSpec{Type: kind, MaxEntries: 4096}, &ebpf.MapSpec{Type: kind, MaxEntries: uint32(pageSize)}
			if got, want := MapMemory(small), MapMemory(whole); got != want {
				t.Errorf("pages of %d bytes: %s of 4096 bytes takes %d, one of a page %d", pageSize, kind, got, want)
			}
			if got := MapMemory(&ebpf.MapSpec{Type: ebpf.ArrayOfMaps, MaxEntries: 3, InnerMap: small}); got < 3*pageSize {
				t.Errorf("pages of %d bytes: 3 of %s inside of a map take %d", pageSize, kind, got)
			}
		}
	}
}
