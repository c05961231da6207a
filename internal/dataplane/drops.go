// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/sdk"
)

// Every map set has counters in addition to the module's own maps: retiredMap, and dropped packets in total and by
// interface.
const (
	dropsMap        = "kerb_drop_count"
	ifindexDropsMap = "kerb_if_drops"
)

// formerDropsMap is the per-CPU array in which chains of older agents count drops.
const formerDropsMap = "kerb_drops"

// ifindexDropsEntries limits the pairs of interface and reason that a module counts. An interface takes one per reason
// for which its packets are dropped, and there are 64 reasons.
const ifindexDropsEntries = 1024

// dropCounts is struct kerb_drop_counts: packets by reason.
type dropCounts [kerbabi.DropReasonCount]uint64

// counterSpecs returns the specs of these maps. Drops by interface take memory only for existing entries.
func counterSpecs(cpus int) map[string]*ebpf.MapSpec {
	return map[string]*ebpf.MapSpec{
		dropsMap: {Name: dropsMap, Type: ebpf.Array, KeySize: 4, ValueSize: uint32(cpus * binary.Size(dropCounts{})),
			MaxEntries: 1},
		retiredMap: {Name: retiredMap, Type: ebpf.Array, KeySize: 4, ValueSize: uint32(binary.Size(retired{})),
			MaxEntries: uint32(len(retiredSides) * len(retiredDirections))},
		ifindexDropsMap: {Name: ifindexDropsMap, Type: ebpf.PerCPUHash, KeySize: 8, ValueSize: 8,
			MaxEntries: ifindexDropsEntries, Flags: noPrealloc},
	}
}

const noPrealloc = 1 // BPF_F_NO_PREALLOC

// addCounters gives the map set the counters of the previous one, and creates missing ones.
func (g *mapSet) addCounters(previous map[string]*ebpf.Map) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	for name, spec := range counterSpecs(cpus) {
		if old := previous[name]; old != nil {
			g.maps[name], err = old.Clone()
		} else {
			g.maps[name], err = ebpf.NewMap(spec)
		}
		if err != nil {
			return fmt.Errorf("map %s: %w", name, err)
		}
	}
	if former := previous[formerDropsMap]; former != nil {
		g.maps[formerDropsMap], err = former.Clone()
	}
	return err
}

// completeCounters adds the counters that a pinned map set of an older agent lacks. Modules on sockets have none.
func (g *mapSet) completeCounters(l layout) error {
	if g.maps[dropsMap] == nil && g.maps[formerDropsMap] == nil {
		return nil
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	for name, spec := range counterSpecs(cpus) {
		if g.maps[name] != nil {
			continue
		}
		if g.maps[name], err = ebpf.NewMap(spec); err != nil {
			return err
		}
		if err := pinCopy(g.maps[name], filepath.Join(l.mapSet(g.Name, g.ID), name)); err != nil {
			return err
		}
	}
	return nil
}

// Drops returns the packets that a map set's module dropped, by reason, summed over the CPUs.
func Drops(maps sdk.Maps) ([]uint64, error) {
	var sum dropCounts
	if m := maps[dropsMap]; m != nil {
		cpus := make([]dropCounts, int(m.ValueSize())/binary.Size(sum))
		if err := m.Lookup(uint32(0), cpus); err != nil {
			return nil, fmt.Errorf("map %s: %w", dropsMap, err)
		}
		for _, cpu := range cpus {
			sum.add(cpu[:])
		}
	}
	former := maps[formerDropsMap]
	if maps[dropsMap] != nil && former == nil {
		return sum[:], nil
	}
	before, err := sumPerCPU(former)
	sum.add(before)
	return sum[:], err
}

func (c *dropCounts) add(more []uint64) {
	for reason, n := range more[:min(len(more), len(c))] {
		c[reason] += n
	}
}

// DropKey is an interface and a reason: struct kerb_drop_key.
type DropKey struct {
	Ifindex, Reason uint32
}

// IfindexDrops returns the packets that a map set's module dropped, by interface and reason, summed over the CPUs.
func IfindexDrops(maps sdk.Maps) (map[DropKey]uint64, error) {
	out := map[DropKey]uint64{}
	m := maps[ifindexDropsMap]
	if m == nil { // of a map set created by an older agent
		return out, nil
	}
	var key DropKey
	var perCPU []uint64
	entries := m.Iterate()
	for entries.Next(&key, &perCPU) {
		for _, n := range perCPU {
			out[key] += n
		}
	}
	return out, entries.Err()
}

// IfindexDropsOf returns the drops of some interfaces and reasons.
func IfindexDropsOf(maps sdk.Maps, keys []DropKey) (map[DropKey]uint64, error) {
	out := map[DropKey]uint64{}
	m := maps[ifindexDropsMap]
	if m == nil {
		return out, nil
	}
	var perCPU []uint64
	for _, key := range keys {
		err := m.Lookup(key, &perCPU)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		if err != nil {
			return out, fmt.Errorf("map %s: %w", ifindexDropsMap, err)
		}
		for _, n := range perCPU {
			out[key] += n
		}
	}
	return out, nil
}

// ForgetDrops removes the drops by interface of all other interfaces, which frees entries.
func ForgetDrops(maps sdk.Maps, keep func(ifindex int) bool) error {
	all, err := IfindexDrops(maps)
	if err != nil {
		return err
	}
	for key := range all {
		if keep(int(key.Ifindex)) {
			continue
		}
		if err := maps[ifindexDropsMap].Delete(key); err != nil {
			return fmt.Errorf("map %s: %w", ifindexDropsMap, err)
		}
	}
	return nil
}
