// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
)

// Values that a module declares with KERB_TUNABLES (kerb/module.h) change without a new program. Its map has two
// copies: packets read one half, and the next values are written to the other. A single store switches all packets to
// the other half. A packet uses one half until its end, so a half is written only when no packet in flight can still be
// reading it.

// Layout of struct kerb_tunables_map up to the halves.
const (
	valuesIDs  = 8  // after the number of the half that packets read
	valuesID   = 16 // bytes of an identity, padded with zeros; all zeros: the half is incomplete
	valuesHead = valuesIDs + 2*valuesID
)

// tunables is the map of a map set, mapped into memory.
type tunables struct{ memory []byte }

func openTunables(fd int, size uint32) (*tunables, error) {
	memory, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", sdk.TunablesMap, err)
	}
	return &tunables{memory}, nil
}

func (t *tunables) Close() { _ = unix.Munmap(t.memory) }

func (t *tunables) active() *uint64 { return (*uint64)(unsafe.Pointer(&t.memory[0])) }

// half returns the half that packets read.
func (t *tunables) half() int { return int(atomic.LoadUint64(t.active()) & 1) }

func (t *tunables) id(half int) []byte { return t.memory[valuesIDs+half*valuesID:][:valuesID] }

func (t *tunables) name(half int) string { return string(bytes.TrimRight(t.id(half), "\x00")) }

// holds returns the half with the values called id.
func (t *tunables) holds(id string) (half int, found bool) {
	for half := range 2 {
		if t.name(half) == id {
			return half, true
		}
	}
	return 0, false
}

// write fills the half that no packet reads. The half has an identity only when it is complete.
func (t *tunables) write(id string, values []byte, fill func() error) (half int, err error) {
	half = 1 - t.half()
	clear(t.id(half))
	if err := fill(); err != nil {
		return half, err
	}
	copy(t.memory[valuesHead+half*len(values):], values)
	copy(t.id(half), id)
	return half, nil
}

// choose makes packets read a half from now on.
func (t *tunables) choose(half int) { atomic.StoreUint64(t.active(), uint64(half)) }

// setValues changes a map set to the values of its module. If the other half still has these values from the change
// before, it is only selected. settle returns when no packet reads that half any more.
func (g *mapSet) setValues(id string, settle func() error) error {
	m := g.maps[sdk.TunablesMap]
	if m == nil {
		return fmt.Errorf("map set %s: map %s: %w", g.ID, sdk.TunablesMap, os.ErrNotExist)
	}
	t, err := openTunables(m.FD(), m.ValueSize())
	if err != nil {
		return err
	}
	defer t.Close()
	half, found := t.holds(id)
	if !found {
		if id != g.Values {
			return fmt.Errorf("values %s: %w", id, os.ErrNotExist)
		}
		values, err := g.encodeValues()
		if err != nil {
			return err
		}
		if err := settle(); err != nil {
			return err
		}
		if half, err = t.write(id, values, g.filler(nil)); err != nil {
			return err
		}
	}
	t.choose(half)
	return nil
}

// Free prepares the half of a map set's maps that no packet reads to be filled: it waits until no packet reads it any
// more, and removes its identity. It is for a control plane that fills before setValues.
func (d *Dataplane) Free(maps sdk.Maps) error {
	m := maps[sdk.TunablesMap]
	if m == nil {
		return fmt.Errorf("map %s: %w", sdk.TunablesMap, os.ErrNotExist)
	}
	t, err := openTunables(m.FD(), m.ValueSize())
	if err != nil {
		return err
	}
	defer t.Close()
	if err := d.settle(); err != nil {
		return err
	}
	clear(t.id(1 - t.half()))
	return nil
}

// filler makes the control plane write maps, if there is one.
func (g *mapSet) filler(previous map[string]*ebpf.Map) func() error {
	return func() error {
		if g.Fill == nil {
			return nil
		}
		return g.Fill(g.fillMaps(previous))
	}
}

// firstValues gives a new map set its values.
func (g *mapSet) firstValues(previous map[string]*ebpf.Map) error {
	values, err := g.encodeValues()
	if err != nil {
		return err
	}
	m := g.maps[sdk.TunablesMap]
	t, err := openTunables(m.FD(), m.ValueSize())
	if err != nil {
		return err
	}
	defer t.Close()
	half, err := t.write(g.Values, values, g.filler(previous))
	if err != nil {
		return err
	}
	t.choose(half)
	return nil
}

// readValues returns the values that packets read, by module and map set. A map set without tunables has none.
func (d *Dataplane) readValues(mapSets map[string][]string) (map[chain.MapSet]string, error) {
	out := map[chain.MapSet]string{}
	for module, ids := range mapSets {
		for _, id := range ids {
			fd, err := openPin(filepath.Join(d.layout.mapSet(module, id), sdk.TunablesMap))
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			t, err := openTunables(fd, valuesHead)
			unix.Close(fd)
			if err != nil {
				return nil, err
			}
			out[chain.MapSet{Module: module, ID: id}] = t.name(t.half())
			t.Close()
		}
	}
	return out, nil
}

// encodeValues encodes the module's struct of values as its object describes it.
func (g *mapSet) encodeValues() (out []byte, err error) {
	if g.Tunables != nil {
		return encodeTunables(g.Tunables(), g.Settings.Tunables)
	}
	err = hooksOf(g.Module, func(_ chain.Hook, spec *ebpf.CollectionSpec) error {
		m := spec.Maps[sdk.TunablesMap]
		if out != nil || m == nil { // the object for one of the hooks may have none
			return nil
		}
		out, err = encodeTunables(m, g.Settings.Tunables)
		return err
	})
	return out, err
}

// encodeTunables encodes values in the layout of the struct in the module's object, by its BTF, in the machine's byte
// order. Fields without a value are 0. It returns ErrNoConstant for a value without a field.
func encodeTunables(m *ebpf.MapSpec, values map[string]any) ([]byte, error) {
	kind, err := tunablesType(m)
	if err != nil {
		return nil, err
	}
	members := map[string]btf.Member{}
	for _, member := range kind.Members {
		members[member.Name] = member
	}
	out := make([]byte, kind.Size)
	for name, value := range values {
		member, known := members[name]
		if !known {
			return nil, fmt.Errorf("tunable %s: %w", name, ErrNoConstant)
		}
		size, err := btf.Sizeof(member.Type)
		if err != nil || member.BitfieldSize != 0 {
			return nil, fmt.Errorf("tunable %s is no integer", name)
		}
		encoded, err := encodeInteger(value, uint64(size))
		if err != nil {
			return nil, fmt.Errorf("tunable %s: %w", name, err)
		}
		copy(out[member.Offset.Bytes():], encoded)
	}
	return out, nil
}

// tunablesType returns the struct that a module has passed to KERB_TUNABLES.
func tunablesType(m *ebpf.MapSpec) (*btf.Struct, error) {
	whole, ok := btf.UnderlyingType(m.Value).(*btf.Struct)
	if !ok || len(whole.Members) != 3 || whole.Members[2].Offset.Bytes() != valuesHead {
		return nil, errNoTunables
	}
	halves, ok := btf.UnderlyingType(whole.Members[2].Type).(*btf.Array)
	if !ok || halves.Nelems != 2 {
		return nil, errNoTunables
	}
	kind, ok := btf.UnderlyingType(halves.Type).(*btf.Struct)
	if !ok || m.ValueSize != valuesHead+2*kind.Size {
		return nil, errNoTunables
	}
	return kind, nil
}

var errNoTunables = errors.New("map " + sdk.TunablesMap + " is not one of KERB_TUNABLES: rebuild the package")
