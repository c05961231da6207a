// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
)

// The timed copy of a chain keeps the last slow packets (bpf/chain_slow.h), with the verdict and time of each module.
// When the chain is removed, as after most changes, the agent keeps them.

// Numbers shared with chain_slow.h.
const (
	slowBytes  = droppedBytes
	slowBefore = 8
	slowHead   = 2 // entries of a packet before those of the modules
)

// slowEntry is struct kerb_slow_entry.
type slowEntry struct {
	ID    uint64
	Bytes uint64
	Frame [slowBytes]byte // or a traceEvent
}

// event returns the trace event in the entry.
func (e slowEntry) event() (out traceEvent, err error) {
	_, err = binary.Decode(e.Frame[:], binary.NativeEndian, &out)
	return out, err
}

// slowPrefix begins the name of the pin of slow packets in the directory of a chain. The rest of the name is their
// minimum time in ns.
const slowPrefix = "slow-"

func slowPin(slower time.Duration) string { return slowPrefix + strconv.FormatInt(int64(slower), 10) }

// slowEntries is the number of entries of a map of slow packets: one for the map itself, those of packets that CPUs are
// processing, of the last one of each module, and of earlier ones.
func slowEntries(cpus, modules int) uint32 {
	return uint32(1 + (cpus+modules+slowBefore)*(slowHead+modules))
}

// SlowPacket is a packet that was slow in a chain.
type SlowPacket struct {
	Chain  chain.Spec
	Took   time.Duration // in the parser, the modules, and the execution of their verdict
	Events []TraceEvent  // as in a trace of this chain alone; Elapsed excludes reading the clock
}

// LastSlow returns the last measured packets that took longer than their chain's limit, oldest first.
func (d *Dataplane) LastSlow() ([]SlowPacket, error) {
	d.counts.mu.Lock()
	defer d.counts.mu.Unlock()
	out := slices.Clone(d.counts.slow)
	all, _, err := d.countedChains()
	if err != nil {
		return nil, err
	}
	defer closeCounts(all)
	for _, c := range all {
		packets, err := readSlow(c.slow, c.spec)
		if err != nil {
			return nil, err
		}
		out = append(out, packets...)
	}
	sortSlow(out)
	return out, nil
}

// keepSlow keeps the packets of a chain that is about to be removed.
func (d *Dataplane) keepSlow(c pinnedCounts) error {
	const most = 64
	packets, err := readSlow(c.slow, c.spec)
	if err != nil || len(packets) == 0 {
		return err
	}
	kept := slices.Concat(d.counts.slow, packets)
	sortSlow(kept)
	d.counts.slow = slices.Clone(kept[len(kept)-min(len(kept), most):])
	return nil
}

func sortSlow(all []SlowPacket) {
	slices.SortFunc(all, func(a, b SlowPacket) int { return cmp.Compare(a.Events[0].Time, b.Events[0].Time) })
}

// readSlow reads the packets of a chain, oldest first. It returns none for a chain that keeps none, or whose layout is
// that of another agent version: such a chain must be removable nevertheless.
func readSlow(m *ebpf.Map, spec chain.Spec) (out []SlowPacket, err error) {
	if m == nil {
		return nil, nil
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	if m.MaxEntries() != slowEntries(cpus, len(spec.Members)) || m.ValueSize() != uint32(binary.Size(slowEntry{})) {
		return nil, nil
	}
	for packet := range len(spec.Members) + slowBefore {
		p, err := readSlowPacket(m, spec, cpus+packet)
		if err != nil {
			return nil, fmt.Errorf("slow packets of a chain: %w", err)
		}
		if len(p.Events) > 0 {
			out = append(out, p)
		}
	}
	sortSlow(out)
	return out, nil
}

// readSlowPacket reads a packet, which may be overwritten in the meantime: then it has no events.
func readSlowPacket(m *ebpf.Map, spec chain.Spec, packet int) (p SlowPacket, err error) {
	all := make([]slowEntry, slowHead+len(spec.Members))
	first := 1 + packet*len(all)
	for i := range all {
		if err := m.Lookup(uint32(first+i), &all[i]); err != nil {
			return p, err
		}
	}
	var after slowEntry
	if err := m.Lookup(uint32(first), &after); err != nil {
		return p, err
	}
	id := all[0].ID
	if id == 0 || after.ID != id || all[1].ID != id {
		return p, nil
	}
	for i, e := range all {
		if i == 1 || e.ID != id { // a module that the packet did not meet
			continue
		}
		raw, err := e.event()
		if err != nil {
			return p, err
		}
		if i >= slowHead && int(raw.Position) != i-slowHead {
			return SlowPacket{}, nil
		}
		raw.Chain = 1
		p.Events = append(p.Events, TraceEvent{traceEvent: raw})
	}
	head := &p.Events[0]
	p.Chain, p.Took = spec, time.Duration(head.Elapsed)
	head.Elapsed = 0
	head.Bytes = slices.Clone(all[1].Frame[:min(all[1].Bytes, uint64(head.Len), slowBytes)])
	return p, nil
}

// openMeasurements opens the maps that the timed copy of a chain has written; missing maps are nil.
func openMeasurements(dir string) (m measurements, err error) {
	if m.latency, err = pinnedMap(filepath.Join(dir, latencyPin)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return m, err
	}
	pins, _ := filepath.Glob(filepath.Join(dir, slowPrefix+"*"))
	if len(pins) == 0 {
		return m, nil
	}
	if m.slow, err = pinnedMap(pins[0]); err != nil && !errors.Is(err, os.ErrNotExist) {
		return m, err
	}
	return m, nil
}
