// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
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
}

// portEntry is an entry of ports, without the virtual address.
type portEntry struct {
	port, target port
	proto        uint8
}

// sameKey reports whether both are of the same port and protocol.
func (p portEntry) sameKey(o portEntry) bool { return o.port == p.port && o.proto == p.proto }

func entriesOf(all []v1alpha1.VirtualPort) (out []portEntry) {
	for _, p := range all {
		to := cmp.Or(p.TargetPort, p.Port)
		out = append(out, portEntry{portOf(p.Port), portOf(to), protocols[cmp.Or(p.Protocol, v1alpha1.ProtocolTCP)]})
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

// putVirtuals writes the addresses of a service.
func (w *running) putVirtuals(s *service, all []v1alpha1.VirtualAddress, now time.Time) error {
	s.virtuals = make([]*virtual, 0, len(all))
	for i := range all {
		a, err := netip.ParseAddr(all[i].Address)
		if err != nil {
			s.trouble = err
			continue
		}
		v, err := w.virtualAt(a.Unmap(), s, now)
		if err != nil {
			return err
		}
		if v == nil {
			continue
		}
		s.virtuals = append(s.virtuals, v)
		v.policy, v.only = cmp.Or(all[i].Policy, v1alpha1.PolicyRoundRobin), all[i].Instance
		v.affinity, _ = time.ParseDuration(all[i].AffinityTimeout) // the agent has checked it; absent: 0
		if err := w.writeVirtual(v, w.run(v, now), now); err != nil {
			return err
		}
	}
	return nil
}

// virtualAt returns the virtual address of a service, which may have been another one's. It is nil if there is no room.
func (w *running) virtualAt(a netip.Addr, s *service, now time.Time) (*virtual, error) {
	if v := w.addresses[a]; v != nil {
		if v.service != nil && v.service != s {
			v.service.virtuals = slices.DeleteFunc(v.service.virtuals, func(o *virtual) bool { return o == v })
		}
		v.service = s
		return v, nil
	}
	id, ok := w.ids.take(now)
	if !ok {
		s.trouble = fmt.Errorf("no room for address %s: raise tables.addresses, which is %d", a, w.config.Tables.Addresses)
		return nil, nil
	}
	v := &virtual{addr: a, service: s, value: vip{ID: id}}
	w.addresses[a] = v
	return v, nil
}

// run is the run of slots for a virtual address: what its policy makes of the instances that take new sessions.
func (w *running) run(v *virtual, now time.Time) []uint32 {
	var able []*target
	for _, t := range v.service.targets {
		if !t.drains && t.has(v.addr.Is4()) && (v.only == "" || v.only == t.name) {
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
		return w.table.of(membersOf(able), maglevSize(len(able), w.share()))
	case v1alpha1.PolicyClosest:
		if v.nearest == nil {
			v.nearest = &closest{}
		}
		return v.nearest.rank(w.candidates(able), now)
	}
	return indicesOf(able)
}

// share is how many slots a Maglev table has per instance: fewer when slots become scarce.
func (w *running) share() int {
	if int(w.slots.used) > int(w.maps.slots.MaxEntries())/4*3 {
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

// writeVirtual makes an address serve a run: the run first, into a place that no packet reads, then the ports that are
// new, then the address itself. The old run rests before it is written over.
//
// If the address is about to respect target ports of instances, it does so before the ports change: an instance that
// keeps its target port by one of its own must not get the new one of the virtual service meanwhile.
func (w *running) writeVirtual(v *virtual, run []uint32, now time.Time) error {
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
	digest := digestOf(run)
	if digest != v.digest {
		first, ok := w.slots.take(uint32(len(run)), now)
		if !ok {
			v.service.trouble = fmt.Errorf("no room for %d slots of address %s: raise tables.slots, which is %d", len(run),
				v.addr, w.maps.slots.MaxEntries())
			digest = v.digest // the run that there is stays
		} else {
			// No packet reads there, until the address refers to it.
			if err := w.maps.withRun(first, uint32(len(run)), func(slots []slot) {
				for i, index := range run {
					slots[i].index = index
				}
			}); err != nil {
				w.slots.release(first, now)
				return err
			}
			next.First, next.Count = first, uint32(len(run))
		}
	}
	before := v.ports
	if v.digest != 0 && next.Flags&^v.value.Flags&vipTargets != 0 {
		old := v.value
		old.Flags |= vipTargets
		if err := write(w.maps.vips, mapVIPs, addressOf(v.addr), old); err != nil {
			return err
		}
		v.value = old
	}
	if err := w.writePorts(v); err != nil {
		return err
	}
	if next != v.value || v.digest == 0 {
		if err := write(w.maps.vips, mapVIPs, addressOf(v.addr), next); err != nil {
			return err
		}
		w.negative.remove(v.addr)
		if digest != v.digest && v.digest != 0 {
			w.slots.release(v.value.First, now)
		}
		v.value, v.digest = next, digest
	}
	return w.dropPorts(v, before)
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

// writePorts adds the ports of the service to an address, or changes where they lead. Those that it has no more are
// left.
func (w *running) writePorts(v *virtual) error {
	all := entriesOf(v.service.ports)
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
	if err := remove(w.maps.vips, mapVIPs, addressOf(v.addr)); err != nil {
		return err
	}
	ports := v.ports
	v.ports = nil
	if err := w.dropPorts(v, ports); err != nil {
		return err
	}
	if v.digest != 0 {
		w.slots.release(v.value.First, now)
	}
	w.ids.release(v.value.ID, now)
	delete(w.addresses, v.addr)
	return nil
}
