// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/resource"
)

// protocols that a trace knows by name.
var protocols = map[string]uint8{"": 0, "icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58}

// errChanged ends a trace whose chains have been replaced by a change of the node.
var errChanged = errors.New("the chains changed, which ended the trace")

// Trace reports packets until ctx ends, the request's limits are reached, or the node changes. While it lasts, the
// chains that it is about are slower by some hundred nanoseconds a module.
func (a *Agent) Trace(ctx context.Context, r v1.TraceRequest, show func(v1.TracedPacket) error) error {
	filter, err := traceFilter(r)
	if err != nil {
		return err
	}
	run, err := a.startTrace(ctx, r, filter)
	if err != nil {
		return err
	}
	defer a.endTrace(run)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(r.Seconds)*time.Second) // linking the chains does not count
	defer cancel()
	return run.follow(ctx, r.Count, show)
}

func traceFilter(r v1.TraceRequest) (dataplane.TraceFilter, error) {
	f := dataplane.TraceFilter{Port: r.Port}
	proto, known := protocols[strings.ToLower(r.Protocol)]
	if !known {
		n, err := strconv.ParseUint(r.Protocol, 10, 8)
		if err != nil {
			return f, &fault.Invalid{Field: "protocol", Reason: fmt.Sprintf("%q is neither tcp, udp, icmp, icmpv6 nor a number up to 255", r.Protocol)}
		}
		proto = uint8(n)
	}
	f.Proto = proto
	if r.Host == "" {
		return f, nil
	}
	addr, err := netip.ParseAddr(r.Host)
	if err != nil {
		return f, &fault.Invalid{Field: "host", Reason: fmt.Sprintf("%q is no IP address", r.Host)}
	}
	f.Addr = addr.Unmap()
	return f, nil
}

// traceRun is a trace with what is needed to put its events into words.
type traceRun struct {
	trace  *dataplane.Trace
	points plan.Placements
	links  map[uint32]plan.Placement // of all points, by ifindex
	boot   time.Time                 // zero of the events' clock
	ended  chan struct{}             // closed when the plain chains are back
	reason func(module string, reason int) string
	cancel context.CancelCauseFunc
	ctx    context.Context
}

func (a *Agent) startTrace(ctx context.Context, r v1.TraceRequest, f dataplane.TraceFilter) (*traceRun, error) {
	if err := a.awaitTrace(ctx); err != nil {
		return nil, err
	}
	defer a.changes.Unlock()
	run := &traceRun{points: plan.Placements{}, links: map[uint32]plan.Placement{}, boot: bootTime(), ended: make(chan struct{}), reason: a.reasonNames()}
	specs := map[chain.Point]chain.Spec{}
	for p, place := range a.points {
		run.links[uint32(p.Ifindex)] = place
		if p.Side != chain.OnSockets && (r.Service == "" || place.Service == r.Service) {
			run.points[p], specs[p] = place, place.Chain
		}
	}
	if _, ok := resource.Service.Get(a.desired, r.Service); r.Service != "" && !ok {
		return nil, &fault.NotFound{Kind: v1.KindService, Name: r.Service}
	}
	if len(specs) == 0 {
		return nil, &fault.Conflict{Reason: "no chain runs there: nothing to trace"}
	}
	modules := map[string]dataplane.Module{}
	for name, d := range a.modules {
		modules[name] = d.Dataplane
	}
	var err error
	if run.trace, err = a.dp.Trace(f, specs, modules); err != nil {
		return nil, errors.Join(explain(err), a.reconcile())
	}
	run.ctx, run.cancel = context.WithCancelCause(ctx)
	a.tracing, a.lastTrace = run, run
	return run, nil
}

// awaitTrace returns with the lock of changes when no trace runs. One whose client has just been killed ends within moments.
func (a *Agent) awaitTrace(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, traceEnds)
	defer cancel()
	for {
		a.changes.Lock()
		before := a.lastTrace
		if before == nil || before.over() {
			return nil
		}
		a.changes.Unlock()
		select {
		case <-before.ended:
		case <-ctx.Done():
			return &fault.Conflict{Reason: "another trace is running; one trace runs at a time"}
		}
	}
}

// traceEnds is how long a trace may take to put the plain chains back after its client has gone.
const traceEnds = 3 * time.Second

func (run *traceRun) over() bool {
	select {
	case <-run.ended:
		return true
	default:
		return false
	}
}

// bootTime is when CLOCK_MONOTONIC was zero.
func bootTime() time.Time {
	var since unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &since) // fails for unknown clocks only
	return time.Now().Add(-time.Duration(since.Nano()))
}

// reasonNames is a snapshot: events are read without the agent's lock.
func (a *Agent) reasonNames() func(string, int) string {
	known := map[string]*deploy.Module{}
	for name, d := range a.modules {
		known[name] = d
	}
	return func(module string, reason int) string { return reasonName(known[module], reason) }
}

// endTrace puts the plain chains back: to the plan a traced one is a program that should not be there.
func (a *Agent) endTrace(run *traceRun) {
	a.changes.Lock()
	defer a.changes.Unlock()
	defer close(run.ended)
	defer run.trace.Close()
	run.cancel(nil)
	if n := run.trace.Lost(); n > 0 {
		a.log.Warn("the trace was too slow for its packets; a narrower filter loses none", "lost", n)
	}
	if a.tracing == run {
		a.tracing = nil
	}
	if err := a.reconcile(); err != nil {
		a.log.Error("cannot put the plain chains back; trying again", "error", err)
		a.poke()
	}
}

// observeKernel reads the state of the kernel. While a trace runs, its chains count as the plain ones that they stand for:
// looking at the node must not end a trace.
func (a *Agent) observeKernel() (chain.State, error) {
	state, err := a.dp.Observe()
	if err != nil || a.tracing == nil {
		return state, err
	}
	plain := map[string]uint32{}
	for _, c := range state.Chains {
		plain[c.ID] = c.Program
	}
	for i, p := range state.Points {
		if place, ok := a.tracing.points[p.Point]; ok && a.tracing.trace.Runs(p.Program) {
			state.Points[i].Program = plain[place.Chain.ID()]
		}
	}
	return state, nil
}

// look is observeKernel for status and metrics; the caller must not hold the agent's lock. When a change takes long,
// as it may when it waits for a control plane, it is what was seen before.
func (a *Agent) look() (chain.State, error) {
	const patience, step = time.Second, 5 * time.Millisecond
	for waited := time.Duration(0); !a.changes.TryLock(); waited += step {
		if seen := a.seen.Load(); seen != nil && waited >= patience {
			return *seen, nil
		}
		time.Sleep(step)
	}
	defer a.changes.Unlock()
	state, err := a.observeKernel()
	if err == nil {
		a.seen.Store(&state)
	}
	return state, err
}

// interruptTrace is called when a change has replaced the traced chains.
func (a *Agent) interruptTrace() {
	if a.tracing != nil {
		a.tracing.cancel(errChanged)
		a.tracing = nil
	}
}

// follow puts the events of each packet together, which follow each other on a CPU, and shows count packets; all for 0.
func (run *traceRun) follow(ctx context.Context, count int, show func(v1.TracedPacket) error) error {
	const pause = 100 * time.Millisecond
	s := shown{show: show, count: count, open: map[uint16]*openPacket{}}
	for run.ctx.Err() == nil && ctx.Err() == nil && !s.full() {
		e, err := run.trace.Read(time.Now().Add(pause))
		if errors.Is(err, os.ErrDeadlineExceeded) { // nothing more comes for the packets that are open
			err = run.finishAll(&s)
		} else if err == nil {
			err = run.take(&s, e)
		}
		if err != nil {
			return err
		}
	}
	if err := run.finishAll(&s); err != nil {
		return err
	}
	if cause := context.Cause(run.ctx); errors.Is(cause, errChanged) {
		return &fault.Conflict{Reason: cause.Error()}
	}
	return nil
}

// shown are the packets that a client gets.
type shown struct {
	show  func(v1.TracedPacket) error
	count int // limit, 0 for none
	total int
	open  map[uint16]*openPacket // by CPU
}

func (s *shown) full() bool { return s.count > 0 && s.total == s.count }

// take adds an event to its packet.
func (run *traceRun) take(s *shown, e dataplane.TraceEvent) error {
	if e.Head() {
		err := run.finish(s, e.CPU)
		s.open[e.CPU] = run.packet(e)
		return err
	}
	p := s.open[e.CPU]
	if p == nil || p.number != e.Packet {
		return nil // its first event is missing
	}
	if p.decided = run.step(p, e); p.decided {
		return run.finish(s, e.CPU)
	}
	return nil
}

// finish shows the packet of a CPU. One without its last verdict is left out once the trace has lost events: it would seem
// to have ended where it did not.
func (run *traceRun) finish(s *shown, cpu uint16) error {
	p := s.open[cpu]
	delete(s.open, cpu)
	if p == nil || s.full() || !p.decided && run.trace.Lost() > 0 {
		return nil
	}
	s.total++
	return s.show(p.TracedPacket)
}

func (run *traceRun) finishAll(s *shown) error {
	for cpu := range s.open {
		if err := run.finish(s, cpu); err != nil {
			return err
		}
	}
	return nil
}

func (run *traceRun) chain(e dataplane.TraceEvent) chain.Spec {
	return run.trace.Chains[e.Chain-1]
}

// openPacket is a packet of which more events may come.
type openPacket struct {
	v1.TracedPacket
	number  uint64
	now     packetEnds
	decided bool // its last verdict is known
}

// packetEnds are what modules change of a packet.
type packetEnds struct{ protocol, source, destination string }

func endsOf(e dataplane.TraceEvent) packetEnds {
	return packetEnds{protocolName(e), endpoint(e.Addr(e.SourceAddr), e.SourcePort), endpoint(e.Addr(e.DestAddr), e.DestPort)}
}

// packet is a packet as it came in.
func (run *traceRun) packet(e dataplane.TraceEvent) *openPacket {
	spec := run.chain(e)
	place := run.points[chain.Point{Ifindex: int(e.Ifindex), Side: spec.Side}]
	ends := endsOf(e)
	p := &openPacket{number: e.Packet, now: ends, TracedPacket: v1.TracedPacket{
		Time: run.boot.Add(time.Duration(e.Time)), Service: place.Service, Interface: place.Link.Name, Hook: string(spec.Side), Direction: string(spec.Direction),
		Length: e.Len, Protocol: ends.protocol, Source: ends.source, Destination: ends.destination, Outcome: kerbabi.ParseOutcome(e.Outcome).String(),
	}}
	switch e.Proto {
	case protocols["tcp"]:
		p.TCPFlags = tcpFlags(e.TCPFlags)
	case protocols["icmp"], protocols["icmpv6"]:
		p.ICMPType, p.ICMPCode = &e.ICMPType, &e.ICMPCode
	}
	return p
}

// step adds a module's verdict, and reports whether it was the last one.
func (run *traceRun) step(p *openPacket, e dataplane.TraceEvent) (last bool) {
	members := run.chain(e).Members
	verdict := kerbabi.Verdict(e.Verdict)
	s := v1.TraceStep{Module: members[e.Position].Name, Verdict: verdict.String()}
	if verdict == kerbabi.Drop {
		s.Reason = run.reason(s.Module, int(e.Reason))
	}
	if now := endsOf(e); now != p.now {
		s.Protocol, s.Source, s.Destination = now.protocol, now.source, now.destination
		p.now = now
	}
	if verdict == kerbabi.Redirect && e.ToIfindex != 0 {
		s.Interface, s.Service = run.target(e.ToIfindex)
	}
	p.Steps = append(p.Steps, s)
	return int(e.Position) == len(members)-1 || verdict == kerbabi.Drop || verdict == kerbabi.Reply || verdict == kerbabi.Redirect
}

// target names an interface, and its service.
func (run *traceRun) target(ifindex uint32) (name, service string) {
	if place, ok := run.links[ifindex]; ok {
		return place.Link.Name, place.Service
	}
	if l, err := net.InterfaceByIndex(int(ifindex)); err == nil {
		return l.Name, ""
	}
	return fmt.Sprint(ifindex), ""
}

// tcpFlags are the letters that tcpdump prints.
func tcpFlags(bits uint8) string {
	out := ""
	for i, letter := range []string{"F", "S", "R", "P", ".", "U", "E", "W"} {
		if bits&(1<<i) != 0 {
			out += letter
		}
	}
	return out
}

func protocolName(e dataplane.TraceEvent) string {
	if e.Family == 0 {
		return "not ip"
	}
	for name, n := range protocols {
		if n == e.Proto && name != "" {
			return name
		}
	}
	return strconv.Itoa(int(e.Proto))
}

func endpoint(addr netip.Addr, port uint16) string {
	switch {
	case !addr.IsValid():
		return ""
	case port == 0:
		return addr.String()
	}
	return netip.AddrPortFrom(addr, port).String()
}
