// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// keyOf is the key of an instance's name by its index.
func keyOf(index uint32, v4 bool) nameKey {
	k := nameKey{Ifindex: nameByInstance | index}
	if v4 {
		binary.NativeEndian.PutUint32(k.Addr[12:], 1)
	}
	return k
}

// wantedNames are the virtual addresses that instances send by. Of several that stand for the same instance the first
// one counts, by the name of the service.
func (w *running) wantedNames() map[nameKey]name {
	out, interfaces := map[nameKey]name{}, map[uint32]uint32{}
	for ifindex, l := range w.locals.byIfindex {
		interfaces[l.index] = ifindex
	}
	flags := uint32(0)
	if w.config.Source != sourceInstance {
		flags = nameRetired
	}
	for _, service := range slices.Sorted(maps.Keys(w.services)) {
		s, targets := w.services[service], map[string]*target{}
		for _, t := range s.targets {
			targets[t.name] = t
		}
		for _, v := range s.virtuals {
			t := targets[v.only]
			if v.only == "" || t == nil {
				continue
			}
			if byIndex := keyOf(t.index, v.addr.Is4()); !t.has(v.addr.Is4()) {
				if _, taken := out[byIndex]; !taken { // sessions of before have it
					out[byIndex] = name{addressOf(v.addr), flags}
				}
				continue
			}
			own, virtual, ifindex := t.place().Addr6, addressOf(v.addr), interfaces[t.place().Local]
			if v.addr.Is4() {
				own = addressOf(netip.AddrFrom4(t.place().Addr4))
			}
			if _, taken := out[nameKey{own, ifindex}]; taken {
				continue
			}
			out[nameKey{own, ifindex}] = name{virtual, flags}
			out[keyOf(t.index, v.addr.Is4())] = name{virtual, flags}
			if ifindex != 0 {
				out[nameKey{virtual, ifindex}] = name{own, flags | nameVirtual}
			}
		}
	}
	return out
}

// syncNames writes the names. One that is not wanted any more is retired, as sessions may have it, while its interface
// is there and no other instance is called so; by index it goes with the instance. Until all virtual services have been
// received, nothing else is known to be not wanted. What fails, as when the table is full, is tried again by the sweep:
// those instances have no name meanwhile, and all else works. w.mu is held.
func (w *running) syncNames() {
	if w.config.Source != sourceInstance && len(w.names) == 0 {
		return
	}
	want, failed := w.wantedNames(), error(nil)
	used := map[address]bool{} // virtual addresses, by whichever instance
	for k, n := range want {
		if k.Ifindex&nameByInstance == 0 {
			used[n.Other] = true
		}
	}
	for k, n := range w.names {
		if _, wanted := want[k]; wanted {
			continue
		}
		l, byInstance := w.locals.byIfindex[k.Ifindex], k.Ifindex&nameByInstance != 0
		switch {
		case byInstance && w.byIndex[k.Ifindex&^nameByInstance] != nil, !byInstance && !w.synced:
			want[k] = n
		case l != nil && l.gone.IsZero() && !used[k.Addr] && !used[n.Other]:
			want[k] = name{n.Other, n.Flags | nameRetired}
		default:
			if err := remove(w.maps.names, mapNames, k); err != nil {
				want[k], failed = n, err
			}
		}
	}
	missing := 0
	for k, n := range want {
		before, there := w.names[k]
		if there && before == n {
			continue
		}
		if err := write(w.maps.names, mapNames, k, n); err != nil {
			failed = err
			if delete(want, k); there {
				want[k] = before
			}
			missing++
		}
	}
	if missing > 0 {
		failed = fmt.Errorf("%d of at most %d are missing, have fewer instances with an address of their own: %w", missing,
			w.maps.names.MaxEntries(), failed)
	}
	w.names = want
	w.trouble("names of instances", failed)
}

func (w *running) currentNames() map[nameKey]name {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.names
}
