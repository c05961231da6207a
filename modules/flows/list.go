// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"cmp"
	"encoding/binary"
	"net/http"
	"net/netip"
	"net/url"
	"sort"
	"strconv"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

// Handler serves GET flows, with the answer sdk.FlowRecords.
func (g *running) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /flows", func(w http.ResponseWriter, r *http.Request) { sdk.Answer(w)(g.answer(r.URL.Query())) })
	return mux
}

// protocols are names of IANA numbers.
var protocols = map[string]uint8{"icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58}

func protocolName(number uint8) string {
	for name, n := range protocols {
		if n == number {
			return name
		}
	}
	return strconv.Itoa(int(number))
}

// question says which flows are asked for. Zero values stand for any.
type question struct {
	service string
	peer    netip.Prefix
	proto   int // -1: any
	port    uint16
	since   time.Duration
	after   uint64
	count   int
}

// atMost is the most that count may be.
const atMost = 5000

func parse(q url.Values) (w question, err error) {
	number := func(name string, most uint64) (n uint64) {
		if text := q.Get(name); text != "" && err == nil {
			if n, err = strconv.ParseUint(text, 10, 64); err != nil || n > most {
				err = sdk.ConfigErrorf(name, "%q: must be a number from 0 to %d", text, most)
			}
		}
		return n
	}
	w = question{service: q.Get("service"), proto: -1, port: uint16(number("port", 65535)),
		since: time.Duration(number("since", 3600)) * time.Second, after: number("after", 1<<63),
		count: int(number("count", atMost))}
	if w.count == 0 {
		w.count = 1000
	}
	if text := q.Get("peer"); text != "" && err == nil {
		w.peer, err = parsePeer(text)
	}
	if text := q.Get("protocol"); text != "" && err == nil {
		n, known := protocols[text]
		if !known {
			var number uint64
			if number, err = strconv.ParseUint(text, 10, 8); err != nil {
				err = sdk.ConfigErrorf("protocol", "%q: must be tcp, udp, icmp, icmpv6 or a number to 255", text)
			}
			n = uint8(number)
		}
		w.proto = int(n)
	}
	return w, err
}

func parsePeer(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr.Unmap().WithZone(""), addr.Unmap().BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, sdk.ConfigErrorf("peer", "%q: must be an address, or a prefix such as 192.0.2.0/24", text)
	}
	return p, nil
}

func (w *question) wants(p place, proto uint8, remote [16]byte) bool {
	return (w.service == "" || w.service == p.service) && (w.proto < 0 || w.proto == int(proto)) &&
		(!w.peer.IsValid() || w.peer.Contains(address(remote)))
}

func (g *running) answer(q url.Values) (*sdk.FlowRecords, error) {
	w, err := parse(q)
	if err != nil {
		return nil, err
	}
	g.asking.Lock()
	defer g.asking.Unlock()
	out := &sdk.FlowRecords{Now: sdk.Monotonic(), Flows: []sdk.FlowRecord{}}
	if w.since > 0 {
		if err := g.sweep(time.Now(), out.Now); err != nil { // so that the last seconds are in it
			return nil, err
		}
		g.past(&w, out)
		return out, nil
	}
	return out, g.present(&w, out)
}

// present adds the flows of the table.
func (g *running) present(w *question, out *sdk.FlowRecords) error {
	places, offset := g.interfaces(), time.Now().Add(-time.Duration(out.Now))
	found, matching := make([]found, 0, 2*w.count), map[place]uint64{}
	err := g.each(func(k key, v *value) {
		p, there := places[k.Ifindex]
		if !there || v.last() < w.after || !w.wants(p, k.Proto, k.Remote) ||
			w.port != 0 && w.port != portOf(k.LocalPort) && w.port != portOf(k.RemotePort) {
			return
		}
		matching[p]++
		if found = append(found, foundFlow(p, k, v)); len(found) == cap(found) {
			found = w.first(found)
		}
	})
	if err != nil {
		return err
	}
	found = w.first(found)
	for i := range found {
		matching[found[i].place]--
		out.Flows = append(out.Flows, found[i].record(g.Module, offset))
	}
	used, err := g.usages()
	if err != nil {
		return err
	}
	for _, at := range g.places(used) {
		u, p := used[at.Ifindex], place{at.Service, at.Interface}
		if w.service == "" || w.service == at.Service {
			g.addMissing(out, p, v1alpha1.MissingFlows{Omitted: matching[p], UnrecordedPackets: u.Unrecorded,
				UnrecordedBytes: u.UnrecordedBytes, UnreadablePackets: u.Unreadable, UnreadableBytes: u.UnreadableBytes})
		}
	}
	return nil
}

// first returns as many as are asked for, in order, and keeps the room of all.
func (w *question) first(all []found) []found {
	sort.Slice(all, func(i, j int) bool {
		a, b := &all[i], &all[j]
		if w.after > 0 {
			return cmp.Or(-cmp.Compare(a.value.last(), b.value.last()), a.key.compare(&b.key)) < 0
		}
		return cmp.Or(-cmp.Compare(a.bytes(), b.bytes()), a.key.compare(&b.key)) < 0
	})
	return all[:min(len(all), w.count)]
}

func (g *running) addMissing(out *sdk.FlowRecords, p place, m v1alpha1.MissingFlows) {
	if m == (v1alpha1.MissingFlows{}) {
		return
	}
	m.Module, m.Service, m.Interface = g.Module, p.service, p.iface
	out.Missing = append(out.Missing, m)
}

// past adds sums of the last minutes.
func (g *running) past(w *question, out *sdk.FlowRecords) {
	now := time.Now()
	g.mu.Lock()
	sums, missing, latest := g.hour.sum(now, int64((w.since+time.Minute-1)/time.Minute))
	g.mu.Unlock()
	omitted := map[place]uint64{}
	for i := range sums {
		t := sums[i].talker
		switch {
		case !w.wants(t.place, t.proto, t.remote) || w.port != 0 && w.port != t.port:
		case len(out.Flows) >= w.count:
			omitted[t.place]++
		default:
			last := time.Unix(latest[t]*60+59, 0)
			if last.After(now) {
				last = now
			}
			out.Flows = append(out.Flows, sums[i].record(g.Module, last))
		}
	}
	for p := range omitted {
		missing[p] = missing[p]
	}
	places := make([]place, 0, len(missing))
	for p := range missing {
		if w.service == "" || w.service == p.service {
			places = append(places, p)
		}
	}
	sort.Slice(places, func(i, j int) bool {
		return cmp.Or(cmp.Compare(places[i].service, places[j].service), cmp.Compare(places[i].iface, places[j].iface)) < 0
	})
	for _, p := range places {
		l := missing[p]
		g.addMissing(out, p, v1alpha1.MissingFlows{Omitted: omitted[p], Others: l.others, OtherPackets: l.otherPackets,
			OtherBytes: l.otherBytes, UnrecordedPackets: l.unrecorded, UnrecordedBytes: l.unrecordedBytes,
			UnreadablePackets: l.unreadable, UnreadableBytes: l.unreadableBytes})
	}
}

// found is an entry that was asked for.
type found struct {
	place place
	key   key
	value value
}

func foundFlow(p place, k key, v *value) found { return found{p, k, *v} }

func (f *found) bytes() uint64 { return f.value.Side[0].Bytes + f.value.Side[1].Bytes }

func portOf(p [2]byte) uint16 { return binary.BigEndian.Uint16(p[:]) }

func (k *key) compare(o *key) int {
	return cmp.Or(cmp.Compare(k.Ifindex, o.Ifindex), cmp.Compare(k.Proto, o.Proto),
		cmp.Compare(string(k.Local[:]), string(o.Local[:])), cmp.Compare(string(k.Remote[:]), string(o.Remote[:])),
		cmp.Compare(portOf(k.LocalPort), portOf(o.LocalPort)), cmp.Compare(portOf(k.RemotePort), portOf(o.RemotePort)))
}

// record describes an entry. boot is the time by which times of the data plane are counted.
func (f *found) record(module string, boot time.Time) sdk.FlowRecord {
	v, at := &f.value, func(ns uint64) time.Time { return boot.Add(time.Duration(ns)) }
	c := carriedBy(v)
	r := record(module, f.place, f.key.Proto, v.initiator(), &c)
	ends := [2]string{address(f.key.Local).String(), address(f.key.Remote).String()}
	ports := [2]uint16{portOf(f.key.LocalPort), portOf(f.key.RemotePort)}
	from := v.initiator()
	r.Source, r.Destination, r.SourcePort, r.DestinationPort = ends[from], ends[1-from], ports[from], ports[1-from]
	r.Flows, r.State = 0, v.state(f.key.Proto)
	first := at(v.First)
	r.First, r.Last = &first, at(v.last())
	return r
}

func (v *value) state(proto uint8) string {
	own, other := v.Side[v.initiator()].TCPFlags, v.Side[1-v.initiator()].TCPFlags
	switch {
	case proto != protocols["tcp"]:
		return ""
	case (own|other)&flagRST != 0:
		return "reset"
	case own&other&flagFIN != 0:
		return "closed"
	case (own|other)&flagFIN != 0:
		return "closing"
	case own&(flagSYN|flagACK) == flagSYN:
		return "opening"
	}
	return "established"
}

// record describes the sum of flows.
func (t *flowTotals) record(module string, last time.Time) sdk.FlowRecord {
	r := record(module, t.talker.place, t.talker.proto, int(t.talker.initiator), &t.carried)
	if t.talker.initiator == egress {
		r.Destination = address(t.talker.remote).String()
	} else {
		r.Source = address(t.talker.remote).String()
	}
	r.DestinationPort, r.Last = t.talker.port, last
	return r
}

// record has what flows and sums of flows have in common.
func record(module string, p place, proto uint8, from int, c *carried) sdk.FlowRecord {
	to := 1 - from
	r := sdk.FlowRecord{Flow: v1alpha1.Flow{Module: module, Service: p.service, Interface: p.iface,
		Direction: directions[from], Protocol: protocolName(proto),
		Packets: c.packets[from], Bytes: c.bytes[from], ReplyPackets: c.packets[to], ReplyBytes: c.bytes[to],
		Dropped: c.dropped[from], ReplyDropped: c.dropped[to], Replied: c.replied[from],
		Retransmits: c.retransmits[from], ReplyRetransmits: c.retransmits[to],
		Flows: c.flows, Connections: c.connections, Verdict: c.verdict(from)}}
	if c.responders > 0 {
		r.ToResponderNanoseconds = int64(c.toResponder / c.responders)
	}
	if c.initiators > 0 {
		r.ToInitiatorNanoseconds = int64(c.toInitiator / c.initiators)
	}
	for _, d := range []int{from, to} {
		if c.dropped[d] > 0 {
			r.Drop = &sdk.FlowDrop{Module: uint32(c.drop[d] >> 8), Reason: uint8(c.drop[d])}
			break
		}
	}
	return r
}

func (c *carried) verdict(from int) string {
	switch dropped, all := c.dropped[0]+c.dropped[1], c.allPackets(); {
	case dropped == 0 && c.replied == [2]uint64{}:
		return "next"
	case dropped == all:
		return "drop"
	case dropped == 0 && c.replied[from] == c.packets[from]:
		return "reply"
	}
	return "mixed"
}
