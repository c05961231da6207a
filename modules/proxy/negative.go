// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"container/list"
	"net/netip"
	"time"
)

// negative remembers for a while which addresses do not exist. It is bounded, so that a scan of a virtual range does
// not fill the table of addresses. When it is full, the oldest address of the interface with the most lookups is
// evicted, so that no service pushes out the addresses of others.
type negative struct {
	ttl     time.Duration
	limit   int
	askers  map[uint32]*list.List // of unknownAddress, by time; none is empty
	entries map[netip.Addr]*list.Element
}

type unknownAddress struct {
	addr    netip.Addr
	ifindex uint32 // whose packet asked for it
	until   time.Time
}

func newNegative(ttl time.Duration, limit int) *negative {
	return &negative{ttl: ttl, limit: limit, askers: map[uint32]*list.List{}, entries: map[netip.Addr]*list.Element{}}
}

// add returns until when the address counts as unknown, and which others are evicted.
func (n *negative) add(a netip.Addr, ifindex uint32, now time.Time) (until time.Time, over []netip.Addr) {
	n.remove(a)
	asked := n.askers[ifindex]
	if asked == nil {
		asked = list.New()
		n.askers[ifindex] = asked
	}
	until = now.Add(n.ttl)
	n.entries[a] = asked.PushBack(unknownAddress{a, ifindex, until})
	for len(n.entries) > n.limit {
		over = append(over, n.pop(n.longest()))
	}
	return until, over
}

func (n *negative) longest() (most *list.List) {
	for _, asked := range n.askers {
		if most == nil || asked.Len() > most.Len() {
			most = asked
		}
	}
	return most
}

// remove forgets an address, because it is known now.
func (n *negative) remove(a netip.Addr) {
	e, ok := n.entries[a]
	if !ok {
		return
	}
	ifindex := e.Value.(unknownAddress).ifindex
	asked := n.askers[ifindex]
	asked.Remove(e)
	if asked.Len() == 0 {
		delete(n.askers, ifindex)
	}
	delete(n.entries, a)
}

// expired forgets the addresses whose time is over, and returns them.
func (n *negative) expired(now time.Time) (over []netip.Addr) {
	for _, asked := range n.askers {
		for asked.Len() > 0 && !now.Before(asked.Front().Value.(unknownAddress).until) {
			over = append(over, n.pop(asked))
		}
	}
	return over
}

// pop forgets the oldest address of an interface.
func (n *negative) pop(asked *list.List) netip.Addr {
	a := asked.Front().Value.(unknownAddress).addr
	n.remove(a)
	return a
}
