// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"hash/fnv"
	"sort"
	"strconv"
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

// identities returns what the rules are known by in the course of changes: the name, or else its text. Of
// several rules that say the same, each has its place among them added.
func identities(rules []Rule, texts []string) []uint64 {
	out := make([]uint64, len(rules))
	count := map[string]int{}
	for i := range rules {
		text := "name " + rules[i].Name
		if rules[i].Name == "" {
			text = "rule " + texts[i]
		}
		h := fnv.New64a()
		h.Write([]byte(text + " #" + strconv.Itoa(count[text])))
		count[text]++
		out[i] = max(1, h.Sum64())
	}
	return out
}

// assignment is which hit counters the rules of a rule set have.
type assignment struct {
	slots []uint32        // by rule
	fresh map[uint32]bool // those that have counted for another rule
	fill  uint64          // the number of the rule set
}

// assignSlots gives each rule, known by its identity, a hit counter: the one that it had, else one that has been out of
// use longest. The counters of the running rule set are so left alone until a later change.
func assignSlots(maps sdk.Maps, ids []uint64) (slots []uint32, err error) {
	err = withOwners(maps, len(ids), func(m *ebpf.Map, owners []owner) error {
		a, err := chooseSlots(owners, ids)
		if err != nil {
			return err
		}
		if err := clearSlots(maps, a.fresh); err != nil {
			return err
		}
		slots = a.slots
		return a.write(m, ids)
	})
	return slots, err
}

// keepSlots reads which hit counters the rules of the running rule set have. They become those used last: the half with
// these rules may be in use again without having been filled, and then the rule set of the change before was filled
// later.
func keepSlots(maps sdk.Maps, ids []uint64) (slots []uint32, err error) {
	err = withOwners(maps, len(ids), func(m *ebpf.Map, owners []owner) error {
		a, err := chooseSlots(owners, ids)
		if err != nil {
			return err
		}
		slots = a.slots
		late := assignment{fill: a.fill}
		var lateIDs []uint64
		for i, slot := range slots {
			if o := owners[slot]; o.Rule == ids[i] && o.Fill+1 < a.fill {
				late.slots, lateIDs = append(late.slots, slot), append(lateIDs, ids[i])
			}
		}
		return late.write(m, lateIDs)
	})
	return slots, err
}

// chooseSlots leaves owners, of which there are many more than rules, as they are.
func chooseSlots(owners []owner, rules []uint64) (a assignment, err error) {
	place := make(map[uint64]int, len(rules))
	for i, id := range rules {
		place[id] = i
	}
	a.slots, a.fresh = make([]uint32, len(rules)), map[uint32]bool{}
	for slot := slotRules; slot < len(owners); slot++ {
		a.fill = max(a.fill, owners[slot].Fill)
		if owners[slot].Rule == 0 {
			continue
		}
		if i, ok := place[owners[slot].Rule]; ok {
			a.slots[i] = uint32(slot)
		}
	}
	a.fill++
	missing := 0
	for _, slot := range a.slots {
		if slot == 0 {
			missing++
		}
	}
	free := oldestFirst(owners, place, missing)
	if len(free) < missing {
		return a, fmt.Errorf("%d hit counters are left for %d of %d rules", len(free), missing, len(rules))
	}
	for i := range rules {
		if a.slots[i] != 0 {
			continue
		}
		a.slots[i], free = free[0], free[1:]
		if owners[a.slots[i]].Rule != 0 {
			a.fresh[a.slots[i]] = true
		}
	}
	return a, nil
}

// oldestFirst lists the slots of no rule in a set, or n of them that never had one.
func oldestFirst(owners []owner, rules map[uint64]int, n int) []uint32 {
	var free, used []uint32
	for slot := slotRules; slot < len(owners) && len(free) < n; slot++ {
		if owners[slot].Fill == 0 {
			free = append(free, uint32(slot))
		} else if _, ok := rules[owners[slot].Rule]; !ok {
			used = append(used, uint32(slot))
		}
	}
	if len(free) >= n {
		return free
	}
	sort.SliceStable(used, func(i, j int) bool { return owners[used[i]].Fill < owners[used[j]].Fill })
	return append(free, used...)
}

// write notes in the map of owners who has the slots now: the rules with these identities.
func (a *assignment) write(m *ebpf.Map, ids []uint64) error {
	for from := 0; from < len(a.slots); from += fillBatch {
		keys := a.slots[from:min(from+fillBatch, len(a.slots))]
		values := make([]owner, len(keys))
		for i := range keys {
			values[i] = owner{Rule: ids[from+i], Fill: a.fill}
		}
		if _, err := m.BatchUpdate(keys, values, nil); err != nil {
			return fmt.Errorf("write map %s: %w", mapOwners, err)
		}
	}
	return nil
}

// withOwners calls do with the owners of all slots that rules have had, and n or more of others, of which it keeps
// nothing. A map that can be mapped into memory is read there, others, which an earlier version has left, in few system
// calls (batches: Linux 5.6).
func withOwners(maps sdk.Maps, n int, do func(m *ebpf.Map, owners []owner) error) error {
	m, err := maps.Get(mapOwners)
	if err != nil {
		return err
	}
	if m.Flags()&unix.BPF_F_MMAPABLE != 0 {
		return mapOwned(m, n, firstOwners, do)
	}
	n = int(m.MaxEntries())
	owners := make([]owner, 0, n)
	err = sdk.EachBatch(m, 4096, func(_ []uint32, some []owner) bool { owners = append(owners, some...); return true })
	if err == nil && len(owners) < n {
		err = fmt.Errorf("%d of %d entries", len(owners), n)
	}
	if err != nil {
		return fmt.Errorf("read map %s: %w", mapOwners, err)
	}
	return do(m, owners)
}

// firstOwners are mapped at first: each page takes time, and rules get the first slots that are free.
const firstOwners = 1024

// mapOwned maps the first size owners, or more if these are too few.
func mapOwned(m *ebpf.Map, n, size int, do func(m *ebpf.Map, owners []owner) error) error {
	for most := int(m.MaxEntries()); ; size *= 4 {
		size = min(size, most)
		memory, err := unix.Mmap(m.FD(), 0, size*int(m.ValueSize()), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
		if err != nil {
			return fmt.Errorf("read map %s: %w", mapOwners, err)
		}
		owners := unsafe.Slice((*owner)(unsafe.Pointer(&memory[0])), size)
		// The first slots are no rule's; n more must be free.
		enough := size == most || size > slotRules+n && owners[size-1-n].Fill == 0
		if enough {
			err = do(m, owners)
		}
		_ = unix.Munmap(memory)
		if enough {
			return err
		}
	}
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
