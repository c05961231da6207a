// SPDX-License-Identifier: Apache-2.0

// Package trace converts the events of a traced chain to one report per packet, with the verdict of each module.
package trace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/plan"
)

// Source is a trace of the data plane.
type Source interface {
	// Read returns os.ErrDeadlineExceeded when no event has arrived until the deadline.
	Read(deadline time.Time) (dataplane.TraceEvent, error)
	// Lost returns the number of events for which there was no room.
	Lost() uint64
}

// Reader reads packets from a trace.
type Reader struct {
	Source Source
	Chains []chain.Spec    // the traced chains; events have their index plus 1
	Points plan.Placements // of all chains of the node
	Reason func(module string, reason int) string
	Note   func(module string, note int) string
	Name   func(module, note string, value uint64) string // name of a note's value; empty if it has none
	Wanted func(v1.TracedPacket) bool                     // by what modules did to it
	Show   func(v1.TraceLine) error
	Count  int // maximum number of packets, 0 for no limit
	// Services by the cookies of their network namespaces, for messages.
	Services map[uint64]string
	Follow   bool // packets meet several of the chains: each is shown with all of them

	total int
	lost  uint64                 // that was shown
	boot  time.Time              // zero of the events' clock
	open  map[uint16]*openPacket // by CPU

	journeys map[uint64]*journey // of packets that may meet another chain
	order    []*journey          // the same, as they began
}

// openPacket is a packet of which more events may come.
type openPacket struct {
	v1.TracedPacket
	number  uint64
	trace   uint64
	now     packetEnds
	key     uint64 // of it now
	decided bool   // its last verdict is known
}

// Run shows packets until ctx ends or their limit is reached. The events of each packet follow each other on a CPU.
func (r *Reader) Run(ctx context.Context) error {
	const pause, betweenLosses = 100 * time.Millisecond, time.Second
	r.boot, r.open, r.journeys = bootTime(), map[uint16]*openPacket{}, map[uint64]*journey{}
	reported := time.Now()
	for ctx.Err() == nil && !r.full() {
		now := time.Now()
		e, err := r.Source.Read(now.Add(pause))
		if errors.Is(err, os.ErrDeadlineExceeded) { // nothing more comes for the packets that are open
			err = r.finishAll()
		} else if err == nil {
			err = r.take(e)
		}
		err = errors.Join(err, r.arrive(now))
		if now.Sub(reported) > betweenLosses {
			reported, err = now, errors.Join(err, r.showLost())
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(r.finishAll(), r.arrive(time.Time{}), r.showLost())
}

// showLost says when events have been lost.
func (r *Reader) showLost() error {
	lost := r.Source.Lost()
	if lost == r.lost {
		return nil
	}
	r.lost = lost
	return r.Show(v1.TraceLine{Lost: lost})
}

func (r *Reader) full() bool { return r.Count > 0 && r.total == r.Count }

// take adds an event to its packet.
func (r *Reader) take(e dataplane.TraceEvent) error {
	if e.KernelDropped() {
		return r.kernelDropped(e)
	}
	if e.Message() {
		return r.show(r.message(e))
	}
	if e.Head() {
		err := r.finish(e.CPU)
		r.open[e.CPU] = r.packet(e)
		return err
	}
	p := r.open[e.CPU]
	if p == nil || p.number != e.Packet {
		return nil // its first event is missing
	}
	if p.decided = r.step(p, e); p.decided {
		return r.finish(e.CPU)
	}
	return nil
}

// finish ends the packet of a CPU at its chain. One without its last verdict is left out once the trace has lost
// events: it would seem to have ended where it did not.
func (r *Reader) finish(cpu uint16) error {
	p := r.open[cpu]
	delete(r.open, cpu)
	if p == nil || !p.decided && r.Source.Lost() > 0 {
		return nil
	}
	if !r.Follow {
		return r.show(p.TracedPacket)
	}
	return r.join(p)
}

// show reports a packet with all chains that it met.
func (r *Reader) show(p v1.TracedPacket) error {
	if r.full() || !r.Wanted(p) {
		return nil
	}
	r.total++
	return r.Show(v1.TraceLine{TracedPacket: &p})
}

func (r *Reader) finishAll() error {
	for cpu := range r.open {
		if err := r.finish(cpu); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reader) chain(e dataplane.TraceEvent) chain.Spec { return r.Chains[e.Chain-1] }

// packet is a packet as it came in.
func (r *Reader) packet(e dataplane.TraceEvent) *openPacket {
	spec := r.chain(e)
	place := r.Points[chain.Point{Ifindex: int(e.Ifindex), Side: spec.Side}]
	ends := endsOf(e)
	p := &openPacket{number: e.Packet, trace: e.Trace, now: ends, key: e.Key, TracedPacket: v1.TracedPacket{
		Time: r.boot.Add(time.Duration(e.Time)), Monotonic: int64(e.Time),
		Service: place.Service, Interface: place.Link.Name, Hook: string(spec.Side), Direction: string(spec.Direction),
		Length: e.Len, LinkType: place.Link.LinkType(), Frame: e.Bytes,
		Protocol: ends.protocol, Source: ends.source, Destination: ends.destination, Fingerprint: fingerprint(e.Key),
		Outcome: kerbabi.ParseOutcome(e.Outcome).String()}}
	describeL4(&p.TracedPacket, e)
	return p
}

// message is data that a program sends through a socket, with what the module on sockets did with it.
func (r *Reader) message(e dataplane.TraceEvent) v1.TracedPacket {
	ends := endsOf(e)
	s := v1.TraceStep{Module: r.chain(e).Members[0].Name, Verdict: kerbabi.Verdict(e.Verdict).String(),
		Nanoseconds: e.Elapsed}
	if note, value := e.Note(); note != 0 {
		r.note(&s, note, value)
	}
	return v1.TracedPacket{Time: r.boot.Add(time.Duration(e.Time)), Monotonic: int64(e.Time), Service: r.Services[e.Key],
		Hook: string(chain.OnSockets), Direction: string(chain.Egress), Length: e.Len, Protocol: ends.protocol,
		Source: ends.source, Destination: ends.destination, Outcome: kerbabi.ParseOK.String(), Steps: []v1.TraceStep{s}}
}

// step adds a module's verdict, and reports whether it was the last one.
func (r *Reader) step(p *openPacket, e dataplane.TraceEvent) (last bool) {
	members := r.chain(e).Members
	verdict := kerbabi.Verdict(e.Verdict)
	s := v1.TraceStep{Module: members[e.Position].Name, Verdict: verdict.String(), Nanoseconds: e.Elapsed}
	if verdict == kerbabi.Drop {
		s.Reason = r.Reason(s.Module, int(e.Reason))
	}
	if note, value := e.Note(); note != 0 {
		r.note(&s, note, value)
	}
	if now := endsOf(e); now != p.now {
		s.Protocol, s.Source, s.Destination = now.protocol, now.source, now.destination
		p.now = now
	}
	if e.Key != p.key {
		s.Fingerprint, p.key = fingerprint(e.Key), e.Key
	}
	if verdict == kerbabi.Redirect && e.ToIfindex != 0 {
		s.Interface, s.Service = r.target(e.ToIfindex)
	}
	p.Steps = append(p.Steps, s)
	return int(e.Position) == len(members)-1 || verdict.Ends() || verdict == kerbabi.Redirect && !e.Deferred()
}

// note adds a note of the module, and the name that the module has for its value.
func (r *Reader) note(s *v1.TraceStep, key uint16, value uint64) {
	s.Note, s.Value = r.Note(s.Module, int(key)), value
	s.Name = r.Name(s.Module, s.Note, value)
}

// fingerprint is a key in words, empty for none.
func fingerprint(key uint64) string {
	if key == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", key)
}

// target names an interface, and its service.
func (r *Reader) target(ifindex uint32) (name, service string) {
	for p, place := range r.Points {
		if p.Ifindex == int(ifindex) {
			return place.Link.Name, place.Service
		}
	}
	if l, err := net.InterfaceByIndex(int(ifindex)); err == nil {
		return l.Name, ""
	}
	return fmt.Sprint(ifindex), ""
}

// bootTime is when CLOCK_MONOTONIC was zero.
func bootTime() time.Time {
	var since unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &since) // fails for unknown clocks only
	return time.Now().Add(-time.Duration(since.Nano()))
}
