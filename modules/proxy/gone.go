// SPDX-License-Identifier: Apache-2.0

package proxy

import "time"

// removedPeers are the clients and instances whose sessions cannot continue.
type removedPeers struct {
	clients   map[uint32]bool // ifindex: there
	instances map[uint32]bool
	ports     map[portKey]bool // of UDP, that instances do not serve any more
	before    time.Time
}

// gone takes, under the lock, a copy of what the sweep needs to know about removed interfaces and instances, so that
// the sweep itself can run without it.
func (w *running) gone(now time.Time) removedPeers {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := removedPeers{clients: map[uint32]bool{}, instances: map[uint32]bool{}, ports: map[portKey]bool{},
		before: now.Add(-goneFor)}
	for ifindex, l := range w.locals.byIfindex {
		g.clients[ifindex] = l.gone.IsZero() || now.Sub(l.gone) < absentFor
	}
	for _, t := range w.targets {
		if !t.gone.IsZero() && t.gone.Before(g.before) {
			g.instances[t.index] = true
		}
		for _, p := range t.excluded {
			if p.proto == protoUDP && !p.drains {
				g.ports[t.portKey(portEntry{portID: p.portID, of: notOfInstance})] = true
			}
		}
	}
	return g
}

// absentFor is how long sessions of a client are kept whose interface is missing: a service that is only being
// registered again continues.
const absentFor = 30 * time.Second

func (g *removedPeers) has(k *flow, e *session) bool {
	client, port := k.Ifindex, k.DPort
	if e.Flags&sessionReverse != 0 {
		client, port = e.Other, e.SPort
	}
	return !g.clients[client] || g.instances[e.Instance] || g.ports[portKey{e.Instance, port, k.Proto, notOfInstance}]
}
