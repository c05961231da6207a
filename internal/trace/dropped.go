// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/packet"
)

// noVerdict represents all numbers that are not verdicts.
const noVerdict kerbabi.Verdict = 0xff

// Drops describes packets that modules have dropped, or for which they returned no valid verdict.
type Drops struct {
	Filter dataplane.TraceFilter
	Reader Reader    // its Points, Reason, Note and Name
	boot   time.Time // zero of the packets' clock
}

// Of returns a packet that a module dropped or returned no valid verdict for, in its state after the module, and
// whether the filter matches it.
func (d *Drops) Of(p dataplane.DroppedPacket) (out v1.TracedPacket, ok bool) {
	if d.boot.IsZero() {
		d.boot = bootTime()
	}
	place := d.Reader.Points[chain.Point{Ifindex: int(p.Ifindex), Side: p.Side}]
	link := "ethernet"
	if place.Link.Name == "" {
		place.Link.Name = fmt.Sprintf("ifindex %d, removed", p.Ifindex)
	} else {
		link = place.Link.LinkType()
	}
	e, outcome := headers(link, p.Frame, int(p.Len))
	if !matches(d.Filter, e) {
		return out, false
	}
	verdict := kerbabi.Drop
	if p.Passed {
		verdict = noVerdict
	}
	ends := endsOf(e)
	out = v1.TracedPacket{Time: d.boot.Add(time.Duration(p.Time)), Monotonic: int64(p.Time), Service: place.Service,
		Interface: place.Link.Name,
		Hook:      string(p.Side), Direction: string(p.Direction), Length: p.Len, LinkType: link,
		Frame:    p.Frame[:min(len(p.Frame), d.Filter.Bytes)],
		Protocol: ends.protocol, Source: ends.source, Destination: ends.destination, Outcome: outcome.String(),
		Steps: []v1.TraceStep{{Module: p.Module, Verdict: verdict.String(),
			Reason: d.Reader.Reason(p.Module, int(p.Reason))}}}
	if p.Key != 0 {
		d.Reader.note(&out.Steps[0], p.Key, uint64(p.Note))
	}
	describeL4(&out, e)
	return out, true
}

// describeL4 adds the fields of the transport header other than ports.
func describeL4(p *v1.TracedPacket, e dataplane.TraceEvent) {
	switch e.Proto {
	case protocols["tcp"]:
		p.TCPFlags = tcpFlags(e.TCPFlags)
	case protocols["icmp"], protocols["icmpv6"]:
		p.ICMPType, p.ICMPCode = &e.ICMPType, &e.ICMPCode
	}
}

// matches is trace_wanted of bpf/chain_trace.h.
func matches(f dataplane.TraceFilter, e dataplane.TraceEvent) bool {
	return (f.Proto == 0 || f.Proto == e.Proto) && (f.Port == 0 || f.Port == e.SourcePort || f.Port == e.DestPort) &&
		(!f.Addr.IsValid() || f.Addr.Contains(e.Addr(e.SourceAddr)) || f.Addr.Contains(e.Addr(e.DestAddr)))
}

// etherTypes of links without an Ethernet header, by IP version.
var etherTypes = map[uint8]uint16{4: unix.ETH_P_IP, 6: unix.ETH_P_IPV6}

// headers parses the addresses and ports of a frame with this length, of which only the first bytes are available.
func headers(link string, frame []byte, length int) (e dataplane.TraceEvent, outcome kerbabi.ParseOutcome) {
	const header, longest = 14, 1 << 18 // larger than any packet of the kernel
	if link != "ethernet" {
		ethernet := make([]byte, header)
		if len(frame) > 0 && link == "none" {
			binary.BigEndian.PutUint16(ethernet[header-2:], etherTypes[frame[0]>>4])
		}
		frame, length = append(ethernet, frame...), length+header
	}
	whole := make([]byte, min(max(length, len(frame)), longest))
	kept := copy(whole, frame)
	p := packet.Dissect(whole)
	has := func(at uint64, size int) bool { return at+uint64(size) <= uint64(kept) }
	e.Family, e.Proto = p.Family, p.Proto
	if !has(p.L4, 20) && kept < len(whole) {
		p.Outcome = kerbabi.ParseOK // as far as is known
	}
	field := func(at uint64, size int) []byte { return whole[at:min(int(at)+size, len(whole))] }
	switch {
	case e.Family == 4 && has(p.L3, 20):
		copy(e.SourceAddr[:], field(p.L3+12, 4))
		copy(e.DestAddr[:], field(p.L3+16, 4))
	case e.Family == 6 && has(p.L3, 40):
		copy(e.SourceAddr[:], field(p.L3+8, 16))
		copy(e.DestAddr[:], field(p.L3+24, 16))
	default:
		e.Family = 0
		return e, p.Outcome
	}
	if p.Flags&kerbabi.FlagL4 != 0 && has(p.L4, 8) {
		readL4(&e, field(p.L4, 14))
	}
	return e, p.Outcome
}

// readL4 parses ports, flags, or the type of an ICMP message, of which at least 8 bytes are available.
func readL4(e *dataplane.TraceEvent, p []byte) {
	const flags = 13
	switch e.Proto {
	case protocols["icmp"], protocols["icmpv6"]:
		e.ICMPType, e.ICMPCode = p[0], p[1]
	case protocols["tcp"], protocols["udp"]:
		e.SourcePort, e.DestPort = binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:])
		if e.Proto == protocols["tcp"] && len(p) > flags {
			e.TCPFlags = p[flags]
		}
	}
}
