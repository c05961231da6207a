// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"slices"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

func (t *target) hasPorts() bool {
	return slices.ContainsFunc(t.ports, func(p portEntry) bool { return p.of == portOfInstance })
}

func (t *target) portKey(p portEntry) portKey {
	return portKey{VIP: t.index, Port: p.port, Proto: p.proto, Of: p.of}
}

// putTargetPorts writes the target ports that an instance has of its own and, if the service has affinity, the ports
// that it does not serve. Those that it has no more stay in the map until virtual addresses lead to the target ports of
// their virtual service, or to the instance: dropTargetPorts.
func (w *running) putTargetPorts(t *target, vi *v1alpha1.VirtualInstance) error {
	all, excluded := entriesOf(vi.TargetPorts, portOfInstance), t.setExcluded(vi.ExcludedPorts)
	if t.service.sticky {
		all = append(all, excluded...)
	}
	for _, p := range all {
		if slices.Contains(t.ports, p) {
			continue
		}
		if err := w.maps.ports.Put(t.portKey(p), p.target); err != nil {
			return fmt.Errorf("port %d of instance %s: %w: raise tables.ports, which is %d", p.port.number(), t.name, err,
				w.maps.ports.MaxEntries())
		}
		t.ports = append(slices.DeleteFunc(t.ports, p.sameKey), p)
	}
	for _, p := range t.ports {
		if !slices.ContainsFunc(all, p.sameKey) {
			t.stale = append(t.stale, p)
		}
	}
	t.ports = all
	return nil
}

// dropTargetPorts removes the target ports that instances have no more.
func (w *running) dropTargetPorts(targets []*target) error {
	for _, t := range targets {
		for _, p := range t.stale {
			if slices.ContainsFunc(t.ports, p.sameKey) {
				continue
			}
			if err := remove(w.maps.ports, mapPorts, t.portKey(p)); err != nil {
				return err
			}
		}
		t.stale = nil
	}
	return nil
}

// forgetTargetPorts removes all target ports of an instance whose index is about to be another one's.
func (w *running) forgetTargetPorts(t *target) error {
	t.ports, t.stale = nil, append(t.stale, t.ports...)
	return w.dropTargetPorts([]*target{t})
}
