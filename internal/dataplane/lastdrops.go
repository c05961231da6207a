// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
)

// A chain keeps the last packets that its modules dropped, or for which they returned no valid verdict, in 10 KiB after
// its counters (bpf/chain_drops.h). When the chain is removed, as after most changes, the agent keeps them.

// Numbers shared with chain_drops.h.
const (
	droppedBytes  = 128
	droppedGroups = 32
	droppedBefore = 32
	droppedPeriod = 100e6 // ns
	droppedBurst  = 10
	droppedPassed = 1 << 15
)

// droppedPacket is struct kerb_dropped.
type droppedPacket struct {
	Time                uint64
	Ifindex, Len        uint32
	Place, Key          uint8
	Note, Reason, Bytes uint16
	Frame               [droppedBytes]byte
}

// droppedLimit is struct kerb_dropped_limit.
type droppedLimit struct{ Next, Jiffy uint64 }

// lastDrops is struct kerb_last_drops.
type lastDrops struct {
	Written uint64
	Limits  [droppedGroups]droppedLimit
	Last    [droppedGroups]droppedPacket
	Before  [droppedBefore]droppedPacket
}

var lastDropsSize = uint32(binary.Size(lastDrops{}))

// keepsDrops reports whether a counter map also has dropped packets. Maps of older agents are only as large as cache
// lines.
func keepsDrops(m *ebpf.Map) bool {
	return m.Type() == ebpf.Array && m.ValueSize()%8 == 0 && m.ValueSize()%64 != 0
}

// DroppedPacket is a packet that a module dropped, or for which it returned no valid verdict, in its state after the
// module.
type DroppedPacket struct {
	Module    string
	Side      chain.Side
	Direction chain.Direction
	Time      uint64 // ns, CLOCK_MONOTONIC
	Ifindex   uint32 // of the interface that the chain is attached to
	Len       uint32 // bytes of the frame
	Reason    uint16 // enum kerb_drop_reason
	Key, Note uint16 // of the module (kerb_drop_noted); both are 0 without a note
	Passed    bool   // not dropped, because the module fails open
	Frame     []byte // at most the first 128 bytes
}

// LastDrops returns the last packets that modules dropped, oldest first: a sample if they drop many. Some may be of
// modules that have been deleted.
func (d *Dataplane) LastDrops() ([]DroppedPacket, error) {
	d.counts.mu.Lock()
	defer d.counts.mu.Unlock()
	out := slices.Clone(d.counts.kept)
	all, _, err := d.countedChains()
	if err != nil {
		return nil, err
	}
	defer closeCounts(all)
	for _, c := range all {
		packets, err := readLastDrops(c.m, c.spec)
		if err != nil {
			return nil, err
		}
		out = append(out, packets...)
	}
	sortDrops(out)
	return out, nil
}

// keepDrops keeps the packets of a chain that is about to be removed.
func (d *Dataplane) keepDrops(c pinnedCounts) error {
	const most = 4 * (droppedGroups + droppedBefore)
	packets, err := readLastDrops(c.m, c.spec)
	if err != nil || len(packets) == 0 {
		return err
	}
	kept := slices.Concat(d.counts.kept, packets)
	sortDrops(kept)
	d.counts.kept = slices.Clone(kept[len(kept)-min(len(kept), most):])
	return nil
}

func sortDrops(all []DroppedPacket) {
	slices.SortFunc(all, func(a, b DroppedPacket) int { return cmp.Compare(a.Time, b.Time) })
}

// readLastDrops reads the packets of a chain, oldest first.
func readLastDrops(m *ebpf.Map, spec chain.Spec) (out []DroppedPacket, err error) {
	if !keepsDrops(m) {
		return nil, nil
	}
	value, err := m.LookupBytes(uint32(0))
	if err != nil {
		return nil, fmt.Errorf("dropped packets of a chain: %w", err)
	}
	var all lastDrops
	if _, err := binary.Decode(value[len(value)-int(lastDropsSize):], binary.NativeEndian, &all); err != nil {
		return nil, fmt.Errorf("dropped packets of a chain: %w", err)
	}
	for _, p := range slices.Concat(all.Last[:], all.Before[:]) {
		if p.Time == 0 || int(p.Place) >= len(spec.Members) {
			continue
		}
		n := min(uint32(p.Bytes), p.Len, droppedBytes)
		out = append(out, DroppedPacket{spec.Members[p.Place].Name, spec.Side, spec.Direction, p.Time, p.Ifindex, p.Len,
			p.Reason &^ droppedPassed, uint16(p.Key), p.Note, p.Reason&droppedPassed != 0, slices.Clone(p.Frame[:n])})
	}
	sortDrops(out)
	return out, nil
}
