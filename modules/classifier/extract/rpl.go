// SPDX-License-Identifier: Apache-2.0

package extract

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Node is a source of the RPL extractor.
type Node struct {
	ID  uint64 // interface identifier, as a number in network byte order
	PAN uint16 // of nodes with a short address
}

// Sums of an RPL record: enum cls_rpl_sum. The first six are kinds.
const (
	sumRepeats = 6 + iota
	sumBytes
	sumMulticast
	sumVersions
	sumRanks
	sumSecured
	sumFragments
	sumGaps
	sumGapCount
)

// RPL is the extractor rpl.
type RPL struct {
	Config
	// Outcomes counts frames; Repeats those that repeat a message.
	Outcomes  [NotOurs + 1]uint64
	Repeats   uint64
	nodes     map[Node]*record
	datagrams map[datagram]Node
}

type datagram struct {
	link      uint64
	tag, size uint16
}

// NewRPL returns an extractor that knows no node.
func NewRPL(c Config) *RPL {
	return &RPL{Config: c, nodes: map[Node]*record{}, datagrams: map[datagram]Node{}}
}

// Nodes reports how many nodes are known.
func (x *RPL) Nodes() int { return len(x.nodes) }

// owner is whose a frame is.
func (x *RPL) owner(f *Frame, o Outcome) (Node, bool) {
	d := datagram{f.Link, f.Tag, f.Size}
	switch {
	case o == Fragment:
		n, ok := x.datagrams[d]
		return n, ok
	case o == Secured && x.CountSecured && f.ID != 0, o == Message:
	default:
		return Node{}, false
	}
	n := Node{ID: f.ID}
	if f.ID>>16 == 0x000000fffe00 {
		n.PAN = f.PAN
	}
	if f.Size != 0 {
		x.datagrams[d] = n
	}
	return n, true
}

// Frame counts a frame that was received at a time (ns), without its FCS. It returns the window of its source that has
// ended, if one has.
func (x *RPL) Frame(now uint64, b []byte) *Window[Node] {
	f, o := ParseFrame(b)
	x.Outcomes[o]++
	n, ok := x.owner(&f, o)
	if !ok {
		return nil
	}
	r := x.nodes[n]
	if r == nil {
		r = x.newRecord(now)
		x.nodes[n] = r
	}
	var out *Window[Node]
	if s, end, ok := x.close(r, now); ok {
		out = &Window[Node]{n, end, r.rplValues(&s)}
		x.begin(r, now)
	}
	switch {
	case o == Fragment:
		r.count(func(s *slice) { s.sum[sumFragments]++ })
	case r.isRepeat(f.tag(), now, x.Repeat):
		x.Repeats++
		r.count(func(s *slice) { s.sum[sumRepeats]++ })
	default:
		r.count(func(s *slice) { r.message(s, &f, o, now, uint64(len(b))) })
	}
	return out
}

// Lapse returns the windows that have ended by a time, by node: as in the data plane, where a timer ends those of
// sources that are silent.
func (x *RPL) Lapse(now uint64) (out []*Window[Node]) {
	byID := func(a, b Node) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.PAN, b.PAN)) }
	for _, n := range slices.SortedFunc(maps.Keys(x.nodes), byID) {
		r := x.nodes[n]
		x.lapse(r, now, func(s *slice, end uint64) { out = append(out, &Window[Node]{n, end, r.rplValues(s)}) })
	}
	return out
}

// Features returns the features of a node's current window.
func (x *RPL) Features(n Node) []int64 {
	r := x.nodes[n]
	if r == nil {
		return nil
	}
	s := x.window(r, r.slice)
	return r.rplValues(&s)
}

const maxSeen = 4

// isRepeat reports whether the message with this tag was seen less than within ago, and remembers it if not.
// Milliseconds are compared modulo 2^32, so that the clock may wrap; now is in nanoseconds.
func (r *record) isRepeat(tag uint32, now uint64, within time.Duration) bool {
	ms := uint32(now / 1e6)
	if within == 0 || tag == 0 {
		return false
	}
	for _, s := range r.seen {
		if s.tag == tag && ms-s.ms < uint32(within/time.Millisecond) {
			return true
		}
	}
	r.seen = append([]seen{{tag, ms}}, r.seen[:min(len(r.seen), maxSeen-1)]...)
	return false
}

// message counts one message of RPL in a window, with the arithmetic of the data plane, to the last bit.
func (r *record) message(s *slice, f *Frame, o Outcome, now, length uint64) {
	s.sum[f.Kind]++
	s.sum[sumBytes] += length
	if o == Secured {
		s.sum[sumSecured]++
	}
	if f.RPL && f.Broadcast {
		s.sum[sumMulticast]++
	}
	if f.HasDIO {
		if r.dio != nil && r.dio.DODAGVersion != f.DODAGVersion {
			s.sum[sumVersions]++
		}
		if r.dio != nil && f.Rank < r.dio.Rank {
			s.sum[sumRanks]++
		}
		s.length.widen(uint64(f.Rank))
		r.dio = f
	}
	if r.met {
		gap := (now - r.last) / 1e6
		s.sum[sumGaps] += gap
		s.sum[sumGapCount]++
		s.gap.widen(gap)
	}
	r.last, r.met = now, true
}

// rplValues returns the values of a slice in the order of the extractor's feature names. Shares are in thousandths.
func (r *record) rplValues(s *slice) []int64 {
	messages := uint64(0)
	for kind := DIS; kind <= Other; kind++ {
		messages += s.sum[kind]
	}
	share := func(kind int) uint64 { return mean(s.sum[kind]*1000, messages) }
	return cut(s.sum[DIS], s.sum[DIO], s.sum[DAO], s.sum[DAOAck], s.sum[Control], s.sum[Other], messages,
		s.sum[sumRepeats], s.sum[sumBytes], s.sum[sumMulticast], s.sum[sumVersions], s.sum[sumRanks], s.sum[sumSecured],
		s.sum[sumFragments],
		share(DIS), share(DIO), share(DAO), r.before[DIS], r.before[DIO], r.before[DAO],
		uint64(s.gap.low), uint64(s.gap.high), mean(s.sum[sumGaps], s.sum[sumGapCount]), uint64(s.length.low),
		uint64(s.length.high))
}
