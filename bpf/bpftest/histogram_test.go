// SPDX-License-Identifier: Apache-2.0

package bpftest

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/kerb-edge/kerb/sdk"
)

// The data plane counts a value in the bucket in which the SDK has it: around each power of two, and anywhere.
func TestHistogram(t *testing.T) {
	needRoot(t)
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	coll, err := ebpf.NewCollection(Compile(t, "testdata/histogram.bpf.c", XDP))
	if err != nil {
		t.Fatal(err)
	}
	defer coll.Close()
	values := []uint64{0, 1, 2, 3}
	random := rand.New(rand.NewPCG(1, 2))
	for shift := 2; shift < 64; shift++ {
		values = append(values, 1<<shift-1, 1<<shift, 1<<shift+1, 1<<shift|random.Uint64N(1<<shift))
	}
	want, got := make(sdk.Histogram, 160), make(sdk.Histogram, 160)
	for _, v := range values {
		frame := make([]byte, 64)
		binary.NativeEndian.PutUint64(frame, v)
		if action, err := coll.Programs["count"].Run(&ebpf.RunOptions{Data: frame}); err != nil || action != 2 {
			t.Fatalf("%d: action %d, %v", v, action, err)
		}
		want.Observe(v)
		if err := coll.Maps["histogram"].Lookup(uint32(0), got); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d: %v, want %v", v, got, want)
		}
	}
}
