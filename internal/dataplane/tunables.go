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

// Values that a module declares with KERB_TUNABLES (kerb/module.h) change without a new program. Its map holds them
// twice: packets read one half, the other one takes the next values. One store changes the half for all packets. A
// packet uses one half to its end, so that a half is written only when no packet of the time before can be under way.

// Layout of struct kerb_tunables_map up to the halves.
const (
	valuesIDs  = 8  // after the number of the half that packets read
	valuesID   = 16 // bytes of an identity, the rest zeros; all zeros: the half is not whole
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

// half is the one that packets read.
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

// write fills the half that no packet reads. It has an identity only when it is whole.
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

// choose has packets read a half from now on.
func (t *tunables) choose(half int) { atomic.StoreUint64(t.active(), uint64(half)) }

// setValues gives a map set the values of its module. Those that the other half still has from the change before are
// only chosen. settle returns when no packet reads that half any more.
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

// Free makes the half of the maps of a map set that no packet reads ready to be filled: no packet reads it any more,
// and it has no identity. It is for a control plane that fills before setValues.
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

// filler has the control plane write maps, if there is one.
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

// readValues finds which values packets meet, by module and map set. A map set without tunables has none.
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

// encodeValues is the module's struct of values as its object describes it.
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

// encodeTunables lays values out as the struct in the module's object has them, by its BTF, in the byte order of the
// machine. Fields without a value are 0. ErrNoConstant for a value without a field.
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

// tunablesType is the struct that a module has given to KERB_TUNABLES.
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
