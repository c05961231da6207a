// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/net/bpf"

	"github.com/kerb-edge/kerb/internal/chain"
)

// TraceSessions is KERB_TRACE_SESSIONS.
const TraceSessions = 4

// ErrTraces reports that the maximum number of trace sessions is running.
var ErrTraces = fmt.Errorf("%d traces are running, which is the most at a time", TraceSessions)

// tracer is shared by all trace sessions.
type tracer struct {
	Chains []chain.Spec // by number - 1 in the events

	filters *ebpf.Map    // by session
	rings   *ebpf.Map    // the same
	at      *ebpf.Map    // sessions by interface
	traced  *ebpf.Map    // the packet that each CPU is processing
	follow  *ebpf.Map    // packets between two chains
	kernel  *kernelDrops // nil: no session needs them

	messages map[uint32]*tracedMessages // of modules on sockets, by their id

	sessions [TraceSessions]*Trace
	linked   []tracedChain
	running  map[chain.Point]*linkedChain
	pins     int // number of pinned tail-call tables
}

// tracedChain is a chain that reports to the sessions.
type tracedChain struct {
	*linkedChain
	number      int
	expressions sessionExpressions
}

// sessionExpressions are a chain's expressions by session; nil accepts all frames.
type sessionExpressions [TraceSessions][]bpf.Instruction

// newTracer creates the maps.
func newTracer() (*tracer, error) {
	l, err := newLinker(chain.Spec{Side: chain.OnTCIngress}, nil)
	if err != nil {
		return nil, err
	}
	t := &tracer{running: map[chain.Point]*linkedChain{}, messages: map[uint32]*tracedMessages{}}
	for name, m := range map[string]**ebpf.Map{"kerb_filter": &t.filters, "kerb_events": &t.rings, "kerb_trace_at": &t.at,
		"kerb_traced": &t.traced, "kerb_followed": &t.follow} {
		if *m, err = ebpf.NewMap(l.object.Maps[name]); err != nil {
			t.free()
			return nil, fmt.Errorf("trace: %w", err)
		}
	}
	return t, nil
}

func (t *tracer) idle() bool { return t.sessions == [TraceSessions]*Trace{} }

func (t *tracer) free() {
	for _, c := range t.linked {
		c.Close()
	}
	t.linked = nil
	if t.kernel != nil {
		t.kernel.Close()
		t.kernel = nil
	}
	for _, m := range t.messages {
		m.close()
	}
	clear(t.messages)
	for _, m := range []*ebpf.Map{t.filters, t.rings, t.at, t.traced, t.follow} {
		if m != nil {
			m.Close()
		}
	}
}

// open returns a session without points.
func (t *tracer) open(f TraceFilter) (*Trace, error) {
	free := slices.Index(t.sessions[:], nil)
	if free < 0 {
		return nil, ErrTraces
	}
	s := &Trace{tracer: t, session: free, filter: f, points: map[chain.Point]bool{}}
	t.sessions[free] = s
	if err := s.makeRing(); err != nil {
		s.Close()
		return nil, fmt.Errorf("trace: %w", err)
	}
	return s, nil
}

func (t *Trace) makeRing() error {
	l, err := newLinker(chain.Spec{Side: chain.OnTCIngress}, nil)
	if err != nil {
		return err
	}
	if t.ring, err = ebpf.NewMap(l.object.Maps["kerb_events"].InnerMap); err != nil {
		return err
	}
	if err := t.rings.Put(uint32(t.session), t.ring); err != nil {
		return err
	}
	t.reader, err = ringbuf.NewReader(t.ring)
	return err
}

// watch adds the point's interface to the session's interfaces.
func (t *Trace) watch(p chain.Point) error {
	t.points[p] = true
	return t.setSessions(p.Ifindex)
}

// setSessions writes which sessions watch an interface.
func (t *tracer) setSessions(ifindex int) error {
	var bits uint32
	for i, s := range t.sessions {
		if s != nil && s.sees(ifindex) {
			bits |= 1 << i
		}
	}
	if err := t.at.Put(uint32(ifindex), bits); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	return nil
}

func (t *Trace) sees(ifindex int) bool {
	for p := range t.points {
		if p.Ifindex == ifindex {
			return true
		}
	}
	return false
}

// activate starts the comparison of packets with the filter.
func (t *Trace) activate() error {
	f := t.filter.raw()
	f.Active = 1
	if err := t.filters.Put(uint32(t.session), f); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	return nil
}

// wanted returns the expressions of the running sessions.
func (t *tracer) wanted() (all sessionExpressions) {
	for i, s := range t.sessions {
		if s != nil {
			all[i] = s.filter.Expression
		}
	}
	return all
}

// serves reports whether the chain has the expressions of all running sessions. Other ones do not matter.
func (t *tracer) serves(c tracedChain) bool {
	for i, s := range t.sessions {
		if s != nil && !slices.Equal(c.expressions[i], s.filter.Expression) {
			return false
		}
	}
	return true
}

// chainFor returns a chain that reports to all sessions: an existing one, or a new one.
func (t *tracer) chainFor(d *Dataplane, spec chain.Spec, modules map[string]Module) (*linkedChain, error) {
	for _, c := range t.linked {
		if t.Chains[c.number].ID() == spec.ID() && t.serves(c) {
			return c.linkedChain, nil
		}
	}
	return d.traced(t, spec, modules)
}

// traced links a chain that reports every verdict, with the members and maps of the running one.
func (d *Dataplane) traced(t *tracer, spec chain.Spec, modules map[string]Module) (*linkedChain, error) {
	members, err := d.openMembers(spec, modules)
	defer closeMembers(members)
	if err != nil {
		return nil, err
	}
	plain, parts, err := openPlain(spec, d.layout.chain(spec))
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	c, err := t.link(spec, members, parts, plain)
	if err != nil {
		return nil, err
	}
	if c.parts == nil {
		return c, nil
	}
	// Without a pin the kernel clears the table when this process ends, and packets would miss the other parts.
	if err := os.MkdirAll(d.layout.traces(), 0o700); err != nil {
		return nil, err
	}
	t.pins++
	if err := pinCopy(c.parts, filepath.Join(d.layout.traces(), fmt.Sprintf("%s-%d", spec.ID(), t.pins))); err != nil {
		return nil, fmt.Errorf("chain %s: pin its tail-call table: %w", spec.ID(), err)
	}
	return c, nil
}

// link links a chain that reports to the sessions, in at least this many parts, with the counters of the plain one, if
// any.
func (t *tracer) link(spec chain.Spec, members []*mapSet, parts int, plain *linkedChain) (*linkedChain, error) {
	l, err := newLinker(spec, members)
	if err != nil {
		return nil, err
	}
	number := t.number(spec)
	l.traced, l.parts, l.plain, l.expressions = int32(number+1), parts, plain, t.wanted()
	l.maps["kerb_filter"], l.maps["kerb_events"], l.maps["kerb_traced"] = t.filters, t.rings, t.traced
	l.maps["kerb_trace_at"], l.maps["kerb_followed"] = t.at, t.follow
	c, err := l.chain()
	if err != nil {
		return nil, err
	}
	t.linked = append(t.linked, tracedChain{c, number, l.expressions})
	return c, nil
}

// number returns the index of a chain in Chains, and adds it if it is new.
func (t *tracer) number(spec chain.Spec) int {
	number := slices.IndexFunc(t.Chains, func(s chain.Spec) bool { return s.ID() == spec.ID() })
	if number < 0 {
		number = len(t.Chains)
		t.Chains = append(slices.Clip(t.Chains), spec) // readers have the previous slice
	}
	return number
}

// Runs reports whether a program belongs to this trace or to another running session.
func (t *tracer) Runs(id uint32) bool {
	for _, c := range t.linked {
		if info, err := c.entry().Info(); err == nil {
			if own, ok := info.ID(); ok && uint32(own) == id {
				return true
			}
		}
	}
	return false
}

// Close frees the session. Programs that are still attached keep running until they are replaced.
func (t *Trace) Close() {
	if t.sessions[t.session] != t {
		return
	}
	_ = t.filters.Put(uint32(t.session), traceFilter{}) // at worst packets are compared with it until all sessions end
	t.ignoreMessages()
	t.sessions[t.session] = nil
	if t.reader != nil {
		t.reader.Close()
	}
	if t.ring != nil {
		_ = t.rings.Delete(uint32(t.session)) // as above
		t.ring.Close()
	}
	if t.idle() {
		t.free()
		return
	}
	for p := range t.points {
		_ = t.setSessions(p.Ifindex)
	}
	t.ignoreKernel()
	t.forget()
}

// forget closes chains that are no longer on a point of any session.
func (t *tracer) forget() {
	for p := range t.running {
		if !slices.ContainsFunc(t.sessions[:], func(s *Trace) bool { return s != nil && s.points[p] }) {
			delete(t.running, p)
		}
	}
	used := map[*linkedChain]bool{}
	for _, c := range t.running {
		used[c] = true
	}
	t.linked = slices.DeleteFunc(t.linked, func(c tracedChain) bool {
		if used[c.linkedChain] {
			return false
		}
		c.Close()
		return true
	})
}
