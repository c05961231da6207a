// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// locals are the services of this node that have the proxy on their interfaces.
type locals struct {
	maps      *mapSet
	module    string
	indices   *numbers
	byIfindex map[uint32]*localService
	byAddress map[netip.Addr][]*localService
	homes     map[address]uint32 // what the map of that name has
}

type localService struct {
	sdk.Attachment
	index uint32
	entry local
	gone  time.Time // when it was missed first
}

// entryOf is what the data plane is notified of an interface. One of the node itself is only a client there: what is
// for it, the stack has to deliver.
func (l *locals) entryOf(i sdk.Attachment) local {
	e := local{Ifindex: i.Ifindex}
	mac, err := net.ParseMAC(i.MAC)
	if i.Service == "" || err != nil || len(mac) != len(e.MAC) {
		return e
	}
	e.MAC = [6]byte(mac)
	if slices.Equal(i.Ingress, []string{l.module}) {
		e.Flags = localPeer
	}
	return e
}

// put makes an interface known: first what it is, then that it is there.
func (l *locals) put(i sdk.Attachment, now time.Time) error {
	s := l.byIfindex[i.Ifindex]
	if s == nil {
		index, ok := l.indices.take(now)
		if !ok {
			return nil // packets to it take the ordinary way
		}
		s = &localService{index: index}
		l.byIfindex[i.Ifindex] = s
	}
	known := s.entry.Ifindex != 0 && s.gone.IsZero()
	s.Attachment, s.gone = i, time.Time{}
	if e := l.entryOf(i); e != s.entry {
		if err := write(l.maps.locals, mapLocals, s.index, e); err != nil {
			return err
		}
		s.entry = e
	}
	if err := l.index(); err != nil || known {
		return err
	}
	return write(l.maps.interfaces, mapInterfaces, i.Ifindex, s.index)
}

// putAll makes the interfaces known that there are now; all others are gone.
func (l *locals) putAll(all []sdk.Attachment, now time.Time) error {
	l.byAddress = map[netip.Addr][]*localService{}
	there := map[uint32]bool{}
	for _, i := range all {
		there[i.Ifindex] = true
		if err := l.put(i, now); err != nil {
			return err
		}
	}
	for ifindex, s := range l.byIfindex {
		if there[ifindex] {
			continue
		}
		s.gone = time.Time{} // to go now
		if err := l.remove(ifindex, now); err != nil {
			return err
		}
	}
	return nil
}

// index finds the addresses of services again.
func (l *locals) index() error {
	clear(l.byAddress)
	for _, s := range l.byIfindex {
		if s.Service == "" || !s.gone.IsZero() {
			continue
		}
		for _, text := range s.Addresses {
			if p, err := netip.ParsePrefix(text); err == nil {
				l.byAddress[p.Addr().Unmap()] = append(l.byAddress[p.Addr().Unmap()], s)
			}
		}
	}
	homes := map[address]uint32{}
	for a := range l.byAddress {
		if s := l.holder(a, ""); s != nil {
			homes[addressOf(a)] = s.Ifindex
		}
	}
	return l.putHomes(homes)
}

// holder is the service with an address: that of a name, or the only one. Who runs a service may give it any address,
// and so must not get what is for another one.
func (l *locals) holder(a netip.Addr, name string) (found *localService) {
	for _, s := range l.byAddress[a] {
		switch {
		case name != "" && s.Service != name:
		case found == nil || found.Service == s.Service && s.Ifindex < found.Ifindex:
			found = s
		case found.Service != s.Service:
			return nil
		}
	}
	return found
}

// putHomes gives the data plane the node of each address. What there is no room for keeps its address in ICMP errors of
// the node.
func (l *locals) putHomes(want map[address]uint32) error {
	for a := range l.homes {
		if _, still := want[a]; still {
			continue
		}
		if err := remove(l.maps.homes, mapHomes, a); err != nil {
			return err
		}
		delete(l.homes, a)
	}
	for a, ifindex := range want {
		if known, there := l.homes[a]; known == ifindex || (!there && len(l.homes) == int(l.maps.homes.MaxEntries())) {
			continue
		}
		if err := write(l.maps.homes, mapHomes, a, ifindex); err != nil {
			return err
		}
		l.homes[a] = ifindex
	}
	return nil
}

// remove makes an interface unknown; packets to it take the ordinary way. Its index stays taken until no session refers
// to it.
func (l *locals) remove(ifindex uint32, now time.Time) error {
	s := l.byIfindex[ifindex]
	if s == nil || !s.gone.IsZero() {
		return nil
	}
	s.gone, s.entry = now, local{Ifindex: ifindex}
	if err := l.index(); err != nil {
		return err
	}
	if err := write(l.maps.locals, mapLocals, s.index, s.entry); err != nil {
		return err
	}
	return remove(l.maps.interfaces, mapInterfaces, ifindex)
}

// free forgets an interface for good.
func (l *locals) free(s *localService, now time.Time) error {
	if err := write(l.maps.locals, mapLocals, s.index, local{}); err != nil {
		return err
	}
	l.maps.shares[s.index] = share{}
	delete(l.byIfindex, s.entry.Ifindex)
	l.indices.release(s.index, now)
	return nil
}

// at returns the index of the local service that has an address of a place, or 0. Of an instance that is said to be a
// service it is that one.
func (l *locals) at(p place, service string) uint32 {
	for _, a := range []netip.Addr{netip.AddrFrom4(p.Addr4), p.Addr6.addr()} {
		if s := l.holder(a, service); s != nil && !a.IsUnspecified() {
			return s.index
		}
	}
	return 0
}

// instanceChanged takes over that a service of the node has come, changed or gone.
func (w *running) instanceChanged(i sdk.Attachment, there bool, now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.syncNames()
	if there {
		return errors.Join(w.locals.put(i, now), w.relocate())
	}
	return errors.Join(w.locals.remove(i.Ifindex, now), w.relocate())
}

// relocate gives the data plane the instances on this node.
func (w *running) relocate() error {
	for _, t := range w.targets {
		if t.service == nil {
			continue
		}
		p := *t.place()
		p.Local = w.locals.at(p, t.local)
		if p == *t.place() {
			continue
		}
		e := t.entry
		e.Place[e.Generation&1] = p
		if err := w.writeTarget(t, e); err != nil {
			return err
		}
	}
	return nil
}
