// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/kerbabi"
)

// A chain counts packets at its head, and packets for which a module returns another verdict than NEXT. The number of
// packets that each module saw follows from these. When a chain is removed, its counts are added to those that its
// modules keep (retiredMap), in all of their map sets, until these are removed.
const (
	countsMap  = "kerb_counts"
	retiredMap = "kerb_kept"
	countsPin  = "packets" // in the directory of a chain
)

// Count is struct kerb_count.
type Count struct{ Packets, Bytes uint64 }

func (c Count) plus(o Count) Count { return Count{c.Packets + o.Packets, c.Bytes + o.Bytes} }

// less subtracts without going below zero: the counters are not read atomically while packets are counted.
func (c Count) less(o Count) Count {
	return Count{c.Packets - min(o.Packets, c.Packets), c.Bytes - min(o.Bytes, c.Bytes)}
}

// Verdicts counts the packets that a module saw by kerbabi.Verdict, and their bytes at the head of the chain.
type Verdicts [kerbabi.VerdictCount]Count

// Sum returns the number of packets that the module saw.
func (v Verdicts) Sum() (n Count) {
	for _, c := range v {
		n = n.plus(c)
	}
	return n
}

func (v Verdicts) plus(o Verdicts) Verdicts {
	for i := range v {
		v[i] = v[i].plus(o[i])
	}
	return v
}

// CountKey identifies counters of a module.
type CountKey struct {
	Module    string
	Side      chain.Side
	Direction chain.Direction
}

// Stats are the verdicts and the latency of a module.
type Stats struct {
	Verdicts Verdicts
	Latency  Latency
}

func (s Stats) plus(o Stats) Stats {
	return Stats{s.Verdicts.plus(o.Verdicts), s.Latency.plus(o.Latency)}
}

// ChainStats are the counters of a chain since it was linked.
type ChainStats struct {
	Spec    chain.Spec
	Members []Stats
	Latency Latency // of the parser and all members
}

// Counts are the counters of all chains.
type Counts struct {
	Modules map[CountKey]Stats
	Chains  map[string]ChainStats // by identity of the chain
}

// countsSize returns the size of a chain's counters for one CPU, a multiple of the cache line with one line to spare:
// CPUs share no line, wherever the kernel places the value.
func (l *linker) countsSize() uint32 {
	const line = 64
	size := l.object.Maps[countsMap].ValueSize + uint32(binary.Size(Count{})*exits*len(l.members))
	return (size+line-1)/line*line + line
}

// newCounts creates the map for a chain's counters and dropped packets.
func (l *linker) newCounts() (*ebpf.Map, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	spec := l.object.Maps[countsMap].Copy()
	spec.ValueSize = uint32(cpus)*l.countsSize() + lastDropsSize
	return ebpf.NewMap(spec)
}

// cpuCounts are the counters of a chain on one CPU.
type cpuCounts []Count

// UnmarshalBinary implements encoding.BinaryUnmarshaler.
func (p *cpuCounts) UnmarshalBinary(b []byte) error {
	*p = make(cpuCounts, len(b)/binary.Size(Count{}))
	_, err := binary.Decode(b, binary.NativeEndian, *p)
	return err
}

// perCPUCounts reads the counters of all CPUs.
func perCPUCounts(m *ebpf.Map) (all []cpuCounts, err error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	var whole cpuCounts
	if err := m.Lookup(uint32(0), &whole); err != nil {
		return nil, err
	}
	if keepsDrops(m) {
		whole = whole[:(m.ValueSize()-lastDropsSize)/uint32(binary.Size(Count{}))]
	}
	for one := range slices.Chunk(whole, len(whole)/cpus) {
		all = append(all, one)
	}
	return all, nil
}

// readCounts derives the verdicts of each member of a chain.
func readCounts(m *ebpf.Map, members int) ([]Verdicts, error) {
	perCPU, err := perCPUCounts(m)
	if err != nil {
		return nil, fmt.Errorf("counts of a chain: %w", err)
	}
	all := make([]Count, 2+exits*members)
	for _, cpu := range perCPU {
		for i := range all {
			all[i] = all[i].plus(cpu[i])
		}
	}
	in, out := all[0], []Verdicts{} // all[1] is that of the last packet
	for exit := range slices.Chunk(all[2:], exits) {
		drop, reply, redirect, deferred := exit[0], exit[1], exit[2], exit[3]
		behind := in.less(drop).less(reply).less(redirect)
		out = append(out, Verdicts{kerbabi.Next: behind.less(deferred), kerbabi.Drop: drop, kerbabi.Reply: reply,
			kerbabi.Redirect: redirect.plus(deferred)})
		in = behind
	}
	return out, nil
}

// retired are the counters that a module keeps of removed chains, for a side and a direction.
type retired struct {
	Map uint64 // id of the counter map that was added last
	Stats
}

var retiredSides = []chain.Side{chain.OnXDP, chain.OnTCIngress, chain.OnTCEgress}
var retiredDirections = []chain.Direction{chain.Egress, chain.Ingress}

func retiredIndex(side chain.Side, dir chain.Direction) uint32 {
	return uint32(slices.Index(retiredSides, side)*len(retiredDirections) + slices.Index(retiredDirections, dir))
}

// countReader reads counters and dropped packets. Removing a chain and completing a map set exclude readers.
type countReader struct {
	mu   sync.Mutex
	kept []DroppedPacket       // of removed chains
	slow []SlowPacket          // the same
	next map[countedOnce]Count // what was read last
}

// countedOnce identifies a counter series that never decreases: with a new map of retired counters it starts again.
type countedOnce struct {
	CountKey
	retired ebpf.MapID
}

// rising keeps the difference of two counters from decreasing, which are read while packets are counted.
func (r *countReader) rising(key countedOnce, v Verdicts) Verdicts {
	if r.next == nil {
		r.next = map[countedOnce]Count{}
	}
	last := r.next[key]
	v[kerbabi.Next] = Count{max(v[kerbabi.Next].Packets, last.Packets), max(v[kerbabi.Next].Bytes, last.Bytes)}
	r.next[key] = v[kerbabi.Next]
	return v
}

// pinnedCounts are the counters of a chain, found by its pins.
type pinnedCounts struct {
	spec         chain.Spec
	id           string // of the chain
	m            *ebpf.Map
	mid          ebpf.MapID
	measurements // empty as long as the chain has no timed copy
}

// Close closes the maps.
func (c pinnedCounts) Close() {
	c.m.Close()
	c.measurements.Close()
}

// stats reads the counters of a chain.
func (c pinnedCounts) stats() (ChainStats, error) {
	return readStats(c.m, c.latency, len(c.spec.Members))
}

// readStats reads the verdicts of a chain's members, and latencies if the chain measures them. The first latency is
// that of the whole chain.
func readStats(counts, latency *ebpf.Map, members int) (out ChainStats, err error) {
	verdicts, err := readCounts(counts, members)
	if err != nil {
		return out, err
	}
	took := make([]Latency, 1+len(verdicts))
	if latency != nil {
		if took, err = readLatency(latency); err != nil {
			return out, err
		}
	}
	out.Latency = took[0]
	for i, v := range verdicts {
		out.Members = append(out.Members, Stats{v, took[1+i]})
	}
	return out, nil
}

// countedChains opens the counters of all chains that have some. The caller closes them. Chains whose counters cannot
// be opened are returned as unreadable.
func (d *Dataplane) countedChains() (out []pinnedCounts, unreadable []unreadableCounts, err error) {
	entries, err := os.ReadDir(d.layout.chains())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	for _, e := range entries {
		c, err := openCounted(filepath.Join(d.layout.chains(), e.Name()))
		if errors.Is(err, os.ErrNotExist) { // it is being removed
			continue
		}
		if err != nil {
			unreadable = append(unreadable, unreadableCounts{c.spec, fmt.Errorf("counts of chain %s: %w", e.Name(), err)})
			continue
		}
		out = append(out, c)
	}
	return out, unreadable, nil
}

// unreadableCounts is a chain whose counters cannot be read, and why.
type unreadableCounts struct {
	spec chain.Spec
	err  error
}

// openCounted opens the counts of the chain in a directory.
func openCounted(dir string) (c pinnedCounts, err error) {
	var ok bool
	if c.spec, c.id, ok = parseChainPin(filepath.Base(dir)); !ok {
		return c, os.ErrNotExist
	}
	members, _ := filepath.Glob(filepath.Join(dir, "m*")) // sorted
	for _, path := range members {
		if member, ok := parseMemberPin(filepath.Base(path)); ok {
			c.spec.Members = append(c.spec.Members, member)
		}
	}
	if c.m, c.mid, err = openCounts(filepath.Join(dir, countsPin)); err != nil {
		return c, err
	}
	if c.measurements, err = openMeasurements(dir); err != nil {
		c.Close()
		return c, err
	}
	return c, nil
}

// openCounts opens a pinned map. It also returns the map's id, which ensures that its counts are added only once.
func openCounts(pin string) (*ebpf.Map, ebpf.MapID, error) {
	m, err := pinnedMap(pin)
	if err != nil {
		return nil, 0, err
	}
	id, err := objectID(m.FD())
	if err != nil {
		m.Close()
		return nil, 0, err
	}
	return m, ebpf.MapID(id), nil
}

func closeCounts(all []pinnedCounts) {
	for _, c := range all {
		c.Close()
	}
}

// Counts reads the verdicts of all modules. It is safe for concurrent use. If the counters of a chain cannot be read,
// it returns an error and leaves out the chain's modules.
func (d *Dataplane) Counts() (Counts, error) {
	d.counts.mu.Lock()
	defer d.counts.mu.Unlock()
	out := Counts{map[CountKey]Stats{}, map[string]ChainStats{}}
	all, unreadable, err := d.countedChains()
	if err != nil {
		return out, err
	}
	defer closeCounts(all)
	kept, err := d.retiredMaps()
	if err != nil {
		return out, err
	}
	defer func() {
		for _, r := range kept {
			r.Close()
		}
	}()
	added := map[countedOnce]Stats{}
	for key, m := range kept {
		addRetired(added, key, m)
	}
	for _, c := range all {
		stats, err := c.stats()
		if err != nil {
			unreadable = append(unreadable, unreadableCounts{c.spec, fmt.Errorf("counts of chain %s: %w", c.id, err)})
			continue
		}
		stats.Spec = c.spec
		out.Chains[c.id] = stats
		for i, m := range c.spec.Members {
			key := CountKey{m.Name, c.spec.Side, c.spec.Direction}
			id, folded := retiredOf(kept, key, c.mid)
			if !folded {
				k := countedOnce{key, id}
				added[k] = added[k].plus(stats.Members[i])
			}
		}
	}
	for key, s := range added {
		s.Verdicts = d.counts.rising(key, s.Verdicts)
		out.Modules[key.CountKey] = out.Modules[key.CountKey].plus(s)
	}
	var errs []error
	for _, c := range unreadable { // otherwise counters of its modules would decrease, and later jump back
		errs = append(errs, c.err)
		for _, m := range c.spec.Members {
			delete(out.Modules, CountKey{m.Name, c.spec.Side, c.spec.Direction})
		}
	}
	return out, errors.Join(errs...)
}

// retiredKey is the key in a module's map of retired counters.
type retiredKey struct {
	module string
	id     ebpf.MapID
}

// retiredMaps opens the modules' maps of retired counters, which all map sets of a module share.
func (d *Dataplane) retiredMaps() (map[retiredKey]*ebpf.Map, error) {
	out := map[retiredKey]*ebpf.Map{}
	pins, err := filepath.Glob(filepath.Join(d.layout.modules(), "*", "*", retiredMap))
	if err != nil {
		return nil, err
	}
	for _, pin := range pins {
		m, id, err := openCounts(pin)
		if errors.Is(err, os.ErrNotExist) { // removed meanwhile
			continue
		}
		if err != nil {
			for _, opened := range out {
				opened.Close()
			}
			return nil, fmt.Errorf("counts that %s keeps: %w", pin, err)
		}
		key := retiredKey{filepath.Base(filepath.Dir(filepath.Dir(pin))), id}
		if out[key] != nil {
			m.Close()
			continue
		}
		out[key] = m
	}
	return out, nil
}

func addRetired(out map[countedOnce]Stats, key retiredKey, m *ebpf.Map) {
	for _, side := range retiredSides {
		for _, dir := range retiredDirections {
			var r retired
			if err := m.Lookup(retiredIndex(side, dir), &r); err == nil && r.Verdicts.Sum().Packets > 0 {
				out[countedOnce{CountKey{key.module, side, dir}, key.id}] = r.Stats
			}
		}
	}
}

// retiredOf returns the map to which the counts of a module are added, and whether they have been added already, which
// is the case if an agent was killed while it removed the chain.
func retiredOf(kept map[retiredKey]*ebpf.Map, at CountKey, chainCounts ebpf.MapID) (id ebpf.MapID, folded bool) {
	for key, m := range kept {
		if key.module != at.Module {
			continue
		}
		id = max(id, key.id)
		var r retired
		err := m.Lookup(retiredIndex(at.Side, at.Direction), &r)
		folded = folded || err == nil && r.Map == uint64(chainCounts)
	}
	return id, folded
}

// removeCounted removes a chain. Its modules keep its counts.
func (d *Dataplane) removeCounted(dir string) error {
	d.counts.mu.Lock()
	defer d.counts.mu.Unlock()
	if err := d.retire(dir); err != nil {
		return fmt.Errorf("keep the counts of a chain: %w", err)
	}
	return removePins(dir)
}

// retire adds the counts of a chain that is about to be removed to those of its members' map sets, so that counters of
// modules never decrease. The id of the map makes this idempotent: after a kill, the next agent adds nothing twice.
func (d *Dataplane) retire(dir string) error {
	c, err := openCounted(dir)
	if errors.Is(err, os.ErrNotExist) { // there is no such chain, or an older agent made it
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	if err := errors.Join(d.keepDrops(c), d.keepSlow(c)); err != nil {
		return err
	}
	stats, err := c.stats()
	if err != nil {
		return err
	}
	for i, m := range c.spec.Members {
		pin := filepath.Join(d.layout.mapSet(m.Name, m.ID), retiredMap)
		if err := addTo(pin, retiredIndex(c.spec.Side, c.spec.Direction), uint64(c.mid), stats.Members[i]); err != nil {
			return err
		}
	}
	return nil
}

// addTo adds the counts of a map to those that a module keeps. One system call writes the sum and the id of the map.
func addTo(pin string, index uint32, from uint64, s Stats) error {
	m, err := pinnedMap(pin)
	if errors.Is(err, os.ErrNotExist) { // the module is being removed
		return nil
	}
	if err != nil {
		return err
	}
	defer m.Close()
	var r retired
	if err := m.Lookup(index, &r); err != nil || r.Map == from {
		return err
	}
	return m.Put(index, retired{from, r.Stats.plus(s)})
}
