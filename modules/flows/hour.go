// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"cmp"
	"sort"
	"time"
)

// What the hour holds: in each minute the largest flows, summed up by talker, and the sum of the others. All of a
// service's may be others if another one has more, but for its share.
const (
	minutes      = 60
	ofMinute     = 256  // talkers that are kept of a minute
	whileCurrent = 1024 // talkers of the minute that is not over, of all services
	atLeast      = 4    // of these for each service, however many there are
)

// talker is what flows are summed up by.
type talker struct {
	place     place
	remote    [16]byte
	port      uint16 // of the destination
	proto     uint8
	initiator uint8 // direction of packets from the end that began
}

// place is where flows were seen.
type place struct {
	service, iface string
}

// carried is what a flow, or several, have carried. Directions are those of value.
type carried struct {
	packets, bytes, dropped, replied, retransmits [2]uint64
	flows, connections                            uint64
	drop                                          [2]uint64 // the last: module's number << 8 | reason; 0: none
	toResponder, toInitiator                      uint64    // sums, ns
	responders, initiators                        uint64    // of so many
}

func (c *carried) add(o *carried) {
	for d := range 2 {
		c.packets[d] += o.packets[d]
		c.bytes[d] += o.bytes[d]
		c.dropped[d] += o.dropped[d]
		c.replied[d] += o.replied[d]
		c.retransmits[d] += o.retransmits[d]
		if o.drop[d] != 0 {
			c.drop[d] = o.drop[d]
		}
	}
	c.flows += o.flows
	c.connections += o.connections
	c.toResponder += o.toResponder
	c.responders += o.responders
	c.toInitiator += o.toInitiator
	c.initiators += o.initiators
}

// carriedBy is what an entry of the table has carried so far.
func carriedBy(v *value) (c carried) {
	for d := range 2 {
		s := &v.Side[d]
		c.packets[d], c.bytes[d], c.dropped[d], c.replied[d] = s.Packets, s.Bytes, s.Dropped, s.Replied
		c.retransmits[d] = uint64(s.Retransmits)
		if s.Dropped > 0 {
			c.drop[d] = uint64(s.DropModule)<<8 | uint64(s.DropReason)
		}
	}
	c.connections, c.flows = uint64(v.Connections), 1
	if c.toResponder = v.ToResponder; c.toResponder > 0 {
		c.responders = 1
	}
	if c.toInitiator = v.ToInitiator; c.toInitiator > 0 {
		c.initiators = 1
	}
	return c
}

// less is a - b, 0 if that is negative: what CPUs count without atomic operations can go back.
func less(a, b uint64) uint64 { return max(a, b) - b }

// since is what has come to before. A handshake counts once: a later connection of the flow has its own.
func (c carried) since(before carried) carried {
	for d := range 2 {
		c.packets[d] = less(c.packets[d], before.packets[d])
		c.bytes[d] = less(c.bytes[d], before.bytes[d])
		c.dropped[d] = less(c.dropped[d], before.dropped[d])
		c.replied[d] = less(c.replied[d], before.replied[d])
		c.retransmits[d] = less(c.retransmits[d], before.retransmits[d])
		if c.dropped[d] == 0 {
			c.drop[d] = 0
		}
	}
	if c.connections = less(c.connections, before.connections); c.connections == 0 {
		if before.responders > 0 {
			c.toResponder, c.responders = 0, 0
		}
		if before.initiators > 0 {
			c.toInitiator, c.initiators = 0, 0
		}
	}
	c.flows -= before.flows
	return c
}

func (c *carried) allBytes() uint64   { return c.bytes[0] + c.bytes[1] }
func (c *carried) allPackets() uint64 { return c.packets[0] + c.packets[1] }

// lost is what a minute has of a place only as a sum.
type lost struct {
	others, otherPackets, otherBytes                         uint64
	unrecorded, unrecordedBytes, unreadable, unreadableBytes uint64
}

func (l *lost) add(o lost) {
	l.others += o.others
	l.otherPackets += o.otherPackets
	l.otherBytes += o.otherBytes
	l.unrecorded += o.unrecorded
	l.unrecordedBytes += o.unrecordedBytes
	l.unreadable += o.unreadable
	l.unreadableBytes += o.unreadableBytes
}

func (l *lost) leave(c *carried) {
	l.add(lost{others: c.flows, otherPackets: c.allPackets(), otherBytes: c.allBytes()})
}

type flowTotals struct {
	talker talker
	carried
}

// minute is what was carried in one.
type minute struct {
	begin int64 // Unix time / 60
	kept  []flowTotals
	lost  map[place]lost
}

// hour is the last 60 minutes that had packets, a ring, and the one that is not over.
type hour struct {
	past    [minutes]minute
	begin   int64 // of the current minute, Unix time / 60
	current map[talker]*carried
	count   map[place]int // talkers of the current minute
	lost    map[place]lost
}

// turn ends the current minute if it is over. A clock that was set back lengthens it.
func (h *hour) turn(now time.Time) {
	begin := now.Unix() / 60
	if begin <= h.begin {
		return
	}
	if len(h.current)+len(h.lost) > 0 {
		m := minute{begin: h.begin, lost: h.lost}
		if m.kept = h.keep(); m.lost == nil {
			m.lost = map[place]lost{}
		}
		h.past[h.begin%minutes] = m
	}
	*h = hour{past: h.past, begin: begin}
}

// keep returns the largest talkers of the current minute, and leaves the others in lost. Each place may have an equal
// share; what of that it does not need is for the largest of all.
func (h *hour) keep() []flowTotals {
	all := make([]flowTotals, 0, len(h.current))
	for t, c := range h.current {
		all = append(all, flowTotals{t, *c})
	}
	sort.Slice(all, func(i, j int) bool { return all[i].allBytes() > all[j].allBytes() })
	if len(all) <= ofMinute {
		return all
	}
	share := max(1, ofMinute/len(h.count))
	var kept, more []flowTotals
	of := map[place]int{}
	for _, t := range all {
		if of[t.talker.place]++; of[t.talker.place] <= share {
			kept = append(kept, t)
		} else {
			more = append(more, t)
		}
	}
	room := max(0, ofMinute-len(kept))
	for i := range more {
		if i < room {
			kept = append(kept, more[i])
		} else {
			h.leave(more[i].talker.place, &more[i].carried)
		}
	}
	return kept
}

// add adds what a talker carried in the current minute.
func (h *hour) add(t talker, c *carried, places int) {
	if h.current == nil {
		h.current, h.count = map[talker]*carried{}, map[place]int{}
	}
	sum := h.current[t]
	if sum == nil {
		if h.count[t.place] >= max(atLeast, whileCurrent/max(1, places)) {
			h.leave(t.place, c)
			return
		}
		h.count[t.place]++
		sum = &carried{}
		h.current[t] = sum
	}
	sum.add(c)
}

func (h *hour) leave(p place, c *carried) {
	l := h.lost[p]
	l.leave(c)
	h.miss(p, l)
}

func (h *hour) miss(p place, l lost) {
	if h.lost == nil {
		h.lost = map[place]lost{}
	}
	h.lost[p] = l
}

// sum returns what was carried in so many minutes and the current one, in order of bytes.
func (h *hour) sum(now time.Time, last int64) ([]flowTotals, map[place]lost, map[talker]int64) {
	sums, missing, latest := map[talker]*carried{}, map[place]lost{}, map[talker]int64{}
	add := func(t talker, c *carried, at int64) {
		if sums[t] == nil {
			sums[t] = &carried{}
		}
		sums[t].add(c)
		latest[t] = max(latest[t], at)
	}
	miss := func(all map[place]lost) {
		for p, l := range all {
			sum := missing[p]
			sum.add(l)
			missing[p] = sum
		}
	}
	from := now.Unix()/60 - last - 1
	for i := range h.past {
		m := &h.past[i]
		if m.begin <= from || m.begin == 0 {
			continue
		}
		for j := range m.kept {
			add(m.kept[j].talker, &m.kept[j].carried, m.begin)
		}
		miss(m.lost)
	}
	if h.begin > from {
		for t, c := range h.current {
			add(t, c, h.begin)
		}
		miss(h.lost)
	}
	out := make([]flowTotals, 0, len(sums))
	for t, c := range sums {
		out = append(out, flowTotals{t, *c})
	}
	sort.Slice(out, func(i, j int) bool {
		return cmp.Or(-cmp.Compare(out[i].allBytes(), out[j].allBytes()), cmp.Compare(out[i].talker.port, out[j].talker.port),
			cmp.Compare(string(out[i].talker.remote[:]), string(out[j].talker.remote[:]))) < 0
	})
	return out, missing, latest
}
