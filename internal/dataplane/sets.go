// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// Mirrored in kerb/set.h.
const (
	maxSets        = 1024
	maxSetElements = 1 << 19 // of all sets, and of replacements in progress
)

// MaxSets is the maximum number of sets and selectors of services that the modules of a node refer to.
const MaxSets = maxSets - 1

// shares reports whether the module shares a map with other modules.
func (mod *Module) shares(name string) bool {
	return slices.Contains(mod.SharedMaps, name) || len(mod.Settings.Sets) > 0 && slices.Contains(sdk.SetMaps, name)
}

// fitSets minimizes the maps of sets for a config without sets.
func (mod *Module) fitSets(spec *ebpf.CollectionSpec) {
	if len(mod.Settings.Sets) > 0 {
		return
	}
	for _, name := range sdk.SetMaps {
		if m := spec.Maps[name]; m != nil {
			m.MaxEntries = 1
		}
	}
}

// checkTable rejects programs that look up sets without sdk.SetTableMap, which a kerb/set.h from before it compiles:
// they would find no IPv4 address and no port, so that packets pass which they have to drop.
func (g *mapSet) checkTable() error {
	if len(g.Settings.Sets) > 0 && g.maps[sdk.SetElementsMap] != nil && g.maps[sdk.SetTableMap] == nil {
		return fmt.Errorf("module %s: the data plane was compiled with the kerb/set.h of an earlier Kerb, which does not "+
			"find IPv4 addresses and ports: compile it again", g.Name)
	}
	return nil
}

// Sets writes the maps of sets. Its methods are not safe for concurrent use.
type Sets struct {
	maps   sdk.Maps
	owned  bool
	all    map[uint64]sdk.Set
	latest uint32 // version of a set
	// Number of elements of each bucket that are in sdk.SetElementsMap, because they do not fit; nil: unknown.
	elsewhere map[uint32]int
}

// Elements are the elements of a set: addresses as prefixes of full length, ports as sdk.PortAddr.
type Elements struct {
	Prefixes bool // of any length
	List     []netip.Prefix
}

// allSets is the key in kerb_sets whose version changes with each change.
const allSets = 0

// setSpecs describe the maps, as kerb/set.h does.
func setSpecs() map[string]*ebpf.MapSpec {
	u32, u64 := &btf.Int{Name: "__u32", Size: 4}, &btf.Int{Name: "__u64", Size: 8}
	return map[string]*ebpf.MapSpec{
		sdk.SetsMap: {Name: sdk.SetsMap, Type: ebpf.Hash, KeySize: 8, ValueSize: 24, MaxEntries: maxSets, Key: u64,
			Flags: noPrealloc},
		sdk.SetElementsMap: {Name: sdk.SetElementsMap, Type: ebpf.Hash, KeySize: 20, ValueSize: 4, Value: u32,
			MaxEntries: maxSetElements, Flags: noPrealloc},
		sdk.SetTableMap: {Name: sdk.SetTableMap, Type: ebpf.Array, KeySize: 4, ValueSize: 8 * sdk.SetBucketSize,
			MaxEntries: sdk.SetBuckets, Flags: unix.BPF_F_MMAPABLE},
		sdk.SetPrefixesMap: {Name: sdk.SetPrefixesMap, Type: ebpf.LPMTrie, KeySize: 24, ValueSize: 4, Value: u32,
			MaxEntries: maxSetElements, Flags: noPrealloc},
	}
}

// OpenSets opens the maps that the modules of the node share. If they do not exist, it creates them if create is set,
// and returns nil otherwise.
func (d *Dataplane) OpenSets(create bool) (*Sets, error) {
	maps := sdk.Maps{}
	for name, spec := range setSpecs() {
		m, err := openSet(filepath.Join(d.layout.shared(), name), spec, create)
		if err != nil {
			closeAll(maps)
			return nil, fmt.Errorf("map %s of sets: %w", name, err)
		}
		if m == nil {
			closeAll(maps)
			return nil, nil
		}
		maps[name] = m
	}
	s, err := NewSets(maps)
	if err != nil {
		closeAll(maps)
		return nil, err
	}
	s.owned = true
	return s, nil
}

// openSet opens a pinned map of sets, or creates it on request; nil without an error if it does not exist.
func openSet(path string, spec *ebpf.MapSpec, create bool) (*ebpf.Map, error) {
	m, err := pinnedMap(path)
	switch {
	case err == nil:
		return m, nil
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	case !create:
		return nil, nil
	}
	if m, err = ebpf.NewMap(spec); err != nil {
		return nil, err
	}
	if err := pinOnce(m, path); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// NewSets returns the sets in maps, after removing leftovers of a killed agent.
func NewSets(maps sdk.Maps) (*Sets, error) {
	s := &Sets{maps: maps, all: map[uint64]sdk.Set{}}
	var id uint64
	var set sdk.Set
	entries := maps[sdk.SetsMap].Iterate()
	for entries.Next(&id, &set) {
		if s.all[id] = set; id != allSets {
			s.latest = max(s.latest, set.Version)
		}
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read map %s: %w", sdk.SetsMap, err)
	}
	if s.latest == 0 { // versions determine buckets: it must be unknown which elements share one
		s.latest = rand.Uint32N(1 << 30)
	}
	return s, s.sweep()
}

// Close closes the maps that OpenSets has opened.
func (s *Sets) Close() {
	if s != nil && s.owned {
		closeAll(s.maps)
	}
}

// Has reports whether the kernel has this revision of a set.
func (s *Sets) Has(id, revision uint64) bool {
	return revision != 0 && s.all[id].Revision == revision
}

// Replace replaces the elements of a set; the old ones may be nil if they are unknown. Each packet sees either the old
// or the new ones.
func (s *Sets) Replace(id, revision uint64, to Elements, old *Elements) error {
	before := s.all[id]
	s.latest++
	next := sdk.Set{Version: s.latest, Kind: sdk.SetKindTable, Revision: revision}
	if to.Prefixes {
		next.Kind = sdk.SetKindPrefixes
	}
	if err := s.edit(next, to.List, nil); err != nil {
		return errors.Join(err, s.sweep())
	}
	if err := s.write(id, next); err != nil {
		return errors.Join(err, s.sweep())
	}
	if err := errors.Join(s.touch(), awaitPackets()); err != nil {
		return err
	}
	if old == nil {
		return s.sweep()
	}
	return s.edit(before, nil, old.List)
}

// Change adds and removes elements of a set. If the agent is killed in the meantime, Has returns false.
func (s *Sets) Change(id, revision uint64, add, remove []netip.Prefix) error {
	set := s.all[id]
	set.Revision = 0
	if err := s.write(id, set); err != nil {
		return err
	}
	if err := s.edit(set, add, remove); err != nil {
		return err
	}
	set.Revision = revision
	return errors.Join(s.write(id, set), s.touch())
}

// Retain removes all sets except the given ones.
func (s *Sets) Retain(keep map[uint64]bool) error {
	var removed bool
	for id := range s.all {
		if id == allSets || keep[id] {
			continue
		}
		if err := s.maps[sdk.SetsMap].Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("map %s: %w", sdk.SetsMap, err)
		}
		delete(s.all, id)
		removed = true
	}
	if !removed {
		return nil
	}
	return errors.Join(s.touch(), s.sweep())
}

// write stores the state of a set. ErrSetsFull reports that there are too many.
func (s *Sets) write(id uint64, set sdk.Set) error {
	set.ID = id
	if err := s.maps[sdk.SetsMap].Put(id, set); err != nil {
		if errors.Is(err, unix.E2BIG) {
			return fmt.Errorf("%w: at most %d sets and selectors of services: delete sets that no module uses, or put the "+
				"elements of several sets into one", ErrSetsFull, MaxSets)
		}
		return fmt.Errorf("map %s: %w", sdk.SetsMap, err)
	}
	s.all[id] = set
	return nil
}

// touch makes connections be checked again.
func (s *Sets) touch() error {
	all := s.all[allSets]
	all.Version++
	return s.write(allSets, all)
}

// edit adds and removes elements of a set in the maps.
func (s *Sets) edit(set sdk.Set, add, remove []netip.Prefix) error {
	table := &setTable{}
	if set.Kind == sdk.SetKindTable {
		t, err := openTable(s.maps[sdk.SetTableMap], bucketsOf(set, add, remove))
		if err != nil {
			return err
		}
		table = t
		defer table.close()
	}
	for _, p := range add {
		if table.put(set, p.Addr()) {
			continue
		}
		if err := s.put(set, p); err != nil {
			return err
		}
	}
	for _, p := range remove {
		if !table.remove(set, p.Addr()) {
			continue
		}
		if err := s.remove(set, p); err != nil {
			return err
		}
		if bucket, _, ok := set.Bucket(p.Addr()); ok && s.elsewhere != nil && s.elsewhere[bucket] == 0 {
			table.trim(bucket)
		}
	}
	return nil
}

// count counts an element of sdk.SetElementsMap that is added or removed.
func (s *Sets) count(set sdk.Set, p netip.Prefix, n int) {
	bucket, _, ok := set.Bucket(p.Addr())
	if !ok || s.elsewhere == nil {
		return
	}
	if s.elsewhere[bucket] += n; s.elsewhere[bucket] == 0 {
		delete(s.elsewhere, bucket)
	}
}

// put adds a prefix to a set, or an address as a prefix of full length. Tries are allocated on demand: the kernel
// returns ENOSPC when one is full, and E2BIG for a hash table.
func (s *Sets) put(set sdk.Set, p netip.Prefix) error {
	name, key := elementKey(set, p)
	err := s.maps[name].Update(key, uint32(1), ebpf.UpdateNoExist)
	if err == nil {
		s.count(set, p, 1)
	}
	if err == nil || errors.Is(err, ebpf.ErrKeyExist) {
		return nil
	}
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("%w: the kernel has room for %d elements of all sets together, and of those that replace them: "+
			"delete sets that no module uses, merge neighbouring prefixes, or change single elements instead of whole sets",
			ErrSetsFull, maxSetElements)
	}
	return fmt.Errorf("map %s: %w", name, err)
}

func (s *Sets) remove(set sdk.Set, p netip.Prefix) error {
	name, key := elementKey(set, p)
	err := s.maps[name].Delete(key)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("map %s: %w", name, err)
	}
	s.count(set, p, -1)
	return nil
}

func elementKey(set sdk.Set, p netip.Prefix) (name string, key any) {
	if set.Kind == sdk.SetKindPrefixes {
		return sdk.SetPrefixesMap, sdk.PrefixOf(set.Version, p)
	}
	return sdk.SetElementsMap, sdk.ElementOf(set.Version, p.Addr())
}

// sweep removes the elements of versions that belong to no set.
func (s *Sets) sweep() error {
	live := map[uint32]sdk.SetKind{}
	for id, set := range s.all {
		if id != allSets {
			live[set.Version] = set.Kind
		}
	}
	has := func(version uint32, kind sdk.SetKind) bool { return live[version] == kind }
	s.elsewhere = nil
	elsewhere := map[uint32]int{}
	err := errors.Join(
		sweepMap(s.maps[sdk.SetElementsMap], func(e sdk.SetElement) bool {
			kept, isIPv6 := has(e.Set>>1, sdk.SetKindTable), e.Set&1 != 0
			if kept && !isIPv6 {
				bucket, _ := e.Bucket()
				elsewhere[bucket]++
			}
			return kept
		}),
		sweepMap(s.maps[sdk.SetPrefixesMap], func(p sdk.SetPrefix) bool {
			return has(p.Element.Set>>1, sdk.SetKindPrefixes)
		}))
	table, tableErr := openTable(s.maps[sdk.SetTableMap], nil)
	if err != nil || tableErr != nil {
		return errors.Join(err, tableErr)
	}
	defer table.close()
	table.sweep(func(version uint32) bool { return has(version, sdk.SetKindTable) }, elsewhere)
	s.elsewhere = elsewhere
	return nil
}

// sweepMap removes the elements that are not to be kept. They are collected first: removing the current element of an
// iteration makes it start again.
func sweepMap[K any](m *ebpf.Map, keep func(K) bool) error {
	var old []K
	var key K
	var value uint32
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		if !keep(key) {
			old = append(old, key)
		}
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("read elements of sets: %w", err)
	}
	for _, key := range old {
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove elements of sets: %w", err)
		}
	}
	return nil
}
