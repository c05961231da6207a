// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
)

// Counters are the sums over all CPUs, read in one system call where the kernel can, and one by one where not.
func TestSumPerCPU(t *testing.T) {
	needsRoot(t)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 300})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	want := make([]uint64, 300)
	for i := range want {
		perCPU := make([]uint64, ebpf.MustPossibleCPU())
		for cpu := range perCPU {
			perCPU[cpu] = uint64(i*cpu + i)
			want[i] += perCPU[cpu]
		}
		if err := m.Put(uint32(i), perCPU); err != nil {
			t.Fatal(err)
		}
	}
	all, err := sumPerCPU(m)
	each, eachErr := sumEach(m, make([]uint64, 300))
	if err != nil || eachErr != nil || !slices.Equal(all, want) || !slices.Equal(each, want) {
		t.Errorf("%v (%v) and %v (%v), want %v", all, err, each, eachErr, want)
	}
}
