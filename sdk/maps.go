// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Maps are the maps of a module, by their names in its source.
type Maps map[string]*ebpf.Map

// Get returns the map called name.
func (m Maps) Get(name string) (*ebpf.Map, error) {
	if got, ok := m[name]; ok {
		return got, nil
	}
	return nil, fmt.Errorf("map %s: %w", name, ErrNoMap)
}

// TunablesMap is the name of the map behind KERB_TUNABLES.
const TunablesMap = "kerb_tunables_map"

// FreeHalf returns the half (0 or 1) that no packet reads, of config maps that have twice the required size. Packets
// use the other half, as kerb_tunables_half says, until the agent commits the change.
func (m Maps) FreeHalf() (int, error) {
	half, err := m.ActiveHalf()
	return 1 - half, err
}

// ActiveHalf returns the half that packets read. From Open on it is the half of the opened config. A control plane
// calls it once, because the next config makes the other half active before this control plane ends.
func (m Maps) ActiveHalf() (int, error) {
	tunables, err := m.Get(TunablesMap)
	if err != nil {
		return 0, err
	}
	value, err := tunables.LookupBytes(uint32(0))
	if err != nil || len(value) < 8 {
		return 0, fmt.Errorf("read map %s: %w", TunablesMap, err)
	}
	return int(binary.NativeEndian.Uint64(value) & 1), nil
}

// Put writes an element of the map called name.
func (m Maps) Put(name string, key, value any) error {
	return m.do(name, "write", func(to *ebpf.Map) error { return to.Put(key, value) })
}

// Lookup reads an element of the map called name into value, a pointer.
func (m Maps) Lookup(name string, key, value any) error {
	return m.do(name, "read", func(from *ebpf.Map) error { return from.Lookup(key, value) })
}

// Sum adds up the per-CPU values of an element of the map called name. T consists of unsigned integers: a single one,
// or arrays and exported fields of them.
func Sum[T any](m Maps, name string, key any) (sum T, err error) {
	err = m.sum(name, key, reflect.ValueOf(&sum).Elem())
	return sum, err
}

// sum has no type parameter, so that a program contains its code once.
func (m Maps) sum(name string, key any, sum reflect.Value) error {
	perCPU := reflect.New(reflect.SliceOf(sum.Type()))
	if err := m.Lookup(name, key, perCPU.Interface()); err != nil {
		return err
	}
	for i := range perCPU.Elem().Len() {
		addTo(sum, perCPU.Elem().Index(i))
	}
	return nil
}

// addTo adds v to sum field by field. Both have the same type, which contains unsigned integers only.
func addTo(sum, v reflect.Value) {
	switch sum.Kind() {
	case reflect.Struct:
		for i := range sum.NumField() {
			addTo(sum.Field(i), v.Field(i))
		}
	case reflect.Array:
		for i := range sum.Len() {
			addTo(sum.Index(i), v.Index(i))
		}
	default:
		sum.SetUint(sum.Uint() + v.Uint())
	}
}

// Delete removes an element of the map called name. A missing element is not an error.
func (m Maps) Delete(name string, key any) error {
	err := m.do(name, "delete from", func(from *ebpf.Map) error { return from.Delete(key) })
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

func (m Maps) do(name, what string, call func(*ebpf.Map) error) error {
	got, err := m.Get(name)
	if err != nil {
		return err
	}
	if err := call(got); err != nil {
		return fmt.Errorf("%s map %s: %w", what, name, err)
	}
	return nil
}

// ErrNoMap is returned for a map that does not exist in the data plane.
var ErrNoMap = errors.New("not in the data plane")

// ReadTable returns the elements of a hash map. If the data plane deletes elements in the meantime, other elements may
// be missing; the error is then ebpf.ErrIterationAborted.
func ReadTable[K comparable, V any](m Maps, name string) (map[K]V, error) {
	all, key, value := map[K]V{}, *new(K), *new(V)
	err := m.do(name, "read", func(from *ebpf.Map) error {
		entries := from.Iterate()
		for entries.Next(&key, &value) {
			all[key] = value
		}
		return entries.Err()
	})
	return all, err
}

// firstBatch is the initial capacity in elements: most maps are nearly empty most of the time.
const firstBatch = 16

// EachBatch calls do for batches of elements of a hash map or array until do returns false. Where the map has many
// elements, it reads size of them per system call. Elements that are added or deleted in the meantime may be missed or
// visited twice. The slices are valid until do returns.
func EachBatch[K, V any](m *ebpf.Map, size int, do func([]K, []V) bool) error {
	var cursor ebpf.MapBatchCursor
	room := min(size, firstBatch)
	keys, values := make([]K, room), make([]V, room)
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		if n > 0 && !do(keys[:n], values[:n]) {
			return nil
		}
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return nil
		case errors.Is(err, unix.ENOSPC): // a hash bucket has more elements than a batch
			room *= 2
		case err != nil:
			return err
		default:
			room = max(room, min(8*room, size))
		}
		if room > len(keys) {
			keys, values = make([]K, room), make([]V, room)
		}
	}
}

// EachElement is EachBatch for single elements of the map called name.
func EachElement[K, V any](m Maps, name string, size int, do func(K, *V) bool) error {
	return m.do(name, "read", func(from *ebpf.Map) error {
		return EachBatch(from, size, func(keys []K, values []V) bool {
			for i := range keys {
				if !do(keys[i], &values[i]) {
					return false
				}
			}
			return true
		})
	})
}

// SyncTable makes a hash map or an LPM trie contain the wanted elements with few writes. It deletes other elements for
// which obsolete returns true.
func SyncTable[K, V comparable](m Maps, name string, want map[K]V, obsolete func(K, V) bool) error {
	have, err := ReadTable[K, V](m, name)
	if err != nil {
		return err
	}
	for key, old := range have {
		if _, stays := want[key]; stays || !obsolete(key, old) {
			continue
		}
		if err := m.Delete(name, key); err != nil {
			return err
		}
	}
	for key, value := range want {
		if old, there := have[key]; there && old == value {
			continue
		}
		if err := m.Put(name, key, value); err != nil {
			return err
		}
	}
	return nil
}
