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

// Entries of sdk.SetTableMap that are not elements. All entries after a free one are free. Elements of a full bucket
// may be in sdk.SetElementsMap; a bucket that had such elements keeps a removed entry in the last place.
const (
	entryFree    = 0
	entryRemoved = 1
)

// fewBuckets is the maximum number of buckets whose pages are mapped separately. For more, the whole table is mapped,
// which takes half a millisecond: the kernel fills in all of its page table.
const fewBuckets = 32

// setTable is sdk.SetTableMap in memory, or some of its pages, for one change: a permanent mapping would count as the
// agent's memory.
type setTable struct {
	buckets uint32 // in all
	span    uint32 // buckets of a part
	parts   map[uint32][]byte
}

// openTable maps the pages of some buckets, or the whole table for nil.
func openTable(m *ebpf.Map, some []uint32) (*setTable, error) {
	const bucket = sdk.SetBucketSize * 8
	page := uint32(os.Getpagesize())
	t := &setTable{buckets: m.MaxEntries(), span: page / bucket, parts: map[uint32][]byte{}}
	if some == nil || len(some) > fewBuckets {
		t.span, some = t.buckets, []uint32{0}
	}
	for _, b := range some {
		part := b / t.span
		if b >= t.buckets || t.parts[part] != nil {
			continue
		}
		bytes := (t.span*bucket + page - 1) / page * page
		memory, err := unix.Mmap(m.FD(), int64(part)*int64(bytes), int(bytes), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_SHARED)
		if err != nil {
			t.close()
			return nil, fmt.Errorf("map %s: mmap: %w", sdk.SetTableMap, err)
		}
		t.parts[part] = memory
	}
	return t, nil
}

// bucketsOf returns the buckets of elements, nil for many.
func bucketsOf(set sdk.Set, elements ...[]netip.Prefix) []uint32 {
	out := []uint32{}
	for _, all := range elements {
		if len(all) > fewBuckets {
			return nil
		}
		for _, p := range all {
			if bucket, _, ok := set.Bucket(p.Addr()); ok {
				out = append(out, bucket)
			}
		}
	}
	return out
}

func (t *setTable) close() {
	for _, memory := range t.parts {
		_ = unix.Munmap(memory) // cannot fail for memory from Mmap
	}
}

// at returns a bucket, nil if it is not mapped.
func (t *setTable) at(bucket uint32) *sdk.SetBucket {
	if bucket >= t.buckets {
		return nil
	}
	part := t.parts[bucket/t.span]
	if part == nil {
		return nil
	}
	return (*sdk.SetBucket)(unsafe.Pointer(&part[bucket%t.span*sdk.SetBucketSize*8]))
}

// bucket returns the bucket of an element and its number, nil if the table cannot have the element.
func (t *setTable) bucket(set sdk.Set, a netip.Addr) (b *sdk.SetBucket, at uint32, entry uint64) {
	at, entry, ok := set.Bucket(a)
	if !ok {
		return nil, 0, 0
	}
	return t.at(at), at, entry
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

// trim frees removed entries after the last element of a bucket that has no elements elsewhere.
func (t *setTable) trim(bucket uint32) {
	b := t.at(bucket)
	if b == nil {
		return
	}
	for i := len(b) - 1; i >= 0 && b[i] <= entryRemoved; i-- {
		atomic.StoreUint64(&b[i], entryFree)
	}
}

// sweep removes the elements of versions that are not to be kept, and frees removed entries of buckets that have no
// elements elsewhere.
func (t *setTable) sweep(keep func(version uint32) bool, elsewhere map[uint32]int) {
	for i := range t.buckets {
		b := t.at(i)
		for j, entry := range b {
			if entry > entryRemoved && !keep(uint32(entry>>33)) {
				atomic.StoreUint64(&b[j], entryRemoved)
			}
		}
		if elsewhere[i] == 0 {
			t.trim(i)
		}
	}
}
