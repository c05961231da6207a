// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// Rules for the contents of a state map that differs from that of the running map set. Without a rule, a map that
// differs only in size is copied and any other starts empty.
const (
	MigrateDiscard = "discard" // the map begins empty
	MigrateExtend  = "extend"  // entries are copied; values are truncated, or padded with zeros at the end
	MigrateControl = "control" // Fill gets the running map set's map, as previous.<map>
)

// previousPrefix begins the names of maps that Fill gets for MigrateControl. No map of an object has such a name.
const previousPrefix = "previous."

// MigrationError reports that a new map set cannot take over the contents of a map.
type MigrationError struct {
	Map    string
	Reason string
}

func (e *MigrationError) Error() string {
	return fmt.Sprintf("the contents of map %s cannot be taken over: %s", e.Map, e.Reason)
}

// mapCopy is a map of the running map set whose contents go into the new one of the same name.
type mapCopy struct {
	name string
	from *ebpf.Map
}

// takeOver decides about a map of the running version: it is shared (same), its entries are copied, or neither.
func (g *mapSet) takeOver(name string, spec *ebpf.MapSpec, from *ebpf.Map) (same, copied bool, err error) {
	diff, rule := compareLayout(spec, from), g.Migrate[name]
	switch {
	case diff == sameLayout:
		return true, false, nil
	case rule == MigrateDiscard, rule == MigrateControl:
		return false, false, nil
	case rule == MigrateExtend:
		return false, true, extendable(name, spec, from)
	}
	return false, diff == otherSize, nil
}

// extendable returns why entries cannot be copied one by one into a map of another layout.
func extendable(name string, spec *ebpf.MapSpec, from *ebpf.Map) error {
	const advice = "; have the package discard it or leave it to its control plane (maps.migrate)"
	switch {
	case spec.Type != from.Type():
		return &MigrationError{name, fmt.Sprintf("it was of type %s and is of type %s now%s", from.Type(), spec.Type, advice)}
	case !slices.Contains(copyable, spec.Type):
		return &MigrationError{name, fmt.Sprintf("maps of type %s have no entries to copy%s", spec.Type, advice)}
	case spec.KeySize != from.KeySize():
		return &MigrationError{name, fmt.Sprintf("its keys had %d bytes and have %d now%s", from.KeySize(), spec.KeySize,
			advice)}
	}
	return nil
}

var copyable = []ebpf.MapType{ebpf.Array, ebpf.Hash, ebpf.LRUHash, ebpf.LPMTrie, ebpf.PerCPUArray, ebpf.PerCPUHash,
	ebpf.LRUCPUHash}

// fillMaps returns the maps for Fill: the map set's own, and those of the running one that Fill migrates.
func (g *mapSet) fillMaps(previous map[string]*ebpf.Map) sdk.Maps {
	out := g.sdkMaps()
	for name, rule := range g.Migrate {
		old := previous[name]
		if rule == MigrateControl && old != nil && !sameObject(old, g.maps[name]) {
			out[previousPrefix+name] = old
		}
	}
	return out
}

// sameObject reports whether two descriptors refer to the same kernel map.
func sameObject(a, b *ebpf.Map) bool {
	if a == nil || b == nil {
		return false
	}
	one, err1 := objectID(a.FD())
	other, err2 := objectID(b.FD())
	return err1 == nil && err2 == nil && one == other
}

// copyEntries copies all entries. Entries that packets change in the meantime may be copied in their old state. Queues
// and similar maps, whose entries cannot be listed, start empty.
func copyEntries(name string, from, to *ebpf.Map) error {
	if !slices.Contains(copyable, from.Type()) {
		return nil
	}
	const attempts = 5 // iterating starts again whenever the current entry is deleted
	for range attempts {
		err := copyOnce(name, from, to)
		var migration *MigrationError
		if err == nil || errors.As(err, &migration) {
			return err
		}
		if !errors.Is(err, ebpf.ErrIterationAborted) {
			return fmt.Errorf("carry over map %s: %w", name, err)
		}
	}
	return &MigrationError{name, "its entries come and go faster than they can be copied; apply again at a quieter " +
		"time, or have the package discard them (maps.migrate)"}
}

// copyOnce copies the entries of a map to one with values of another size: fields are only ever appended, so longer
// values are truncated and shorter ones padded with zeros. It returns ebpf.ErrIterationAborted if entries are removed
// too quickly.
func copyOnce(name string, from, to *ebpf.Map) error {
	entries := from.Iterate()
	if perCPU(from.Type()) {
		var key []byte
		var values [][]byte
		for entries.Next(&key, &values) {
			zero := true
			for i := range values {
				values[i] = resized(values[i], to.ValueSize())
				zero = zero && isZero(values[i])
			}
			if err := putEntry(name, to, key, values, zero); err != nil {
				return err
			}
		}
		return entries.Err()
	}
	var key, value []byte
	for entries.Next(&key, &value) {
		next := resized(value, to.ValueSize())
		if err := putEntry(name, to, key, next, isZero(next)); err != nil {
			return err
		}
	}
	return entries.Err()
}

func perCPU(t ebpf.MapType) bool {
	return t == ebpf.PerCPUArray || t == ebpf.PerCPUHash || t == ebpf.LRUCPUHash
}

// putEntry writes an entry into the new map. Arrays are created with zeros, which need not be written, and may be
// shorter.
func putEntry(name string, to *ebpf.Map, key, value any, zero bool) error {
	if zero && (to.Type() == ebpf.Array || to.Type() == ebpf.PerCPUArray) {
		return nil
	}
	err := to.Put(key, value)
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		return &MigrationError{name, fmt.Sprintf("it has more entries than the %d that fit the new one; make room in it, "+
			"or have the package make it larger or discard it (maps.migrate)", to.MaxEntries())}
	}
	return err
}

// resized returns a value with another size: truncated, or padded with zeros. The kernel's padding of per-CPU values to
// 8 bytes does not count.
func resized(value []byte, size uint32) []byte {
	out := make([]byte, size)
	copy(out, value)
	return out
}

func isZero(value []byte) bool { return len(bytes.Trim(value, "\x00")) == 0 }
