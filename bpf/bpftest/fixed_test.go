// SPDX-License-Identifier: Apache-2.0

package bpftest

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/cilium/ebpf"
)

const (
	fixedCount = 64 // numbers of a run: COUNT of testdata/fixed.bpf.c
	fixedUnit  = 1 << 16
)

// fixedErrors are what <kerb/fixed.h> states: the largest errors, in steps, against the exact result.
var fixedErrors = []struct {
	name  string
	exact func(a, b float64) float64
	most  func(a float64) float64
}{
	{"from", func(a, _ float64) float64 { return a * fixedUnit }, upTo(0)},
	{"round", func(a, _ float64) float64 { return math.Floor(a+0.5) / fixedUnit }, upTo(0)},
	{"add", func(a, b float64) float64 { return a + b }, upTo(0)},
	{"sub", func(a, b float64) float64 { return a - b }, upTo(0)},
	{"mul", func(a, b float64) float64 { return a * b }, upTo(0.5)},
	{"div", func(a, b float64) float64 {
		if a == 0 {
			return 0
		}
		return a / math.Abs(b) * math.Copysign(1, b) // of 0 the sign is a's
	}, upTo(0.5)},
	{"sqrt", func(a, _ float64) float64 { return math.Sqrt(max(a, 0)) }, upTo(0.5)},
	{"sin", func(a, _ float64) float64 { return math.Sin(a) }, upTo(0.51)},
	{"cos", func(a, _ float64) float64 { return math.Cos(a) }, upTo(0.51)},
	{"exp", func(a, _ float64) float64 { return math.Exp(a) }, func(a float64) float64 {
		if a < 1 {
			return 0.51
		}
		return 8
	}},
	{"log", func(a, _ float64) float64 { return math.Log(max(a, 0)) }, upTo(0.52)},
	{"constant", func(a, _ float64) float64 {
		if a == 1.25 {
			return -0.5
		}
		return 0
	}, upTo(0)},
}

func upTo(steps float64) func(float64) float64 { return func(float64) float64 { return steps } }

// Results are as near to the exact ones as the header says: of numbers around powers of two, the ends of the ranges,
// and any others. With KERB_EXHAUSTIVE=1 of all numbers a, which takes hours.
func TestFixed(t *testing.T) {
	needRoot(t)
	coll := Load(t, Compile(t, "testdata/fixed.bpf.c", XDP))
	for _, f := range fixedErrors {
		t.Run(f.name, func(t *testing.T) {
			run := newFixedRun(t, coll.Programs["fixed_"+f.name])
			worst := 0.0
			run.all(func(a, b, got int32) {
				exact := min(max(f.exact(float64(a)/fixedUnit, float64(b)/fixedUnit)*fixedUnit, math.MinInt32), math.MaxInt32)
				e := math.Abs(float64(got) - exact)
				if worst = max(worst, e); e > f.most(float64(a)/fixedUnit) {
					t.Errorf("of %d, %d: %d, exactly %f", a, b, got, exact)
				}
			})
			t.Logf("largest error: %.4f steps", worst)
		})
	}
}

// fixedRun gives numbers to a program, many at a time.
type fixedRun struct {
	t    *testing.T
	prog *ebpf.Program
	a, b []int32
	see  func(a, b, got int32)
}

func newFixedRun(t *testing.T, prog *ebpf.Program) *fixedRun { return &fixedRun{t: t, prog: prog} }

func (r *fixedRun) all(see func(a, b, got int32)) {
	r.see = see
	random := rand.New(rand.NewPCG(7, 16))
	edges := []int32{0, math.MinInt32, math.MaxInt32, 81920, 681391, 681392, -786432, -786433}
	for shift := range 31 {
		for _, sign := range []int32{1, -1} {
			edges = append(edges, sign<<shift, sign<<shift+1, sign<<shift-1)
		}
	}
	for _, a := range edges {
		for _, b := range edges {
			r.add(a, b)
		}
	}
	if os.Getenv("KERB_EXHAUSTIVE") != "" {
		for a := int64(math.MinInt32); a <= math.MaxInt32 && !r.t.Failed(); a++ {
			r.add(int32(a), random.Int32())
		}
	}
	for range 200_000 {
		r.add(int32(random.Uint32())>>random.IntN(32), int32(random.Uint32())>>random.IntN(32))
	}
	for len(r.a) > 0 {
		r.add(0, 1)
	}
}

func (r *fixedRun) add(a, b int32) {
	if r.a, r.b = append(r.a, a), append(r.b, b); len(r.a) < fixedCount {
		return
	}
	var frame []byte
	for _, n := range append(r.a, r.b...) {
		frame = binary.NativeEndian.AppendUint32(frame, uint32(n))
	}
	action, out := Run(r.t, r.prog, frame)
	if action != 2 {
		r.t.Fatalf("action %d", action)
	}
	for i, a := range r.a {
		r.see(a, r.b[i], int32(binary.NativeEndian.Uint32(out[4*i:])))
	}
	r.a, r.b = r.a[:0], r.b[:0]
}
