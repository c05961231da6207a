// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// Entries of sdk.SetTableMap that are no elements. Behind a free one all are free. Elements of a bucket without a free
// one may be in sdk.SetElementsMap; one that had them keeps a removed entry in the last place.
const (
	entryFree    = 0
	entryRemoved = 1
)

// setTable is sdk.SetTableMap in memory, for a single change: it would count as the agent's.
type setTable struct {
	memory  []byte
	buckets []sdk.SetBucket
}

func openTable(m *ebpf.Map) (*setTable, error) {
	const bucket = sdk.SetBucketSize * 8
	size, page := int(m.MaxEntries())*bucket, os.Getpagesize()
	memory, err := unix.Mmap(m.FD(), 0, (size+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: mmap: %w", sdk.SetTableMap, err)
	}
	return &setTable{memory, unsafe.Slice((*sdk.SetBucket)(unsafe.Pointer(&memory[0])), m.MaxEntries())}, nil
}

func (t *setTable) close() { _ = unix.Munmap(t.memory) } // cannot fail for what Mmap returned

// bucket returns the bucket of an element and its number, nil if the table does not have it.
func (t *setTable) bucket(set sdk.Set, a netip.Addr) (b *sdk.SetBucket, at uint32, entry uint64) {
	at, entry, ok := set.Bucket(a)
	if !ok || at >= uint32(len(t.buckets)) {
		return nil, 0, 0
	}
	return &t.buckets[at], at, entry
}

// put reports whether the table has room for an element.
func (t *setTable) put(set sdk.Set, a netip.Addr) bool {
	b, _, entry := t.bucket(set, a)
	if b == nil {
		return false
	}
	for _, place := range []uint64{entry, entryRemoved, entryFree} {
		if i := slices.Index(b[:], place); i >= 0 {
			atomic.StoreUint64(&b[i], entry)
			return true
		}
	}
	return false
}

// remove reports whether sdk.SetElementsMap may have the element.
func (t *setTable) remove(set sdk.Set, a netip.Addr) bool {
	b, at, entry := t.bucket(set, a)
	if b == nil {
		return true
	}
	if i := slices.Index(b[:], entry); i >= 0 {
		atomic.StoreUint64(&b[i], entryRemoved)
	}
	if b[len(b)-1] != entryFree {
		return true
	}
	t.trim(at)
	return false
}

// trim frees what is removed behind the last element of a bucket that has no elements elsewhere.
func (t *setTable) trim(bucket uint32) {
	if bucket >= uint32(len(t.buckets)) {
		return
	}
	b := &t.buckets[bucket]
	for i := len(b) - 1; i >= 0 && b[i] <= entryRemoved; i-- {
		atomic.StoreUint64(&b[i], entryFree)
	}
}

// sweep removes the elements of versions that are not to be kept, and frees the places of all buckets that have no
// elements elsewhere.
func (t *setTable) sweep(keep func(version uint32) bool, elsewhere map[uint32]int) {
	for i := range t.buckets {
		b := &t.buckets[i]
		for j, entry := range b {
			if entry > entryRemoved && !keep(uint32(entry>>33)) {
				atomic.StoreUint64(&b[j], entryRemoved)
			}
		}
		if elsewhere[uint32(i)] == 0 {
			t.trim(uint32(i))
		}
	}
}
