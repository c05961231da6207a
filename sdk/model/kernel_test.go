// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/binary"
	"math"
	"os"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/bpf/bpftest"
)

// Object for machines without a compiler, such as those of the kernel matrix.
//go:generate go run github.com/kerb-edge/kerb/bpf/bpftest/object testdata/engine.XDP.o

// kernel is the engine in the kernel.
type kernel struct {
	t     testing.TB
	coll  *ebpf.Collection
	slots *Slots
	opts  ebpf.RunOptions
}

func newKernel(t testing.TB) *kernel {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for BPF")
	}
	coll := bpftest.Load(t, bpftest.Object(t, "testdata/engine.bpf.c", bpftest.XDP))
	return &kernel{t: t, coll: coll, slots: NewSlots(coll.Maps["models"], coll.Maps["active"]),
		opts: ebpf.RunOptions{Data: make([]byte, 8*MaxFeatures), DataOut: make([]byte, 8*MaxFeatures), Repeat: 1}}
}

func (k *kernel) load(p *Packed) {
	k.t.Helper()
	if err := k.slots.Load(Live, p); err != nil {
		k.t.Fatal(err)
	}
}

// infer runs the model on features.
func (k *kernel) infer(features []int64) Decision {
	k.t.Helper()
	d, ok := k.run(features)
	if !ok {
		k.t.Fatal("no model")
	}
	return d
}

func (k *kernel) run(features []int64) (Decision, bool) {
	k.t.Helper()
	clear(k.opts.Data)
	for i, f := range features {
		binary.NativeEndian.PutUint64(k.opts.Data[8*i:], uint64(f))
	}
	k.opts.DataOut = k.opts.DataOut[:cap(k.opts.DataOut)]
	ret, err := k.coll.Programs["decide"].Run(&k.opts)
	if err != nil || ret == 0 {
		k.t.Fatalf("test run: %d, %v", ret, err)
	}
	var d Decision
	if _, err := binary.Decode(k.opts.DataOut, binary.NativeEndian, &d); err != nil {
		k.t.Fatal(err)
	}
	return d, ret == 2
}

// Features are limited in both directions.
func TestFeatureSet(t *testing.T) {
	const limit = 1<<31 - 1
	k := newKernel(t)
	given := []int64{0, 5, -5, limit, limit + 1, -limit, -limit - 1, math.MinInt64}
	want := []int64{0, 5, -5, limit, limit, -limit, -limit, -limit}
	for i, v := range given {
		binary.NativeEndian.PutUint64(k.opts.Data[8*i:], uint64(v))
	}
	if ret, err := k.coll.Programs["set"].Run(&k.opts); ret != 2 || err != nil {
		t.Fatalf("test run: %d, %v", ret, err)
	}
	for i, v := range want {
		if got := int64(binary.NativeEndian.Uint64(k.opts.DataOut[8*i:])); got != v {
			t.Errorf("feature %d becomes %d, want %d", given[i], got, v)
		}
	}
}

// The verifier's work bounds how many modules fit into one program with the engine (1,000,000 in all).
const maxVerified = 150000

func TestVerifies(t *testing.T) {
	k := newKernel(t)
	info, err := k.coll.Programs["infer"].Info()
	if err != nil {
		t.Fatal(err)
	}
	n, known := info.VerifiedInstructions()
	t.Logf("%d instructions verified", n)
	if known && n > maxVerified {
		t.Errorf("%d instructions verified, more than %d", n, maxVerified)
	}
}
