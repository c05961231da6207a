// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// exclusion is a port of the virtual service that an instance does not serve.
type exclusion struct {
	portID
	drains bool // sessions that there are continue
}

func (t *target) excludes() bool { return len(t.excluded) > 0 }

// serves reports whether the instance gets new sessions to a port. The zero port stands for any.
func (t *target) serves(p portID) bool {
	if p == (portID{}) {
		return true
	}
	for _, e := range t.excluded {
		if e.portID == p {
			return false
		}
	}
	return true
}

// setExcluded takes over which ports an instance does not serve, and returns the entries that the data plane needs
// where it remembers instances of clients.
func (t *target) setExcluded(all []v1alpha1.ExcludedPort) (out []portEntry) {
	t.excluded = nil
	for _, p := range all {
		e := exclusion{portIDOf(p.Port, p.Protocol), p.Draining}
		t.excluded = append(t.excluded, e)
		out = append(out, portEntry{portID: e.portID, of: notOfInstance})
	}
	return out
}

// splitKey is px_port_addr(): the key of vips for one port of the virtual address with an ID.
func splitKey(id uint32, p portID) (a address) {
	a[0] = 0xff
	binary.NativeEndian.PutUint32(a[4:], id)
	binary.NativeEndian.PutUint32(a[8:], uint32(binary.NativeEndian.Uint16(p.port[:])))
	binary.NativeEndian.PutUint32(a[12:], uint32(p.proto))
	return a
}

// parseSplitKey undoes splitKey; false if it is the key of an address.
func parseSplitKey(a address) (id uint32, p portID, ok bool) {
	id = binary.NativeEndian.Uint32(a[4:])
	binary.NativeEndian.PutUint16(p.port[:], uint16(binary.NativeEndian.Uint32(a[8:])))
	p.proto = uint8(binary.NativeEndian.Uint32(a[12:]))
	return id, p, splitKey(id, p) == a
}

func (w *running) keyOf(v *virtual) address {
	if v.port != (portID{}) {
		return splitKey(v.parent, v.port)
	}
	return addressOf(v.addr)
}

// splitPorts are the ports of a service that not all of its instances serve.
func (s *service) splitPorts() map[portID]bool {
	out := map[portID]bool{}
	for _, t := range s.targets {
		for _, e := range t.excluded {
			out[e.portID] = true
		}
	}
	return out
}

// writeSplit writes the runs of the ports that not all instances serve. It returns those that there is no room for:
// they are not served, as the run of the address has instances that do not serve them.
func (w *running) writeSplit(v *virtual, now time.Time) (full map[portID]bool, err error) {
	full = map[portID]bool{}
	for id := range v.service.splitPorts() {
		of := v.split[id]
		if of == nil {
			number, ok := w.ids.take(now)
			if !ok {
				full[id] = true
				v.service.trouble = fmt.Errorf("no room for port %d of address %s, which not all instances serve: raise "+
					"tables.addresses, which is %d", id.port.number(), v.addr, w.config.Tables.Addresses)
				continue
			}
			of = &virtual{value: vip{ID: number}, port: id, parent: v.value.ID}
			if v.split == nil {
				v.split = map[portID]*virtual{}
			}
			v.split[id] = of
		}
		of.addr, of.service, of.policy, of.only, of.affinity = v.addr, v.service, v.policy, v.only, v.affinity
		next, run := w.valueOf(of), w.run(of, now)
		if of.digest == 0 && !w.slots.has(uint32(len(run)), now) {
			full[id], v.service.trouble = true, w.noSlots(of, run)
			if err := w.dropRun(v, id, now); err != nil {
				return full, err
			}
			continue
		}
		digest, err := w.placeRun(of, &next, run, now)
		if err != nil {
			return full, err
		}
		if err := w.writeValue(of, next, digest, now); err != nil {
			w.releaseUnread(of, &next, digest, now)
			return full, err
		}
	}
	return full, nil
}

// dropSplit removes the runs of ports that all instances serve, or that the service has no more: the address leads to
// all instances by now.
func (w *running) dropSplit(v *virtual, now time.Time) error {
	wanted := v.service.splitPorts()
	for id := range v.split {
		if !wanted[id] {
			if err := w.dropRun(v, id, now); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *running) dropRun(v *virtual, id portID, now time.Time) error {
	of := v.split[id]
	if err := remove(w.maps.vips, mapVIPs, w.keyOf(of)); err != nil {
		return err
	}
	w.releaseRun(of, now)
	delete(v.split, id)
	return nil
}
