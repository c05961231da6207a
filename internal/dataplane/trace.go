// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/net/bpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/kerbabi"
)

// TraceFilter selects the packets of a trace. Zero values match any packet.
type TraceFilter struct {
	Addr  netip.Prefix // of source or destination; masked
	Proto uint8        // IANA number, after extension headers
	Port  uint16       // source or destination
	Bytes int          // reported of each packet, from its L2 header on; at most TraceBytes
	// SlowerThan leaves out packets whose modules together took no longer in each chain. The data plane holds their events
	// back, so that they take no room.
	SlowerThan time.Duration
	// Netns is the cookie of the network namespace of the messages' sockets. Packets have none.
	Netns uint64
	// After also reports packets that the kernel dropped after the last chain.
	After bool
	// Expression is a classic BPF program for frames with an Ethernet header, which returns 0 for frames that do not
	// match. Messages have no frame, and match.
	Expression []bpf.Instruction
}

// TraceBytes is KERB_TRACE_BYTES.
const TraceBytes = 256

// TraceEvent is a packet at the head of a chain, or after one module's verdict: struct kerb_trace_event. Events of a
// packet are consecutive on a CPU, ordered by position.
type TraceEvent struct {
	traceEvent
	Bytes []byte // of the packet, as it arrived; of KernelDropped the name of a function
}

type traceEvent struct {
	Time                 uint64 // ns, CLOCK_MONOTONIC
	Packet               uint64 // number of the packet on its CPU
	Elapsed              uint64 // ns that the module took, including about 20 for reading the clock; 0 in the first event
	NoteWord             uint64 // of the module: see Note
	Trace                uint64 // of the packet, the same at each chain that it meets
	Ifindex, Len         uint32 // of the chain's interface; bytes of the frame with its L2 header
	Chain                uint32 // index in Trace.Chains, plus 1
	ToIfindex            uint32 // of a redirect
	CPU                  uint16
	SourcePort, DestPort uint16 // host byte order; 0 without ports
	Position, Verdict    uint8  // of the module in the chain, or traceHead; its verdict (KERB_NEXT ...)
	Reason, Outcome      uint8  // of KERB_DROP (enum kerb_drop_reason); of the parser (enum kerb_parse)
	Family, Proto        uint8  // 4, 6, or 0 if it is not IP; IANA number
	TCPFlags             uint8  // as in the header: FIN is 1
	ICMPType, ICMPCode   uint8
	ToFlags              uint8    // of a redirect (KERB_TO_*)
	SourceAddr, DestAddr [16]byte // network byte order; IPv4 in the first four bytes
	// trace_key: the same wherever the packet is the same, on other nodes too; 0: none. For a message: see Message
	Key uint64
}

// traceHead is the position of a packet's first event: the packet as it arrived.
const traceHead = 0xff

// Head reports whether the event is the packet as it arrived, before any module.
func (e TraceEvent) Head() bool { return e.Position == traceHead }

// Deferred reports whether the subsequent modules see a packet that this one has redirected.
func (e TraceEvent) Deferred() bool { return e.ToFlags&kerbabi.ToDeferred != 0 }

// Addr returns one of the event's addresses; invalid for packets that are not IP.
func (e TraceEvent) Addr(raw [16]byte) netip.Addr {
	switch e.Family {
	case 4:
		return netip.AddrFrom4([4]byte(raw[:4]))
	case 6:
		return netip.AddrFrom16(raw)
	}
	return netip.Addr{}
}

// Trace is a session: on its points, chains that report each module's verdict replace the plain ones. Sessions that run
// at the same time share these chains.
type Trace struct {
	*tracer
	session int
	filter  TraceFilter
	points  map[chain.Point]bool
	missing error
	ring    *ebpf.Map
	reader  *ringbuf.Reader
}

// traceFilter is struct kerb_trace_filter.
type traceFilter struct {
	Addr, Mask [16]byte
	Family     uint8
	Proto      uint8
	Port       uint16
	Bytes      uint32
	Lost       uint64
	Slower     uint64
	Active     uint64
	After      uint64
	Netns      uint64
}

// raw returns the filter in the data plane's format: addresses and masks in network byte order, family 0 for any
// address.
func (f TraceFilter) raw() traceFilter {
	raw := traceFilter{Proto: f.Proto, Port: f.Port, Bytes: uint32(f.Bytes), Slower: uint64(f.SlowerThan),
		Netns: f.Netns}
	if f.After {
		raw.After = 1
	}
	if !f.Addr.IsValid() {
		return raw
	}
	raw.Family = 6
	if f.Addr.Addr().Is4() {
		raw.Family = 4
	}
	copy(raw.Addr[:], f.Addr.Masked().Addr().AsSlice())
	copy(raw.Mask[:], net.CIDRMask(f.Addr.Bits(), f.Addr.Addr().BitLen()))
	return raw
}

// Trace links the chains of the points again with a call after each module, and atomically replaces the plain ones;
// modules on sockets report themselves. To end it, attach the plain chains of points that no other session uses and
// close it: any plan does, as a traced chain is not pinned. Beyond TraceSessions sessions at a time it returns
// ErrTraces.
func (d *Dataplane) Trace(f TraceFilter, points map[chain.Point]chain.Spec, modules map[string]Module) (*Trace, error) {
	if d.tracer == nil || d.tracer.idle() {
		t, err := newTracer()
		if err != nil {
			return nil, err
		}
		d.tracer = t
	}
	t, err := d.tracer.open(f)
	if err != nil {
		return nil, err
	}
	if err := d.startTrace(t, points, modules); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

func (d *Dataplane) startTrace(t *Trace, points map[chain.Point]chain.Spec, modules map[string]Module) error {
	if t.filter.After {
		if err := t.watchKernel(); errors.Is(err, ErrKernelDrops) {
			t.missing = err
		} else if err != nil {
			return err
		}
	}
	order := slices.DeleteFunc(chain.Sorted(points), func(p chain.Point) bool { return !p.Side.SeesPackets() })
	linked := map[chain.Point]*linkedChain{}
	for _, p := range order {
		c, err := t.chainFor(d, points[p], modules)
		if err != nil {
			return err
		}
		linked[p] = c
		if err := t.watch(p); err != nil {
			return err
		}
	}
	for _, p := range order { // so that a packet from one point to the other is seen at both as soon as possible
		if t.running[p] == linked[p] {
			continue
		}
		if err := d.attach(p, linked[p].entry()); err != nil {
			return err
		}
		t.running[p] = linked[p]
	}
	for p, spec := range points {
		if p.Side.SeesPackets() {
			continue
		}
		if err := t.watchMessages(d, spec, modules); err != nil {
			return err
		}
	}
	return t.activate()
}

// NewTrace returns a trace without chains, which Loaded.Trace adds.
func NewTrace(f TraceFilter) (*Trace, error) {
	shared, err := newTracer()
	if err != nil {
		return nil, err
	}
	t, err := shared.open(f)
	if err != nil {
		return nil, err
	}
	if err := t.activate(); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// ForgetTraces unpins what traced chains need to outlive an agent, and ends the reports of modules on sockets. Call it
// only when no traced chain is attached.
func (d *Dataplane) ForgetTraces() error {
	err := d.forgetMessages()
	if err != nil {
		err = fmt.Errorf("end the trace of messages: %w", err)
	}
	return errors.Join(err, removePins(d.layout.traces()))
}

// Read returns the next event. It waits until the deadline and returns os.ErrDeadlineExceeded then.
func (t *Trace) Read(deadline time.Time) (TraceEvent, error) {
	var e TraceEvent
	t.reader.SetDeadline(deadline)
	record, err := t.reader.Read()
	if err != nil {
		return e, err
	}
	n, err := binary.Decode(record.RawSample, binary.NativeEndian, &e.traceEvent)
	if err == nil && (e.Head() || e.KernelDropped()) {
		e.Bytes = record.RawSample[n:]
	}
	return e, err
}

// Missing returns why the kernel does not report what TraceFilter.After requests: ErrKernelDrops, or nil. The rest of
// the trace is unaffected.
func (t *Trace) Missing() error { return t.missing }

// Lost returns the number of events for which there was no room.
func (t *Trace) Lost() uint64 {
	var f traceFilter
	if err := t.filters.Lookup(uint32(t.session), &f); err != nil {
		return 0
	}
	return f.Lost + t.lostMessages()
}

// traceHead generates the report of the packet as it arrived.
func (l *linker) traceHead() asm.Instructions {
	return append(l.pkt(asm.R1), asm.Mov.Imm(asm.R2, l.traced), asm.Call.Label("kerb_trace_head"))
}

// reports reports whether the chain has a call after each module.
func (l *linker) reports() bool { return l.traced != 0 || l.timed }

// report generates code that traces or times module i, whose verdict is in R0 and is preserved.
func (l *linker) report(i int) asm.Instructions {
	if !l.reports() {
		return nil
	}
	flags, reporter := int32(-1), "kerb_trace"
	if l.timed {
		reporter = "kerb_slow_module"
	}
	if !l.defers(i) { // redirected packets leave immediately
		flags = ^kerbabi.ToDeferred
	}
	return keepR0(append(l.pkt(asm.R1),
		asm.Mov.Imm(asm.R2, int32(i)),
		asm.Mov.Reg(asm.R3, asm.R0),
		asm.Mov.Imm(asm.R4, l.traced),
		asm.Mov.Imm(asm.R5, flags),
		asm.Call.Label(reporter),
	))
}

// keepR0 saves R0 across a call.
func keepR0(code asm.Instructions) asm.Instructions {
	return append(append(asm.Instructions{asm.Mov.Reg(asm.R7, asm.R0)}, code...), asm.Mov.Reg(asm.R0, asm.R7))
}
