// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

const (
	benchRows    = 256
	benchRounds  = 5
	benchRepeats = 400000
)

// BenchmarkInfer is the time of one inference in the kernel, and as a multiple of what the same arithmetic takes in
// scalar C in user space, in the same run. Both are given many rows in turn, so that no branch can be learnt by heart.
func BenchmarkInfer(b *testing.B) {
	r := rand.New(rand.NewPCG(7, 0))
	user := compileUser(b)
	for _, c := range []struct {
		name  string
		model *Document
	}{
		{"int8/4-3-2-1", calibrate(r, network(r, ReLU, Sigmoid, 4, 3, 2, 1))},
		{"int8/16-32-16-2", calibrate(r, network(r, ReLU, Argmax, 16, 32, 16, 2))},
		{"int8/64-64-32-4", calibrate(r, network(r, ReLU, Argmax, 64, 64, 32, 4))},
		{"q15/4-3-2-1", network(r, ReLU, Sigmoid, 4, 3, 2, 1)},
		{"q15/16-32-16-2", network(r, ReLU, Argmax, 16, 32, 16, 2)},
		{"q15/64-64-32-4", network(r, ReLU, Argmax, 64, 64, 32, 4)},
		{"forest/10x10", forest(r, Forest, 16, 2, 10, 10, true)},
		{"boosting/100x3", forest(r, Boosting, 16, 2, 100, 3, true)},
	} {
		b.Run(c.name, func(b *testing.B) {
			k, p := newKernel(b), pack(b, c.model, c.model.Features)
			k.load(p)
			in := newRows(b, k, p, c.model, r)
			kernel, inUser := time.Hour, time.Hour
			for range benchRounds {
				kernel = min(kernel, k.time("infer")-k.time("take"))
				inUser = min(inUser, user.time(b, in))
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(kernel.Nanoseconds()), "ns-kernel")
			b.ReportMetric(float64(inUser.Nanoseconds()), "ns-user")
			b.ReportMetric(kernel.Seconds()/inUser.Seconds(), "kernel/user")
		})
	}
}

// rows of features, in the kernel's map and in files for user space, and what the decisions add up to.
type rows struct {
	model, file     string
	features        int
	classes, scores uint64
}

func newRows(b *testing.B, k *kernel, p *Packed, d *Document, r *rand.Rand) *rows {
	dir := b.TempDir()
	in := &rows{model: filepath.Join(dir, "model"), file: filepath.Join(dir, "rows"), features: len(d.Features)}
	var text []byte
	for i := range benchRows {
		features := ordinary(r, d)
		want := p.Infer(features)
		in.classes += uint64(want.Class)
		in.scores += uint64(want.Score)
		value := make([]byte, 8*MaxFeatures)
		if _, err := binary.Encode(value, binary.NativeEndian, features); err != nil {
			b.Fatal(err)
		}
		text = append(text, value[:8*len(features)]...)
		if err := k.coll.Maps["rows"].Put(uint32(i), value); err != nil {
			b.Fatal(err)
		}
	}
	if err := k.coll.Maps["turns"].Put(uint32(0), [2]uint32{0, uint32(in.features)}); err != nil {
		b.Fatal(err)
	}
	for name, content := range map[string][]byte{in.model: p.Bytes(), in.file: text} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	return in
}

func (k *kernel) time(program string) time.Duration {
	_, took, err := k.coll.Programs[program].Benchmark(make([]byte, 64), benchRepeats, nil)
	if err != nil {
		k.t.Fatal(err)
	}
	return took
}

// user is the program made of user.c.
type user string

func compileUser(b *testing.B) user {
	program := filepath.Join(b.TempDir(), "user")
	cmd := exec.Command("gcc", "-O3", "-fno-tree-vectorize", "-o", program, "testdata/user.c")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Skipf("needs gcc: %v\n%s", err, out)
	}
	return user(program)
}

func (u user) time(b *testing.B, in *rows) time.Duration {
	out, err := exec.Command(string(u), in.model, in.file, strconv.Itoa(in.features), strconv.Itoa(benchRepeats)).Output()
	if err != nil {
		b.Fatal(err)
	}
	var ns float64
	var classes, scores uint64
	if _, err := fmt.Sscan(string(out), &ns, &classes, &scores); err != nil {
		b.Fatal(err)
	}
	if classes != in.classes || scores != in.scores {
		b.Fatalf("classes and scores add up to %d, %d in user space, to %d, %d in Go", classes, scores, in.classes, in.scores)
	}
	return time.Duration(ns)
}
