// SPDX-License-Identifier: Apache-2.0

package model

import (
	"flag"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// checking is a model whose score reports which version it is of, if all of it is: each of its trees, from the first
// word to the last, adds a part.
func checking(version uint32) *Document {
	d := &Document{Format: Format, Name: "checking", Version: version, Extractor: "test", Kind: Boosting,
		Features: names(1), Classes: names(2)}
	for range MaxTrees {
		leaf := Node{Value: []float64{partOf(version)}}
		d.Trees = append(d.Trees, Nodes{{Threshold: 5, Left: 1, Right: 2}, leaf, leaf})
	}
	return d
}

// partOf a version is exact in floating point and in the integers of trees.
func partOf(version uint32) float64 { return float64(version%64) / 4096 }

// Most of a change is a grace period of RCU, some 20 ms for two of them.
var changes = flag.Int("changes", 300, "how often a model is changed under load")

const versions = 64

// A model is replaced while every CPU evaluates it: each decision is made by exactly the version that it reports.
func TestChangesAreNeverTorn(t *testing.T) {
	k := newKernel(t)
	models, scores := checkingModels(t)
	k.load(models[1])
	torn := 0
	inferences := k.underLoad(scores, func() {
		for i := range *changes {
			k.load(models[1+uint32(i)%versions])
		}
	})
	for cpu, n := range inferences {
		torn += n.torn
		if n.whole < 1000 {
			t.Errorf("only %d inferences on CPU %d", n.whole, cpu)
		}
	}
	t.Logf("%d changes, inferences %+v", *changes, inferences)
	if torn > 0 {
		t.Errorf("%d inferences were torn", torn)
	}
}

// The same, but overwriting the active model: the checking model detects it.
func TestCheckingModelTells(t *testing.T) {
	k := newKernel(t)
	models, scores := checkingModels(t)
	k.load(models[1])
	torn := 0
	for try := 0; try < 20 && torn == 0; try++ {
		for _, n := range k.underLoad(scores, func() {
			for i := range uint32(2000) {
				if err := k.coll.Maps["models"].Put(uint32(0), models[1+i%versions].Bytes()); err != nil {
					t.Error(err)
				}
			}
		}) {
			torn += n.torn
		}
	}
	if torn == 0 {
		t.Error("no inference was seen to be torn")
	}
}

func checkingModels(t *testing.T) (models map[uint32]*Packed, scores map[uint32]int32) {
	models, scores = map[uint32]*Packed{}, map[uint32]int32{}
	for v := uint32(1); v <= versions; v++ {
		p := pack(t, checking(v), names(1))
		models[v], scores[v] = p, p.Infer([]int64{0}).Score
	}
	return models, scores
}

// watched are the inferences of a CPU.
type watched struct{ whole, torn int }

// underLoad changes models while every CPU infers.
func (k *kernel) underLoad(scores map[uint32]int32, change func()) []watched {
	done := make(chan struct{})
	var work sync.WaitGroup
	seen := make([]watched, runtime.NumCPU())
	for cpu := range seen {
		work.Go(func() { seen[cpu] = k.watch(cpu, scores, done) })
	}
	change()
	close(done)
	work.Wait()
	return seen
}

// watch infers on a CPU until done. Test runs of one CPU share its work space, so each CPU has one watcher, which stays
// on it.
func (k *kernel) watch(cpu int, scores map[uint32]int32, done <-chan struct{}) (seen watched) {
	runtime.LockOSThread() // never unlocked: the thread ends with its affinity
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		k.t.Error(err)
		return seen
	}
	own := &kernel{t: k.t, coll: k.coll, opts: k.opts}
	own.opts.Data, own.opts.DataOut = make([]byte, 8*MaxFeatures), make([]byte, 8*MaxFeatures)
	for n := int64(0); ; n++ {
		select {
		case <-done:
			return seen
		default:
		}
		d, ok := own.run([]int64{n % 10})
		if want, known := scores[d.Version]; ok && known && d.Score == want {
			seen.whole++
		} else {
			seen.torn++
		}
	}
}

func TestRolesAndUnload(t *testing.T) {
	k := newKernel(t)
	if _, ok := k.run([]int64{1}); ok {
		t.Error("inference without a model")
	}
	k.load(pack(t, checking(3), names(1)))
	if err := k.slots.Load(Shadow, pack(t, checking(4), names(1))); err != nil {
		t.Fatal(err)
	}
	for i := range uint32(20) { // the shadow's slot is never written
		k.load(pack(t, checking(10+i), names(1)))
	}
	for role, want := range map[Role]uint32{Live: 29, Shadow: 4} {
		if v, err := k.slots.Version(role); err != nil || v != want {
			t.Errorf("role %d has version %d (%v), not %d", role, v, err, want)
		}
	}
	if d := k.infer([]int64{1}); d.Version != 29 {
		t.Errorf("version %d decides", d.Version)
	}
	if err := k.slots.Unload(Live); err != nil {
		t.Fatal(err)
	}
	if _, ok := k.run([]int64{1}); ok {
		t.Error("inference after unloading")
	}
}

// Another process, which does not know the first one's slots, can continue with the same maps.
func TestSlotsOutliveTheirProcess(t *testing.T) {
	k := newKernel(t)
	k.load(pack(t, checking(3), names(1)))
	next := NewSlots(k.coll.Maps["models"], k.coll.Maps["active"])
	if v, err := next.Version(Live); err != nil || v != 3 {
		t.Fatalf("version %d (%v)", v, err)
	}
	if err := next.Load(Live, pack(t, checking(5), names(1))); err != nil {
		t.Fatal(err)
	}
	if d := k.infer([]int64{1}); d.Version != 5 {
		t.Errorf("version %d decides", d.Version)
	}
}
