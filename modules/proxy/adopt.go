// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"time"
)

// adopt takes over what is in the maps. After a restart packets continue by them, and ids, indices and runs keep their
// places: what the agent then sends again is found to be there already.
func (w *running) adopt(now time.Time) error {
	if err := w.adoptLocals(now); err != nil {
		return err
	}
	if err := w.adoptTargets(now); err != nil {
		return err
	}
	if err := w.adoptVirtuals(now); err != nil {
		return err
	}
	w.names = map[nameKey]name{}
	return each(w.maps.names, mapNames, func(keys []nameKey, values []name) {
		for i, k := range keys {
			w.names[k] = values[i]
		}
	})
}

// adoptLocals rebuilds the local interfaces from the maps of an earlier process. Each is marked gone since now until
// the agent names it, so that its sessions survive a restart of the control plane.
func (w *running) adoptLocals(now time.Time) error {
	l := &locals{maps: w.maps, module: w.live.Module, byIfindex: map[uint32]*localService{}, homes: map[address]uint32{}}
	w.locals = l
	taken := map[uint32]bool{}
	index := uint32(0)
	err := each(w.maps.locals, mapLocals, func(_ []uint32, entries []local) {
		for _, e := range entries {
			if e.Ifindex != 0 {
				l.byIfindex[e.Ifindex] = &localService{index: index, entry: e, gone: now}
				taken[index] = true
			}
			index++
		}
	})
	if err != nil {
		return err
	}
	l.indices = newNumbers(1, w.maps.locals.MaxEntries(), restFor, taken)
	err = each(w.maps.homes, mapHomes, func(addrs []address, ifindices []uint32) {
		for i, a := range addrs {
			l.homes[a] = ifindices[i]
		}
	})
	if err != nil {
		return err
	}
	return l.putAll(w.live.Attachments(), now)
}

// adoptTargets rebuilds the instances from the maps, so that indices in the sessions of the data plane keep their
// meaning after a restart. Index 0 means no instance.
func (w *running) adoptTargets(now time.Time) error {
	entries, err := readArray[instance](w.maps.instances, mapInstances)
	if err != nil {
		return err
	}
	owners, err := readArray[uint64](w.maps.owners, mapOwners)
	if err != nil {
		return err
	}
	taken := map[uint32]bool{}
	for i, identity := range owners {
		if identity == 0 || i == 0 {
			continue
		}
		t := &target{index: uint32(i), identity: identity, entry: entries[i]}
		if t.entry.Flags&instanceGone != 0 {
			t.gone = now
		}
		w.targets[identity], w.byIndex[t.index], taken[t.index] = t, t, true
	}
	w.indices = newNumbers(1, w.maps.instances.MaxEntries(), restFor, taken)
	return nil
}

func (w *running) adoptVirtuals(now time.Time) error {
	w.slots = newBlocks(w.maps.slots.MaxEntries(), restFor)
	taken := map[uint32]bool{}
	byID := map[uint32]*virtual{}
	var split []*virtual
	var negative []address
	var failed error
	err := each(w.maps.vips, mapVIPs, func(keys []address, values []vip) {
		for i, value := range values {
			if value.Flags&vipNegative != 0 {
				negative = append(negative, keys[i])
				continue
			}
			v := &virtual{addr: keys[i].addr(), value: value}
			if w.slots.adopt(value.First, value.Count) { // an empty one is not, and its place is free
				run, err := w.maps.run(value.First, value.Count)
				if failed = errors.Join(failed, err); err == nil {
					v.digest = digestOf(run)
				}
			}
			taken[value.ID] = true
			if id, port, ok := parseSplitKey(keys[i]); ok {
				v.parent, v.port = id, port
				split = append(split, v)
				continue
			}
			w.addresses[v.addr], byID[value.ID] = v, v
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	w.ids = newNumbers(1, w.maps.turns, restFor, taken)
	if err := removeAll(w.maps.vips, mapVIPs, negative); err != nil { // asked for again
		return err
	}
	if err := w.adoptSplit(split, byID, now); err != nil {
		return err
	}
	return w.adoptPorts(byID)
}

// adoptSplit gives runs of ports to their virtual addresses, by their IDs, and removes those whose address is gone.
func (w *running) adoptSplit(all []*virtual, virtuals map[uint32]*virtual, now time.Time) error {
	for _, of := range all {
		v := virtuals[of.parent]
		if v == nil {
			if err := remove(w.maps.vips, mapVIPs, w.keyOf(of)); err != nil {
				return err
			}
			w.releaseRun(of, now)
			continue
		}
		if v.split == nil {
			v.split = map[portID]*virtual{}
		}
		v.split[of.port] = of
	}
	return nil
}

// adoptPorts rebuilds the ports of virtual addresses, by their IDs, and the target ports of instances.
func (w *running) adoptPorts(virtuals map[uint32]*virtual) error {
	return each(w.maps.ports, mapPorts, func(keys []portKey, targets []port) {
		for i, k := range keys {
			entry := portEntry{portID{k.Port, k.Proto}, targets[i], k.Of}
			if t := w.byIndex[k.VIP]; t != nil && k.Of != 0 {
				t.ports = append(t.ports, entry)
			}
			if v := virtuals[k.VIP]; v != nil && k.Of == 0 {
				v.ports = append(v.ports, entry)
			}
		}
	})
}

// removeOrphans removes what the maps had before a restart and the agent has not sent.
func (w *running) removeOrphans(now time.Time) error {
	for _, v := range w.addresses {
		if v.service == nil {
			if err := w.dropVirtual(v, now); err != nil {
				return err
			}
		}
	}
	for _, t := range w.targets {
		if t.service == nil && t.gone.IsZero() {
			if err := w.retire(t, now); err != nil {
				return err
			}
		}
	}
	return nil
}
