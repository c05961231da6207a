// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"container/list"
	"net/netip"
	"time"
)

// negative remembers for a while which addresses nobody knows. It is bounded, so that a scan of a virtual range does not
// fill the table of addresses: the oldest give way.
type negative struct {
	ttl     time.Duration
	limit   int
	order   *list.List // of unknownAddress, by time
	entries map[netip.Addr]*list.Element
}

type unknownAddress struct {
	addr  netip.Addr
	until time.Time
}

func newNegative(ttl time.Duration, limit int) *negative {
	return &negative{ttl: ttl, limit: limit, order: list.New(), entries: map[netip.Addr]*list.Element{}}
}

// add returns until when the address counts as unknown, and which others give way.
func (n *negative) add(a netip.Addr, now time.Time) (until time.Time, over []netip.Addr) {
	n.remove(a)
	for n.order.Len() >= n.limit {
		over = append(over, n.pop())
	}
	until = now.Add(n.ttl)
	n.entries[a] = n.order.PushBack(unknownAddress{a, until})
	return until, over
}

// remove forgets an address, because it is known now.
func (n *negative) remove(a netip.Addr) {
	if e, ok := n.entries[a]; ok {
		n.order.Remove(e)
		delete(n.entries, a)
	}
}

// expired forgets the addresses whose time is over, and returns them.
func (n *negative) expired(now time.Time) (over []netip.Addr) {
	for e := n.order.Front(); e != nil && !now.Before(e.Value.(unknownAddress).until); e = n.order.Front() {
		over = append(over, n.pop())
	}
	return over
}

func (n *negative) pop() netip.Addr {
	a := n.order.Remove(n.order.Front()).(unknownAddress).addr
	delete(n.entries, a)
	return a
}
