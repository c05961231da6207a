// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// Slots of the hit counters that belong to no rule; mirrored in firewall.bpf.c.
const (
	slotEgress       = 0
	slotIngress      = 1
	slotTracked      = 2
	slotRelated      = 3
	slotLink         = 4
	slotNonIP        = 5
	slotMalformed    = 6
	slotExtension    = 7
	slotFragment     = 8
	slotFragmentNext = 9
	slotFull         = 10
	slotRevoked      = 11
	slotSpoofed      = 12
	slotOffload      = 13
	slotLinkDenied   = 14
	slotInvalid      = 15
	slotRules        = 16
)

// owner mirrors struct fw_owner.
type owner struct {
	Rule uint64 // hash of the rule's identity, 0: free
	Fill uint64 // number of the last rule set that had it
}

// Hits mirrors struct fw_hits.
type Hits struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// identities returns what the rules are known by in the course of changes: the name, or else what the rule says. Of
// several rules that say the same, each has its place among them added.
func identities(rules []Rule) []uint64 {
	out := make([]uint64, len(rules))
	count := map[string]int{}
	for i := range rules {
		text := "name " + rules[i].Name
		if rules[i].Name == "" {
			text = "rule " + rules[i].text()
		}
		h := fnv.New64a()
		fmt.Fprintf(h, "%s #%d", text, count[text])
		count[text]++
		out[i] = max(1, h.Sum64())
	}
	return out
}

// assignSlots gives each rule, known by its identity, a hit counter: the one that it had, else one that has been out of
// use longest. The counters of the running rule set are so left alone until a later change.
func assignSlots(maps sdk.Maps, ids []uint64) ([]uint32, error) {
	ownersMap, err := maps.Get(mapOwners)
	if err != nil {
		return nil, err
	}
	owners, err := readArray[owner](ownersMap)
	if err != nil {
		return nil, fmt.Errorf("read map %s: %w", mapOwners, err)
	}
	slots, fresh, err := chooseSlots(owners, ids)
	if err != nil {
		return nil, err
	}
	if err := clearSlots(maps, fresh); err != nil {
		return nil, err
	}
	return slots, writeOwners(ownersMap, owners, slots)
}

// keepSlots reads which hit counters the rules of the running rule set have. They become those used last: the half with
// these rules may be in use again without having been filled, and then the rule set of the change before was filled
// later.
func keepSlots(maps sdk.Maps, ids []uint64) ([]uint32, error) {
	m, err := maps.Get(mapOwners)
	if err != nil {
		return nil, err
	}
	owners, err := readArray[owner](m)
	if err != nil {
		return nil, fmt.Errorf("read map %s: %w", mapOwners, err)
	}
	before := slices.Clone(owners)
	slots, _, err := chooseSlots(owners, ids)
	if err != nil {
		return nil, err
	}
	var late []uint32
	for i, slot := range slots {
		if b := before[slot]; b.Rule == ids[i] && b.Fill+1 < owners[slot].Fill {
			late = append(late, slot)
		}
	}
	return slots, writeOwners(m, owners, late)
}

// chooseSlots changes owners to what they will be. Fresh slots have counters of another rule.
func chooseSlots(owners []owner, rules []uint64) (slots []uint32, fresh map[uint32]bool, err error) {
	known := map[uint64]uint32{}
	fill := uint64(0)
	for slot := slotRules; slot < len(owners); slot++ {
		fill = max(fill, owners[slot].Fill)
		if owners[slot].Rule != 0 {
			known[owners[slot].Rule] = uint32(slot)
		}
	}
	fill++
	slots, fresh = make([]uint32, len(rules)), map[uint32]bool{}
	for i, id := range rules {
		if slot, ok := known[id]; ok {
			slots[i] = slot
			owners[slot].Fill = fill
		}
	}
	var free []uint32
	for i, id := range rules {
		if slots[i] != 0 {
			continue
		}
		if free == nil {
			free = oldestFirst(owners, fill, len(rules)-i)
		}
		if len(free) == 0 {
			return nil, nil, fmt.Errorf("no hit counter is left for rule %d of %d", i, len(rules))
		}
		slots[i], free = free[0], free[1:]
		fresh[slots[i]] = owners[slots[i]].Rule != 0
		if !fresh[slots[i]] {
			delete(fresh, slots[i])
		}
		owners[slots[i]] = owner{Rule: id, Fill: fill}
	}
	return slots, fresh, nil
}

// oldestFirst lists the slots not in use by rule set fill, or n of them that never were.
func oldestFirst(owners []owner, fill uint64, n int) []uint32 {
	var free, used []uint32
	for slot := slotRules; slot < len(owners) && len(free) < n; slot++ {
		switch owners[slot].Fill {
		case 0:
			free = append(free, uint32(slot))
		case fill:
		default:
			used = append(used, uint32(slot))
		}
	}
	if len(free) >= n {
		return free
	}
	slices.SortStableFunc(used, func(a, b uint32) int { return cmp.Compare(owners[a].Fill, owners[b].Fill) })
	return append(free, used...)
}

func writeOwners(m *ebpf.Map, owners []owner, slots []uint32) error {
	for from := 0; from < len(slots); from += fillBatch {
		keys := slots[from:min(from+fillBatch, len(slots))]
		values := make([]owner, len(keys))
		for i, slot := range keys {
			values[i] = owners[slot]
		}
		if _, err := m.BatchUpdate(keys, values, nil); err != nil {
			return fmt.Errorf("write map %s: %w", mapOwners, err)
		}
	}
	return nil
}

// readArray reads an array map: one that can be mapped into memory by a copy, others, which an earlier version has
// left, in few system calls (batches: Linux 5.6).
func readArray[T any](m *ebpf.Map) ([]T, error) {
	n := int(m.MaxEntries())
	if m.Flags()&unix.BPF_F_MMAPABLE != 0 {
		memory, err := unix.Mmap(m.FD(), 0, n*int(m.ValueSize()), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
		if err != nil {
			return nil, err
		}
		defer func() { _ = unix.Munmap(memory) }()
		return slices.Clone(unsafe.Slice((*T)(unsafe.Pointer(&memory[0])), n)), nil
	}
	keys, values := make([]uint32, n), make([]T, n)
	var cursor ebpf.MapBatchCursor
	got := 0
	for got < n {
		count, err := m.BatchLookup(&cursor, keys[got:min(got+4096, n)], values[got:min(got+4096, n)], nil)
		got += count
		if err != nil || count == 0 {
			break
		}
	}
	if got < n {
		return values, fmt.Errorf("%d of %d entries", got, n)
	}
	return values, nil
}

// readHits sums the counters of all CPUs by slot of a map.
func readHits(maps sdk.Maps, name string, slots []uint32) (map[uint32]Hits, error) {
	m, err := maps.Get(name)
	if err != nil {
		return nil, err
	}
	out := make(map[uint32]Hits, len(slots))
	var perCPU []Hits
	for _, slot := range slots {
		if err := m.Lookup(slot, &perCPU); err != nil {
			return nil, fmt.Errorf("read map %s: %w", name, err)
		}
		var sum Hits
		for _, h := range perCPU {
			sum.Packets += h.Packets
			sum.Bytes += h.Bytes
		}
		out[slot] = sum
	}
	return out, nil
}
