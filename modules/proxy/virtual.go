// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"net/netip"
	"slices"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// virtual is a virtual address.
type virtual struct {
	addr    netip.Addr
	service *service
	policy  v1alpha1.Policy
	only    string // name of the one instance that it stands for
	// how long after the beginning of a client's session its next one gets the same instance; 0: chosen each time
	affinity time.Duration
	value    vip    // in the map
	digest   uint64 // of the run of slots
	ports    []portEntry
	nearest  *closest
	// of the ports that not all instances serve: what new sessions to them choose from
	split map[portID]*virtual
	// of one of those: its port, and the ID of its address; else zero
	port   portID
	parent uint32
}

// portID identifies a port of a virtual service.
type portID struct {
	port  port
	proto uint8
}

func portIDOf(n uint16, p v1alpha1.Protocol) portID {
	return portID{portOf(n), protocols[cmp.Or(p, v1alpha1.ProtocolTCP)]}
}

// portEntry is an entry of ports, without what it is of.
type portEntry struct {
	portID
	target port
	of     uint8 // 0, portOfInstance, notOfInstance
}

// sameKey reports whether both have the same key, if they are of the same virtual address or instance.
func (p portEntry) sameKey(o portEntry) bool { return o.portID == p.portID && o.of == p.of }

func entriesOf(all []v1alpha1.VirtualPort, of uint8) (out []portEntry) {
	for _, p := range all {
		out = append(out, portEntry{portIDOf(p.Port, p.Protocol), portOf(cmp.Or(p.TargetPort, p.Port)), of})
	}
	return out
}

var (
	policies = map[v1alpha1.Policy]uint8{
		v1alpha1.PolicyRoundRobin: policyTurns, v1alpha1.PolicyWeighted: policyTurns, v1alpha1.PolicyClosest: policyTurns,
		v1alpha1.PolicyLeastConnections: policyLeast, v1alpha1.PolicySourceAffinity: policyHashSource,
		v1alpha1.PolicyConsistentHash: policyHashFlow,
	}
	protocols = map[v1alpha1.Protocol]uint8{v1alpha1.ProtocolTCP: protoTCP, v1alpha1.ProtocolUDP: protoUDP,
		v1alpha1.ProtocolSCTP: protoSCTP}
)

// putVirtuals writes the addresses of a service. One that has no instance yet, and gets none because a table is full,
// is left out of the maps: its packets continue to whatever else serves it, such as kube-proxy.
func (w *running) putVirtuals(s *service, all []v1alpha1.VirtualAddress, now time.Time) error {
	s.virtuals = make([]*virtual, 0, len(all))
	for i := range all {
		a, err := netip.ParseAddr(all[i].Address)
		if err != nil {
			s.trouble = err
			continue
		}
		v, moved := w.virtualAt(a.Unmap(), s)
		known := w.addresses[v.addr] == v
		v.policy, v.only = cmp.Or(all[i].Policy, v1alpha1.PolicyRoundRobin), all[i].Instance
		v.affinity, _ = time.ParseDuration(all[i].AffinityTimeout) // the agent has checked it; absent: 0
		run := w.run(v, now)
		room := v.value.Count > 0 && !moved || w.hasRoom(v, run, now)
		switch {
		case !room && known:
			if err := w.dropVirtual(v, now); err != nil {
				return err
			}
			continue
		case !room || !known && !w.register(v, now):
			continue
		}
		s.virtuals = append(s.virtuals, v)
		if err := w.writeVirtual(v, run, now); err != nil {
			return err
		}
	}
	return nil
}

// hasRoom reports whether there is room for the first run of an address, and for an instance of it.
func (w *running) hasRoom(v *virtual, run []uint32, now time.Time) bool {
	switch {
	case len(run) == 0 && v.service.lacking:
		return false
	case digestOf(run) == v.digest || w.slots.has(uint32(len(run)), now):
		return true
	}
	v.service.trouble = w.noSlots(v, run)
	return false
}

// noSlots notes that a run has no room, and returns the error.
func (w *running) noSlots(v *virtual, run []uint32) error {
	if n := uint32(len(run)); v.service.short == 0 || n < v.service.short {
		v.service.short = n
	}
	return fmt.Errorf("no room for %d slots of address %s: raise tables.slots, which is %d", len(run), v.addr,
		w.maps.slots.MaxEntries())
}

// virtualAt returns the virtual address of a service, and whether it has been another one's. A new one has no ID yet.
func (w *running) virtualAt(a netip.Addr, s *service) (v *virtual, moved bool) {
	v = w.addresses[a]
	if v == nil {
		return &virtual{addr: a, service: s}, false
	}
	if moved = v.service != nil && v.service != s; moved {
		v.service.virtuals = slices.DeleteFunc(v.service.virtuals, func(o *virtual) bool { return o == v })
	}
	v.service = s
	return v, moved
}

// register gives a new address its ID, and reports whether there was one left.
func (w *running) register(v *virtual, now time.Time) bool {
	id, ok := w.ids.take(now)
	if !ok {
		v.service.trouble = fmt.Errorf("no room for address %s: raise tables.addresses, which is %d", v.addr,
			w.config.Tables.Addresses)
		return false
	}
	v.value.ID = id
	w.addresses[v.addr] = v
	return true
}

// run is the run of slots for a virtual address: what its policy makes of the instances that take new sessions.
func (w *running) run(v *virtual, now time.Time) []uint32 {
	var able []*target
	for _, t := range v.service.targets {
		if !t.drains && t.serves(v.port) && t.has(v.addr.Is4()) && (v.only == "" || v.only == t.name) {
			able = append(able, t)
		}
	}
	able = healthy(able)
	if len(able) < 2 {
		return indicesOf(able)
	}
	switch v.policy {
	case v1alpha1.PolicyWeighted:
		return sequence(membersOf(able))
	case v1alpha1.PolicySourceAffinity, v1alpha1.PolicyConsistentHash:
		return w.table.of(membersOf(able), maglevSize(len(able), w.share(v)))
	case v1alpha1.PolicyClosest:
		if v.nearest == nil {
			v.nearest = &closest{}
		}
		return v.nearest.rank(w.candidates(able), now)
	}
	return indicesOf(able)
}

// share is how many slots a Maglev table has per instance: fewer with affinity, and when slots become scarce. Those
// that rest do not count, or a service that changes often would have the tables of others change their size.
func (w *running) share(v *virtual) int {
	if v.affinity > 0 || w.slots.used-w.slots.rested > w.maps.slots.MaxEntries()/4*3 {
		return maglevScarce
	}
	return maglevShare
}

func indicesOf(all []*target) []uint32 {
	out := make([]uint32, len(all))
	for i, t := range all {
		out[i] = t.index
	}
	return out
}

func membersOf(all []*target) []member {
	out := make([]member, len(all))
	for i, t := range all {
		out[i] = member{t.index, t.identity, t.weight}
	}
	return out
}

func (w *running) candidates(all []*target) []candidate {
	out := make([]candidate, len(all))
	for i, t := range all {
		out[i] = candidate{t.index, t.distance, time.Duration(w.maps.stats[t.index].rtt())}
	}
	return out
}

// writeVirtual makes an address serve a run: the run first, into a place that no packet reads, then the runs of ports
// that not all instances serve, then the ports that are new, then the address itself. The old run rests before it is
// written over.
//
// If the address is about to respect target ports of instances, or to have runs of ports, it does so before the ports
// change: an instance that keeps its target port by one of its own must not get the new one of the virtual service
// meanwhile, nor get sessions to a new port that it does not serve.
func (w *running) writeVirtual(v *virtual, run []uint32, now time.Time) error {
	next := w.valueOf(v)
	digest, err := w.placeRun(v, &next, run, now)
	if err != nil {
		return err
	}
	defer w.releaseUnread(v, &next, digest, now)
	full, err := w.writeSplit(v, now)
	if err != nil {
		return err
	}
	before := v.ports
	if early := next.Flags &^ v.value.Flags & (vipTargets | vipSplit); v.digest != 0 && early != 0 {
		old := v.value
		old.Flags |= early
		if err := write(w.maps.vips, mapVIPs, w.keyOf(v), old); err != nil {
			return err
		}
		v.value = old
	}
	if err := w.writePorts(v, full); err != nil {
		return err
	}
	if err := w.writeValue(v, next, digest, now); err != nil {
		return err
	}
	return errors.Join(w.dropPorts(v, before), w.dropSplit(v, now))
}

// valueOf returns what an address has in the map but for its run.
func (w *running) valueOf(v *virtual) vip {
	next := v.value
	next.Policy, next.Flags, next.Expires = policies[v.policy], 0, 0
	if len(v.service.ports) > 0 {
		next.Flags = vipPorts
	}
	if w.config.Source == sourceInstance && v.only != "" {
		next.Flags |= vipAnswers
	}
	if v.affinity > 0 {
		next.Flags |= vipAffinity
		next.Expires = affinityTerm(v.affinity, v.service.name)
	}
	if slices.ContainsFunc(v.service.targets, (*target).hasPorts) {
		next.Flags |= vipTargets
	}
	if slices.ContainsFunc(v.service.targets, (*target).excludes) {
		next.Flags |= vipSplit
	}
	return next
}

// placeRun writes a run to a place of its own, where no packet reads until the address refers to it, and returns its
// digest. Without room, the run that there is stays.
func (w *running) placeRun(v *virtual, next *vip, run []uint32, now time.Time) (uint64, error) {
	digest := digestOf(run)
	if digest == v.digest {
		return digest, nil
	}
	first, ok := w.slots.take(uint32(len(run)), now)
	if !ok {
		v.service.trouble = w.noSlots(v, run)
		return v.digest, nil
	}
	if err := w.maps.withRun(first, uint32(len(run)), func(slots []slot) {
		for i, index := range run {
			slots[i].index = index
		}
	}); err != nil {
		w.slots.release(first, now)
		return 0, err
	}
	next.First, next.Count = first, uint32(len(run))
	return digest, nil
}

// releaseUnread releases a run that was placed if the write that makes packets read it has failed.
func (w *running) releaseUnread(v *virtual, next *vip, digest uint64, now time.Time) {
	if digest != v.digest {
		w.slots.release(next.First, now)
	}
}

// writeValue makes packets read a value, and so its run.
func (w *running) writeValue(v *virtual, next vip, digest uint64, now time.Time) error {
	if next == v.value && v.digest != 0 {
		return nil
	}
	if err := write(w.maps.vips, mapVIPs, w.keyOf(v), next); err != nil {
		return err
	}
	if v.port == (portID{}) {
		w.negative.remove(v.addr)
	}
	if digest != v.digest && v.digest != 0 {
		w.slots.release(v.value.First, now)
	}
	v.value, v.digest = next, digest
	return nil
}

var seed = maphash.MakeSeed()

// digestOf a run is never 0, which stands for none.
func digestOf(run []uint32) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, index := range run {
		h.Write([]byte{byte(index), byte(index >> 8), byte(index >> 16), byte(index >> 24)})
	}
	return h.Sum64() | 1
}

// writePorts adds the ports of the service to an address, or changes where they lead, except those that were found to
// have no room. Those that it has no more are left.
func (w *running) writePorts(v *virtual, full map[portID]bool) error {
	all := slices.DeleteFunc(entriesOf(v.service.ports, 0), func(p portEntry) bool { return full[p.portID] })
	for _, p := range all {
		if slices.Contains(v.ports, p) {
			continue
		}
		if err := w.maps.ports.Put(portKey{VIP: v.value.ID, Port: p.port, Proto: p.proto}, p.target); err != nil {
			v.service.trouble = fmt.Errorf("port %d of address %s: %w: raise tables.ports, which is %d", p.port.number(), v.addr,
				err, w.maps.ports.MaxEntries())
			all = slices.DeleteFunc(slices.Clone(all), func(o portEntry) bool { return o == p })
		}
	}
	v.ports = all
	return nil
}

// dropPorts removes those of before that the address has no more.
func (w *running) dropPorts(v *virtual, before []portEntry) error {
	for _, p := range before {
		if slices.ContainsFunc(v.ports, p.sameKey) {
			continue
		}
		if err := remove(w.maps.ports, mapPorts, portKey{VIP: v.value.ID, Port: p.port, Proto: p.proto}); err != nil {
			return err
		}
	}
	return nil
}

// dropVirtuals removes the addresses of before that the service has no more, and that no other service has taken over.
func (w *running) dropVirtuals(s *service, before []*virtual, now time.Time) error {
	for _, v := range before {
		if v.service != s || slices.Contains(s.virtuals, v) {
			continue
		}
		if err := w.dropVirtual(v, now); err != nil {
			return err
		}
	}
	return nil
}

// dropVirtual removes the address from the data plane first, then frees what it referred to. Slots and the ID rest
// before reuse, because packets in flight may still hold them.
func (w *running) dropVirtual(v *virtual, now time.Time) error {
	if err := remove(w.maps.vips, mapVIPs, w.keyOf(v)); err != nil {
		return err
	}
	ports := v.ports
	v.ports = nil
	if err := w.dropPorts(v, ports); err != nil {
		return err
	}
	for id := range v.split {
		if err := w.dropRun(v, id, now); err != nil {
			return err
		}
	}
	w.releaseRun(v, now)
	w.negative.remove(v.addr) // had the same key
	delete(w.addresses, v.addr)
	v.service = nil
	return nil
}

// releaseRun releases the run that an entry of the map referred to.
func (w *running) releaseRun(v *virtual, now time.Time) {
	if v.digest != 0 {
		w.slots.release(v.value.First, now)
	}
	w.ids.release(v.value.ID, now)
}
