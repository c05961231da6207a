// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
)

// TraceFilter says which packets a trace is about. Zero values stand for any.
type TraceFilter struct {
	Addr  netip.Addr // source or destination
	Proto uint8
	Port  uint16 // source or destination
}

// TraceEvent is one module's verdict on one packet. Events of a packet follow each other on a CPU, by position.
type TraceEvent struct {
	Time                 uint64 // ns, CLOCK_MONOTONIC
	Ifindex, Len         uint32
	Chain                uint32
	CPU                  uint16
	Position, Verdict    uint8
	Reason, Outcome      uint8
	Family, Proto        uint8
	SourcePort, DestPort uint16
	SourceAddr, DestAddr [16]byte
}

// Addr is one of the event's addresses; invalid for packets that are not IP.
func (e TraceEvent) Addr(raw [16]byte) netip.Addr {
	switch e.Family {
	case 4:
		return netip.AddrFrom4([4]byte(raw[:4]))
	case 6:
		return netip.AddrFrom16(raw)
	}
	return netip.Addr{}
}

// Trace is a running trace: chains that tell of each module's verdict stand on the points in place of the plain ones.
type Trace struct {
	Chains []ChainSpec // by number - 1 in the events
	filter *ebpf.Map
	events *ebpf.Map
	reader *ringbuf.Reader
	progs  []*chain
}

// traceFilter is struct kerb_trace_filter.
type traceFilter struct {
	Addr   [16]byte
	Family uint8
	Proto  uint8
	Port   uint16
	_      uint32
	Lost   uint64
}

// Trace links the chains of the points again with a call after each module, and puts them in place of the plain ones, in
// one step each. To end it, close it and attach the plain chains again: any plan does, as a traced chain is not pinned.
func (d *Dataplane) Trace(f TraceFilter, points map[Point]ChainSpec, modules map[string]Module) (*Trace, error) {
	t := &Trace{}
	if err := t.prepare(f); err != nil {
		t.Close()
		return nil, err
	}
	loaded := map[string]*chain{}
	for _, p := range slices.SortedFunc(maps.Keys(points), func(a, b Point) int { return a.Ifindex - b.Ifindex }) {
		spec := points[p]
		c := loaded[spec.ID()]
		if c == nil {
			var err error
			if c, err = d.traced(t, spec, modules); err != nil {
				t.Close()
				return nil, err
			}
			loaded[spec.ID()] = c
		}
		if err := d.attach(p, c.entry()); err != nil {
			t.Close()
			return nil, err
		}
	}
	return t, nil
}

// prepare makes the maps of a trace.
func (t *Trace) prepare(f TraceFilter) error {
	l, err := newLinker(ChainSpec{Side: OnTCIngress}, nil)
	if err != nil {
		return err
	}
	if t.filter, err = ebpf.NewMap(l.object.Maps["kerb_filter"]); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	if t.events, err = ebpf.NewMap(l.object.Maps["kerb_events"]); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	raw := traceFilter{Proto: f.Proto, Port: f.Port}
	if f.Addr.Is4() {
		a := f.Addr.As4()
		copy(raw.Addr[:], a[:])
		raw.Family = 4
	} else if f.Addr.IsValid() {
		raw.Addr, raw.Family = f.Addr.As16(), 6
	}
	if err := t.filter.Put(uint32(0), raw); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	t.reader, err = ringbuf.NewReader(t.events)
	return err
}

func (d *Dataplane) traced(t *Trace, spec ChainSpec, modules map[string]Module) (*chain, error) {
	if _, err := os.Stat(filepath.Join(d.layout.chain(spec), "prog1")); err == nil {
		return nil, fmt.Errorf("chain %s: %w", spec.ID(), ErrSplit)
	}
	members, err := d.openMembers(spec, modules)
	defer closeMembers(members)
	if err != nil {
		return nil, err
	}
	l, err := newLinker(spec, members)
	if err != nil {
		return nil, err
	}
	t.Chains = append(t.Chains, spec)
	l.traced = int32(len(t.Chains))
	l.maps["kerb_filter"], l.maps["kerb_events"] = t.filter, t.events
	c, err := l.chain()
	if err != nil {
		return nil, err
	}
	t.progs = append(t.progs, c)
	if c.parts != nil { // its table would end with this process, and the chain with it
		return nil, fmt.Errorf("chain %s: %w", spec.ID(), ErrSplit)
	}
	return c, nil
}

// Read returns the next event. It waits until the deadline at most: os.ErrDeadlineExceeded then.
func (t *Trace) Read(deadline time.Time) (TraceEvent, error) {
	var e TraceEvent
	t.reader.SetDeadline(deadline)
	record, err := t.reader.Read()
	if err != nil {
		return e, err
	}
	return e, binary.Read(bytes.NewReader(record.RawSample), binary.NativeEndian, &e)
}

// Runs tells whether a program is one of the trace's.
func (t *Trace) Runs(id ebpf.ProgramID) bool {
	for _, c := range t.progs {
		if info, err := c.entry().Info(); err == nil {
			if own, ok := info.ID(); ok && own == id {
				return true
			}
		}
	}
	return false
}

// Lost is how many events had no room.
func (t *Trace) Lost() uint64 {
	var f traceFilter
	if err := t.filter.Lookup(uint32(0), &f); err != nil {
		return 0
	}
	return f.Lost
}

// Close frees the trace. Programs that are still attached run on until they are replaced.
func (t *Trace) Close() {
	if t.reader != nil {
		t.reader.Close()
	}
	for _, c := range t.progs {
		c.Close()
	}
	for _, m := range []*ebpf.Map{t.filter, t.events} {
		if m != nil {
			m.Close()
		}
	}
}
