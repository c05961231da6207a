// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

func compileConfig(t testing.TB, config string) *Intercept {
	t.Helper()
	return sdktest.Compile[*Intercept](t, Control(), config)
}

// module returns the package as the agent would deploy it.
func module(t testing.TB, f *Intercept) dataplane.Module {
	t.Helper()
	p := pkgstest.Package(t)
	return dataplane.Module{
		BuiltIn:    true,
		Name:       "icpt",
		ID:         "0123456789",
		Values:     chain.ShortHash(fmt.Append(nil, f.table())),
		Spec:       func(h chain.Hook) (*ebpf.CollectionSpec, error) { return p.Spec(string(h)) },
		ConfigMaps: p.Maps.Config,
		Settings:   f.Settings(),
		Fill:       f.Fill,
		Frags:      p.Frags,
	}
}

// kernel is an intercept loaded on one hook, but not attached.
type kernel struct {
	*Intercept
	t      testing.TB
	hook   chain.Hook
	loaded *dataplane.Loaded
	prog   *ebpf.Program
	maps   sdk.Maps
	pages  *pages
}

// half returns the active half.
func (k *kernel) half() uint32 {
	k.t.Helper()
	half, err := k.maps.ActiveHalf()
	if err != nil {
		k.t.Fatal(err)
	}
	return uint32(half)
}

// onHooks runs a test on each hook, for packets to the service.
func onHooks(t *testing.T, config string, test func(t *testing.T, k *kernel)) {
	for _, hook := range []chain.Hook{chain.XDP, chain.TC} {
		t.Run(string(hook), func(t *testing.T) { test(t, load(t, hook, chain.Ingress, config)) })
	}
}

func load(t testing.TB, hook chain.Hook, direction chain.Direction, config string,
	before ...dataplane.Module) *kernel {
	t.Helper()
	if hook == chain.TC {
		return loadOn(t, chain.OnTCEgress, direction, config, before...)
	}
	return loadOn(t, chain.OnXDP, direction, config, before...)
}

// loadOn loads an intercept after other modules.
func loadOn(t testing.TB, side chain.Side, direction chain.Direction, config string,
	before ...dataplane.Module) *kernel {
	t.Helper()
	sdktest.NeedRoot(t)
	f := compileConfig(t, config)
	l, err := dataplane.Load(side, direction, append(before, module(t, f))...)
	sdktest.Explain(t, err)
	t.Cleanup(l.Close)
	pages, err := f.mapPages(l.Maps["icpt"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pages.close)
	hook := chain.TC
	if side == chain.OnXDP {
		hook = chain.XDP
	}
	return &kernel{f, t, hook, l, l.Program, l.Maps["icpt"], pages}
}

type verdict string

const (
	passed     verdict = "passed"
	dropped    verdict = "dropped"
	answered   verdict = "answered"
	redirected verdict = "redirected"
)

var verdicts = map[chain.Hook]map[int32]verdict{
	chain.XDP: {2: passed, 1: dropped, 3: answered, 4: redirected},
	chain.TC:  {-1: passed, 2: dropped, 7: answered},
}

// run passes a frame to the program.
func (k *kernel) run(frame []byte) verdict {
	k.t.Helper()
	v, _ := k.runOut(frame)
	return v
}

func (k *kernel) runOut(frame []byte) (verdict, []byte) {
	k.t.Helper()
	opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Repeat: 1}
	ret, err := k.prog.Run(&opts)
	if err != nil {
		k.t.Fatalf("test run with %d bytes: %v", len(frame), err)
	}
	v, ok := verdicts[k.hook][int32(ret)]
	if !ok {
		k.t.Fatalf("action %d", int32(ret))
	}
	return v, opts.DataOut
}

// report returns the report of a class.
func (k *kernel) report(name string) ClassReport {
	k.t.Helper()
	all, err := k.Intercept.report(k.maps)
	if err != nil {
		k.t.Fatal(err)
	}
	for _, c := range all {
		if c.Name == name {
			return c
		}
	}
	k.t.Fatalf("no class %s", name)
	return ClassReport{}
}

// reader is a minimal reader of a class's ring.
type reader struct {
	t        testing.TB
	state    *state
	ring     *ebpf.Map
	consumer []byte // page 0
	producer []byte // page 1 and the data, twice
	size     uint64
}

// open opens a class as its consumer.
func (k *kernel) open(name string) *reader {
	k.t.Helper()
	c := k.class(name)
	ring := k.maps[ringName(c.slot)]
	page, size := os.Getpagesize(), int(ring.MaxEntries())
	consumer, err1 := unix.Mmap(ring.FD(), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	producer, err2 := unix.Mmap(ring.FD(), int64(page), page+2*size, unix.PROT_READ, unix.MAP_SHARED)
	if err := errors.Join(err1, err2); err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _, _ = unix.Munmap(consumer), unix.Munmap(producer) })
	s := k.pages.state(c.slot)
	k.setConsumer(c.slot, 1)
	return &reader{k.t, s, ring, consumer, producer, uint64(size)}
}

func (k *kernel) setConsumer(slot int, n uint32) {
	k.t.Helper()
	if err := setConsumer(k.maps, slot, n); err != nil {
		k.t.Fatal(err)
	}
}

func word(page []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(page))) }

const discarded = 1 << 30

// next returns the next record with its frame, or nil. done marks it as read.
func (r *reader) next() (rec *Record, frame []byte, done func()) {
	at := atomic.LoadUint64(word(r.consumer))
	for at < atomic.LoadUint64(word(r.producer)) {
		data := r.producer[os.Getpagesize()+int(at&(r.size-1)):]
		length := atomic.LoadUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(data))))
		end := at + uint64((length&^discarded+8+7)&^7)
		if length&discarded != 0 {
			at = end
			atomic.StoreUint64(word(r.consumer), at)
			continue
		}
		rec := (*Record)(unsafe.Pointer(unsafe.SliceData(data[8:])))
		start := 8 + int(unsafe.Sizeof(*rec))
		return rec, data[start : start+int(rec.CapLen)], func() { atomic.StoreUint64(word(r.consumer), end) }
	}
	return nil, nil, nil
}

// take reads and releases a record.
func (r *reader) take() (*Record, []byte) {
	r.t.Helper()
	rec, frame, done := r.next()
	if rec == nil {
		return nil, nil
	}
	defer done()
	copied := *rec
	return &copied, append([]byte(nil), frame...)
}

// drain reads all records.
func (r *reader) drain() (n int) {
	for rec, _ := r.take(); rec != nil; rec, _ = r.take() {
		n++
	}
	return n
}
