// SPDX-License-Identifier: Apache-2.0

package coap

import (
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
	mapExchanges = "coap_exchanges"
)

// maxExchanges is how many answers are remembered for duplicates.
const maxExchanges = 16384

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

// table is the values in the kernel. One at a time may write.
type table struct {
	values   *ebpf.Map
	versions []byte // struct coap_version by resource, mapped
}

func openTable(maps sdk.Maps) (*table, error) {
	values, err := maps.Get(mapValues)
	if err != nil {
		return nil, err
	}
	versions, err := maps.Get(mapVersions)
	if err != nil {
		return nil, err
	}
	size := int(versions.MaxEntries()) * 8
	mapped, err := unix.Mmap(versions.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: mmap: %w", mapVersions, err)
	}
	return &table{values, mapped}, nil
}

func (t *table) close() { _ = unix.Munmap(t.versions) } // it is mapped

// version is the field at off of a resource's struct coap_version.
func (t *table) version(resource, off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&t.versions[resource*8+off]))
}

// set replaces the value of a resource while it is read: value.h tells the order.
func (t *table) set(resource int, v *Value) error {
	active, writing := t.version(resource, 0), t.version(resource, 4)
	next := active.Load() + 1
	writing.Store(next)
	if err := t.values.Put(uint32(resource*2)+next&1, v.kernel()); err != nil {
		return fmt.Errorf("map %s: %w", mapValues, err)
	}
	active.Store(next)
	return nil
}

// get is the value of a resource; nil if it has none.
func (t *table) get(resource int) (*Value, error) {
	var k kernelValue
	if err := t.values.Lookup(uint32(resource*2)+t.version(resource, 0).Load()&1, &k); err != nil {
		return nil, fmt.Errorf("map %s: %w", mapValues, err)
	}
	return k.value(), nil
}
