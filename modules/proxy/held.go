// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"container/list"
	"iter"
	"net/netip"
	"slices"
	"time"
)

// held are packets that wait until it is known what their destination stands for.
type held struct {
	perAddress, perAll, bytes int           // limits
	wait                      time.Duration // how long an answer may take

	all       *list.List // of *heldPacket, oldest first
	addresses map[netip.Addr]*waiting
	size      int // bytes held

	Dropped uint64 // gave way to younger ones
}

type heldPacket struct {
	to      netip.Addr
	ifindex uint32
	frame   []byte
}

// waiting is what waits for one address.
type waiting struct {
	since   time.Time
	ifindex uint32          // of the packet that asked for it
	packets []*list.Element // oldest first
}

func newHeld(perAddress, perAll, bytes int, wait time.Duration) *held {
	return &held{perAddress: perAddress, perAll: perAll, bytes: bytes, wait: wait, all: list.New(),
		addresses: map[netip.Addr]*waiting{}}
}

// add holds a packet, and reports whether it is the first for its address, which then is to be asked for. The oldest
// of the interface that holds most are dropped.
func (h *held) add(p heldPacket, now time.Time) (first bool) {
	w, known := h.addresses[p.to]
	if !known {
		w = &waiting{since: now, ifindex: p.ifindex}
		h.addresses[p.to] = w
	}
	if len(w.packets) >= h.perAddress {
		h.drop(oldest(slices.Values(w.packets)))
	}
	for h.all.Len() >= h.perAll || h.size+len(p.frame) > h.bytes && h.all.Len() > 0 {
		if of := h.drop(oldest(elements(h.all))); of != p.to && len(h.addresses[of].packets) == 0 {
			delete(h.addresses, of)
		}
	}
	w.packets = append(w.packets, h.all.PushBack(&p))
	h.size += len(p.frame)
	return !known
}

// oldest returns the oldest packet of the interface that has most bytes among those given, so that no service pushes
// out packets of another.
func oldest(all iter.Seq[*list.Element]) *list.Element {
	size, first := map[uint32]int{}, map[uint32]*list.Element{}
	var out *list.Element
	for e := range all {
		p := e.Value.(*heldPacket)
		size[p.ifindex] += len(p.frame)
		if first[p.ifindex] == nil {
			first[p.ifindex] = e
		}
		if out == nil || size[p.ifindex] > size[out.Value.(*heldPacket).ifindex] {
			out = first[p.ifindex]
		}
	}
	return out
}

func elements(l *list.List) iter.Seq[*list.Element] {
	return func(yield func(*list.Element) bool) {
		for e := l.Front(); e != nil && yield(e); e = e.Next() {
		}
	}
}

// drop discards a packet, and returns its address.
func (h *held) drop(e *list.Element) netip.Addr {
	p := h.all.Remove(e).(*heldPacket)
	h.size -= len(p.frame)
	w := h.addresses[p.to]
	w.packets = slices.DeleteFunc(w.packets, func(o *list.Element) bool { return o == e })
	h.Dropped++
	return p.to
}

// asker is the interface whose packet asked for an address, or 0.
func (h *held) asker(to netip.Addr) uint32 {
	if w, ok := h.addresses[to]; ok {
		return w.ifindex
	}
	return 0
}

// take returns the packets for an address, oldest first, and waits for it no longer.
func (h *held) take(to netip.Addr) []*heldPacket {
	w, ok := h.addresses[to]
	if !ok {
		return nil
	}
	delete(h.addresses, to)
	out := make([]*heldPacket, len(w.packets))
	for i, e := range w.packets {
		out[i] = h.all.Remove(e).(*heldPacket)
		h.size -= len(out[i].frame)
	}
	return out
}

// overdue returns the addresses that have been waited for too long.
func (h *held) overdue(now time.Time) []netip.Addr {
	var out []netip.Addr
	for to, w := range h.addresses {
		if now.Sub(w.since) >= h.wait {
			out = append(out, to)
		}
	}
	return out
}
