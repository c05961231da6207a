// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// mapSet is access to the maps of one map set.
type mapSet struct {
	vips, ports, slots, instances, owners, locals, interfaces, homes, names *ebpf.Map

	sessions, pending, counts *ebpf.Map

	turns uint32 // ids of virtual addresses that there are counters for
	// Shared with the data plane. They end when the set is no longer reachable.
	stats  []instanceStats
	shares []share
}

// slot is how an element of slots lies in memory: arrays round their elements up to 8 bytes.
type slot struct{ index, _ uint32 }

// openMaps opens all maps of the map set and maps the instance counters and the session shares into memory, which the
// sweep reads without a system call per entry.
func openMaps(maps sdk.Maps) (*mapSet, error) {
	k := &mapSet{}
	var stats, turns, shares *ebpf.Map
	for name, m := range map[string]**ebpf.Map{
		mapVIPs: &k.vips, mapPorts: &k.ports, mapSlots: &k.slots, mapInstances: &k.instances, mapOwners: &k.owners,
		mapLocals:     &k.locals,
		mapInterfaces: &k.interfaces, mapHomes: &k.homes, mapNames: &k.names, mapSessions: &k.sessions,
		mapPending: &k.pending,
		mapShares:  &shares, mapCounts: &k.counts, mapInstanceStats: &stats, mapTurns: &turns,
	} {
		var err error
		if *m, err = maps.Get(name); err != nil {
			return nil, err
		}
	}
	k.turns = turns.MaxEntries()
	var err error
	if k.stats, err = mapArray[instanceStats](k, mapInstanceStats, stats); err != nil {
		return nil, err
	}
	k.shares, err = mapArray[share](k, mapShares, shares)
	return k, err
}

// mapArray maps an array into memory, for as long as the set is reachable. V is of a multiple of 8 bytes.
func mapArray[V any](k *mapSet, name string, m *ebpf.Map) ([]V, error) {
	var v V
	size, page := int(m.MaxEntries())*int(unsafe.Sizeof(v)), os.Getpagesize()
	memory, err := unix.Mmap(m.FD(), 0, (size+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: mmap: %w", name, err)
	}
	runtime.AddCleanup(k, func(memory []byte) { _ = unix.Munmap(memory) }, memory) // cannot fail for what Mmap returned
	return unsafe.Slice((*V)(unsafe.Pointer(&memory[0])), m.MaxEntries()), nil
}

// withRun lends a run of slots, as it lies in memory that is shared with the data plane. It is mapped until do returns:
// all slots are 2 MiB, and the control plane uses them in changes only.
func (k *mapSet) withRun(first, count uint32, do func([]slot)) error {
	if count == 0 {
		return nil
	}
	const size = int(unsafe.Sizeof(slot{}))
	page := os.Getpagesize()
	begin := int(first) * size / page * page
	end := (int(first+count)*size + page - 1) / page * page
	memory, err := unix.Mmap(k.slots.FD(), int64(begin), end-begin, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %s: mmap: %w", mapSlots, err)
	}
	defer func() { _ = unix.Munmap(memory) }() // cannot fail for what Mmap returned
	do(unsafe.Slice((*slot)(unsafe.Pointer(&memory[0])), (end-begin)/size)[int(first)-begin/size:][:count])
	return nil
}

// run reads a run of slots.
func (k *mapSet) run(first, count uint32) ([]uint32, error) {
	out := make([]uint32, count)
	return out, k.withRun(first, count, func(run []slot) {
		for i := range out {
			out[i] = run[i].index
		}
	})
}

func (s *instanceStats) sessions() int64      { return atomic.LoadInt64(&s.Sessions) }
func (s *instanceStats) addSessions(by int64) { atomic.AddInt64(&s.Sessions, by) }
func (s *instanceStats) opened() uint64       { return atomic.LoadUint64(&s.Opened) }
func (s *instanceStats) rtt() uint64          { return atomic.LoadUint64(&s.RTT) }
func (s *instanceStats) answers() uint64      { return atomic.LoadUint64(&s.Answers) }
func (s *instanceStats) failures() uint64     { return atomic.LoadUint64(&s.Failures) }
func (s *instanceStats) measureFromScratch()  { atomic.StoreUint64(&s.RTT, 0) }

// begin counts for another instance.
func (s *instanceStats) begin() {
	atomic.StoreInt64(&s.Sessions, 0)
	atomic.StoreUint64(&s.Opened, 0)
	atomic.StoreUint64(&s.Answers, 0)
	atomic.StoreUint64(&s.Failures, 0)
	s.measureFromScratch()
}

func (s *share) sessions() uint64     { return atomic.LoadUint64(&s.Sessions) }
func (s *share) addSessions(by int64) { atomic.AddUint64(&s.Sessions, uint64(by)) }

func write[K, V any](m *ebpf.Map, name string, k K, v V) error {
	if err := m.Put(k, v); err != nil {
		return fmt.Errorf("write map %s: %w", name, err)
	}
	return nil
}

// remove deletes a key that may be gone already.
func remove[K any](m *ebpf.Map, name string, k K) error {
	if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete from map %s: %w", name, err)
	}
	return nil
}

const batch = 4096

// each is sdk.EachBatch for all entries.
func each[K, V any](m *ebpf.Map, name string, do func([]K, []V)) error {
	err := sdk.EachBatch(m, batch, func(keys []K, values []V) bool { do(keys, values); return true })
	if err != nil {
		return fmt.Errorf("read map %s: %w", name, err)
	}
	return nil
}

// readArray reads all of an array.
func readArray[V any](m *ebpf.Map, name string) ([]V, error) {
	out := make([]V, 0, m.MaxEntries())
	err := each(m, name, func(_ []uint32, values []V) { out = append(out, values...) })
	if err == nil && len(out) != int(m.MaxEntries()) {
		err = fmt.Errorf("read map %s: %d of %d entries", name, len(out), m.MaxEntries())
	}
	return out, err
}

// removeAll deletes keys, many at a time. A batch ends at a key that is gone already, and continues after it.
func removeAll[K any](m *ebpf.Map, name string, keys []K) error {
	for len(keys) > 0 {
		n, err := m.BatchDelete(keys, nil)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ebpf.ErrKeyNotExist) && n < len(keys):
			keys = keys[n+1:]
		default:
			return fmt.Errorf("delete from map %s: %w", name, err)
		}
	}
	return nil
}
