// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// Names of maps in the data plane.
const (
	mapNames     = "coap_names"
	mapVersions  = "coap_versions"
	mapValues    = "coap_values"
	mapSet       = "coap_set"
	mapExchanges = "coap_exchanges"
	mapSecrets   = "coap_secrets"
)

const (
	maxExchanges = 16384 // answers that are remembered for duplicates
	maxSet       = 2048  // values that are set at run time
)

// name mirrors struct coap_name.
type name struct {
	Slot  uint32
	Len   uint16
	Host  uint16
	Bytes [MaxPath]byte
}

func newName(slot uint32, host uint16, text []byte) *name {
	n := &name{Slot: slot, Host: host, Len: uint16(len(text))}
	copy(n.Bytes[:], text)
	return n
}

// table is the values of a map set in the kernel. One at a time may write.
type table struct {
	names, values, settings *ebpf.Map
	versions                []byte // struct coap_version by resource, mapped
}

// openTable opens the maps of the application and maps the versions into memory, shared with the data plane. The caller
// closes it.
func openTable(maps sdk.Maps) (*table, error) {
	t := &table{}
	for name, to := range map[string]**ebpf.Map{mapNames: &t.names, mapValues: &t.values, mapSet: &t.settings} {
		m, err := maps.Get(name)
		if err != nil {
			return nil, err
		}
		*to = m
	}
	versions, err := maps.Get(mapVersions)
	if err != nil {
		return nil, err
	}
	size := int(versions.MaxEntries()) * 8
	if t.versions, err = unix.Mmap(versions.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map %s: mmap: %w", mapVersions, err)
	}
	return t, nil
}

func (t *table) close() { _ = unix.Munmap(t.versions) } // it is mapped

// version is the field at off of a resource's struct coap_version.
func (t *table) version(resource uint32, off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&t.versions[int(resource)*8+off]))
}

// put replaces the value of a resource while it is read: value.h has the order.
func (t *table) put(resource uint32, v *Value) error {
	active, writing := t.version(resource, 0), t.version(resource, 4)
	next := active.Load() + 1
	announce(writing, next)
	if err := t.values.Put(resource*2+next&1, v.kernel()); err != nil {
		return fmt.Errorf("map %s: %w", mapValues, err)
	}
	active.Store(next)
	return nil
}

// announce stores n before all that is written afterwards. A store by itself orders what was written before it only: on
// processors with weak memory ordering (arm64) the first bytes of the value could be seen before it. The load of what
// was stored waits for it, and all that follows waits for the load: sync/atomic is sequentially consistent.
func announce(to *atomic.Uint32, n uint32) {
	to.Store(n)
	to.Load()
}

// get is the value of a resource; nil if it has none.
func (t *table) get(resource uint32) (*Value, error) {
	var k kernelValue
	if err := t.values.Lookup(resource*2+t.version(resource, 0).Load()&1, &k); err != nil {
		return nil, fmt.Errorf("map %s: %w", mapValues, err)
	}
	return k.value(), nil
}

// number of a resource, from the data plane's own table.
func (t *table) number(n *name) (uint32, error) {
	var resource uint32
	if err := t.names.Lookup(n, &resource); err != nil {
		return 0, fmt.Errorf("map %s: %w", mapNames, err)
	}
	return resource, nil
}

// setting of a resource; nil if nothing was set.
func (t *table) setting(n *name) (*setting, error) {
	s := &setting{}
	err := t.settings.Lookup(n, s)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", mapSet, err)
	}
	return s, nil
}

// set keeps what was set for later map sets, and gives the resource its value; nil takes back what was set.
func (t *table) set(n *name, r *resource, s *setting) error {
	resource, err := t.number(n)
	if err != nil {
		return err
	}
	if s == nil {
		err = t.settings.Delete(n)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			err = nil
		}
	} else {
		err = t.settings.Put(n, s)
	}
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("the maximum of %d values is already set", maxSet)
	}
	if err != nil {
		return fmt.Errorf("map %s: %w", mapSet, err)
	}
	return t.put(resource, r.value(s))
}

// forget takes back all that was set for a slot.
func (t *table) forget(slot uint32) error {
	var n name
	var s setting
	var gone []name
	all := t.settings.Iterate()
	for all.Next(&n, &s) {
		if n.Slot == slot {
			gone = append(gone, n)
		}
	}
	err := all.Err()
	for _, n := range gone {
		err = errors.Join(err, t.settings.Delete(&n))
	}
	if err != nil {
		return fmt.Errorf("map %s: %w", mapSet, err)
	}
	return nil
}

// refresh gives a resource the value that it should have, if it has another.
func (t *table) refresh(n *name, r *resource) error {
	resource, err := t.number(n)
	if err != nil {
		return err
	}
	s, err := t.setting(n)
	if err != nil {
		return err
	}
	is, err := t.get(resource)
	if want := r.value(s); err == nil && !want.equals(is) {
		err = t.put(resource, want)
	}
	return err
}
