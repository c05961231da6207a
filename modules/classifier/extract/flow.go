// SPDX-License-Identifier: Apache-2.0

package extract

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// Flow is a source of the flow extractor: as struct cls_source.
type Flow struct {
	Remote, Local         netip.Addr // IPv6; IPv4 is mapped. Of a peer, Local is the zero Addr
	RemotePort, LocalPort uint16
	Proto                 uint8
}

// Packet is an IP packet as the flow extractor sees it.
type Packet struct {
	Flow
	FromLocal bool   // from the service's side
	Length    uint64 // of the IP datagram
	Flags     uint8  // TCP's, in the order of its header
	Later     bool   // a later fragment
	Payload   bool   // it has one
}

// Sums of a flow's record: enum cls_flow_sum.
const (
	sumPackets     = 0
	sumFlowBytes   = 2
	sumSquares     = 4
	sumFlowGaps    = 5
	sumGapSquares  = 6
	sumFlowGapN    = 7
	sumFIN         = 8
	sumFlowFrags   = 14
	sumPayloads    = 15
	firstOfFlagged = sumFIN
)

// Flows is the extractor flow.
type Flows struct {
	Config
	flows map[Flow]*record
}

// NewFlows returns an extractor that knows no flow.
func NewFlows(c Config) *Flows { return &Flows{c, map[Flow]*record{}} }

// Packet counts one that was met at a time (ns). It returns the window of its source that has ended, if one has.
func (x *Flows) Packet(now uint64, p *Packet) *Window[Flow] {
	key := p.Flow
	if x.ByPeer {
		key = Flow{Remote: p.Remote}
	}
	r := x.flows[key]
	if r == nil {
		r = x.newRecord(now)
		r.opener, r.servicePort = p.FromLocal, p.LocalPort
		if p.FromLocal {
			r.servicePort = p.RemotePort
		}
		if x.ByPeer {
			r.servicePort = 0
		}
		x.flows[key] = r
	}
	var out *Window[Flow]
	if s, end, ok := x.close(r, now); ok {
		out = &Window[Flow]{key, end, r.flowValues(&s, key.Proto)}
		x.begin(r, now)
	}
	back := p.FromLocal != r.opener
	if x.ByPeer {
		back = p.FromLocal
	}
	r.count(func(s *slice) { r.packet(s, p, now, back) })
	return out
}

// Lapse returns the windows that have ended by a time, by flow.
func (x *Flows) Lapse(now uint64) (out []*Window[Flow]) {
	byEnds := func(a, b Flow) int {
		return cmp.Or(a.Remote.Compare(b.Remote), a.Local.Compare(b.Local), cmp.Compare(a.RemotePort, b.RemotePort),
			cmp.Compare(a.LocalPort, b.LocalPort), cmp.Compare(a.Proto, b.Proto))
	}
	for _, f := range slices.SortedFunc(maps.Keys(x.flows), byEnds) {
		r := x.flows[f]
		x.lapse(r, now, func(s *slice, end uint64) { out = append(out, &Window[Flow]{f, end, r.flowValues(s, f.Proto)}) })
	}
	return out
}

// packet adds p to the slice; back marks the reply direction. Gaps are in microseconds, cut at limit, from the flow's
// previous packet, whichever slice that was in; now is in nanoseconds.
func (r *record) packet(s *slice, p *Packet, now uint64, back bool) {
	way := 0
	if back {
		way = 1
	}
	s.sum[sumPackets+way]++
	s.sum[sumFlowBytes+way] += p.Length
	s.sum[sumSquares] += p.Length * p.Length
	s.length.widen(p.Length)
	if r.met {
		gap := min((now-r.last)/1000, limit)
		s.sum[sumFlowGaps] += gap
		s.sum[sumGapSquares] += gap * gap
		s.sum[sumFlowGapN]++
		s.gap.widen(gap)
	}
	r.last, r.met = now, true
	for i := range 6 {
		s.sum[sumFIN+i] += uint64(p.Flags >> i & 1)
	}
	if p.Later {
		s.sum[sumFlowFrags]++
	}
	if p.Payload {
		s.sum[sumPayloads]++
	}
}

func (r *record) flowValues(s *slice, proto uint8) []int64 {
	packets, bytes, gaps := s.sum[0]+s.sum[1], s.sum[2]+s.sum[3], s.sum[sumFlowGapN]
	v := []uint64{s.sum[0], s.sum[1], s.sum[2], s.sum[3],
		uint64(s.length.low), uint64(s.length.high), mean(bytes, packets), deviation(bytes, s.sum[sumSquares], packets),
		uint64(s.gap.low), uint64(s.gap.high), mean(s.sum[sumFlowGaps], gaps),
		deviation(s.sum[sumFlowGaps], s.sum[sumGapSquares], gaps)}
	v = append(v, s.sum[sumFIN:]...)
	v = append(v, (r.last-r.first)/1e6, uint64(proto), uint64(r.servicePort),
		mean(s.sum[2], s.sum[0]), mean(s.sum[3], s.sum[1]), packets, mean(s.sum[1]*1000, packets))
	return cut(v...)
}
