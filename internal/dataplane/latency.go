// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
)

// A chain sends one packet in SamplePeriod through a timed copy of itself, which measures the time of each module
// (bpf/chain_latency.h). The copy is linked after the chain is in effect, so that it delays no change. Until then the
// chain's tail-call table is empty, and no packet is measured.
const (
	samplesMap = "kerb_samples"
	samplesPin = "samples" // in the directory of a chain
	latencyMap = "kerb_latency"
	latencyPin = "latency"
	stampsMap  = "kerb_stamps"
	slowMap    = "kerb_slow"
)

// Numbers shared with chain_latency.h.
const (
	SamplePeriod   = 4096
	latencyBuckets = 80
	stampHead      = 0xff
)

// Latency is struct kerb_latency: how long packets took, in ns.
type Latency struct {
	Sum     uint64                 // ns, of all packets
	Buckets [latencyBuckets]uint64 // packets, by sdk.Histogram
}

// Histogram returns the packets by latency.
func (l *Latency) Histogram() sdk.Histogram { return l.Buckets[:] }

func (l Latency) plus(o Latency) Latency {
	l.Sum += o.Sum
	for i, n := range o.Buckets {
		l.Buckets[i] += n
	}
	return l
}

// readLatency returns the latency of a chain, followed by those of its members.
func readLatency(m *ebpf.Map) ([]Latency, error) {
	out := make([]Latency, m.MaxEntries())
	var perCPU []Latency
	for i := range out {
		if err := m.Lookup(uint32(i), &perCPU); err != nil {
			return nil, fmt.Errorf("latency of a chain: %w", err)
		}
		for _, l := range perCPU {
			out[i] = out[i].plus(l)
		}
	}
	return out, nil
}

// haveSampling reports whether a program with functions may make tail calls, which arm64 cannot before Linux 6.0, and
// no architecture without the JIT compiler.
var haveSampling = sync.OnceValue(func() bool {
	table, err := newSamples(1)
	if err != nil {
		return false
	}
	defer table.Close()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.Call.Label("function"),
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.LoadMapPtr(asm.R2, table.FD()),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnTailCall.Call(),
			asm.Mov.Imm(asm.R0, 0),
			asm.Return(),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("function"),
			asm.Return(),
		}})
	if err != nil {
		return false
	}
	prog.Close()
	return true
})

// newSamples returns a table for the parts of a timed copy; the first one is its entry.
func newSamples(parts int) (*ebpf.Map, error) {
	return ebpf.NewMap(&ebpf.MapSpec{Name: samplesMap, Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4,
		MaxEntries: uint32(parts)})
}

// addSamples gives a plain chain the table for its timed copy.
func (c *linkedChain) addSamples(l *linker) (err error) {
	if len(l.members) == 0 || l.traced != 0 || l.timed || l.uncounted || !haveSampling() {
		return nil
	}
	if c.samples, err = newSamples(len(l.members)); err != nil {
		return fmt.Errorf("create the table for samples: %w", err)
	}
	l.samples = c.samples
	return nil
}

// sampled reports whether a program sends packets to the timed copy.
func (l *linker) sampled(first int) bool { return first == 0 && l.samples != nil && !l.timed }

// sample generates the jump to the timed copy, which continues here if there is none.
func (l *linker) sample(first int) asm.Instructions {
	if !l.sampled(first) {
		return nil
	}
	code := append(asm.Instructions{asm.Call.Label("kerb_sample").WithSymbol("sample")}, l.tailCall(l.samples, 0)...)
	return append(code, asm.Ja.Label("parse"))
}

// stampHead ends the time of the parser, which runs again in each part of a split chain.
func (l *linker) stampHead(first int) asm.Instructions {
	if first > 0 {
		return asm.Instructions{asm.Mov.Imm(asm.R1, stampHead), asm.Call.Label("kerb_stamp")}
	}
	return append(l.pkt(asm.R1), asm.Call.Label("kerb_slow_head"))
}

// measurements are the maps that the timed copy of a chain writes.
type measurements struct{ latency, slow *ebpf.Map }

func (m measurements) Close() {
	for _, m := range []*ebpf.Map{m.latency, m.slow} {
		if m != nil {
			m.Close()
		}
	}
}

// newMeasurements creates the maps for a chain, except for the latency if it exists.
func (l *linker) newMeasurements(m measurements) (measurements, error) {
	var err error
	if m.latency == nil {
		spec := l.object.Maps[latencyMap].Copy()
		spec.MaxEntries = uint32(1 + len(l.members))
		if m.latency, err = ebpf.NewMap(spec); err != nil {
			return m, fmt.Errorf("create the map of latencies: %w", err)
		}
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return m, err
	}
	spec := l.object.Maps[slowMap].Copy()
	spec.MaxEntries = slowEntries(cpus, len(l.members))
	if m.slow, err = ebpf.NewMap(spec); err != nil {
		return m, fmt.Errorf("create the map of slow packets: %w", err)
	}
	return m, nil
}

// linkTimed links the timed copy of a chain and puts it into the chain's table. The copy keeps packets that take longer
// than slower. linkTimed takes ownership of m, whose latency continues if it has one, and returns the maps that the
// copy writes.
func linkTimed(plain *linkedChain, members []*mapSet, parts int, slower time.Duration, m measurements,
	pin func(measurements) error) (measurements, error) {
	l, err := newLinker(plain.spec, members)
	if err != nil {
		return m, err
	}
	stamps, err := ebpf.NewMap(l.object.Maps[stampsMap])
	if err != nil {
		return m, fmt.Errorf("create the map of stamps: %w", err)
	}
	defer stamps.Close()
	if m, err = l.newMeasurements(m); err != nil {
		return m, err
	}
	l.timed, l.slower, l.background, l.parts, l.plain, l.samples = true, slower, true, parts, plain, plain.samples
	l.maps[stampsMap], l.maps[latencyMap], l.maps[slowMap] = stamps, m.latency, m.slow
	if err := pin(m); err != nil { // first: what is measured is to be read
		return m, err
	}
	c, err := l.chain()
	if err != nil {
		return m, err
	}
	c.Close() // the table keeps its programs
	return m, nil
}

// Time makes a chain measure the latency of its modules, and keep packets that take longer than slower, unless it
// already does. Other methods may run concurrently, but not another Time.
func (d *Dataplane) Time(spec chain.Spec, modules map[string]Module, slower time.Duration) error {
	dir := d.layout.chain(spec)
	plain, parts, err := openPlain(spec, dir)
	if errors.Is(err, os.ErrNotExist) { // removed meanwhile
		return nil
	}
	if err != nil {
		return err
	}
	defer plain.Close()
	if plain.samples == nil {
		return nil
	}
	var id uint32
	if _, err := os.Stat(filepath.Join(dir, slowPin(slower))); err == nil && plain.samples.Lookup(uint32(0), &id) == nil {
		return nil
	}
	members, err := d.openMembers(spec, modules)
	defer closeMembers(members)
	if err != nil {
		return gone(dir, err)
	}
	latency, err := pinnedMap(filepath.Join(dir, latencyPin)) // of an agent that was killed, or kept other packets
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return gone(dir, err)
	}
	m, err := linkTimed(plain, members, parts, slower, measurements{latency: latency}, func(m measurements) error {
		return pinMeasured(dir, slower, m)
	})
	m.Close()
	if err != nil {
		return gone(dir, fmt.Errorf("timed copy of chain %s: %w", spec.ID(), err))
	}
	return nil
}

// pinMeasured pins the maps of a timed copy in the directory of its chain.
func pinMeasured(dir string, slower time.Duration, m measurements) error {
	old, _ := filepath.Glob(filepath.Join(dir, slowPrefix+"*"))
	for _, pin := range old {
		if err := os.Remove(pin); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := pinCopy(m.latency, filepath.Join(dir, latencyPin)); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return pinCopy(m.slow, filepath.Join(dir, slowPin(slower)))
}

// gone returns no error if the chain was removed in the meantime.
func gone(dir string, err error) error {
	if _, missing := os.Stat(dir); errors.Is(missing, os.ErrNotExist) {
		return nil
	}
	return err
}
