// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/kerbabi"
)

// traceMessages starts a session that sees what the module on sockets does.
func (w *socketsWorld) traceMessages(t *testing.T, f TraceFilter, spec chain.Spec, m Module) *Trace {
	t.Helper()
	trace, err := w.Trace(f, map[chain.Point]chain.Spec{w.point: spec}, map[string]Module{m.Name: m})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(trace.Close)
	return trace
}

// nextMessage is the next event, or a zero one if there is none soon.
func nextMessage(t *testing.T, trace *Trace) (e TraceEvent) {
	t.Helper()
	e, err := trace.Read(time.Now().Add(200 * time.Millisecond))
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return e
}

// pinnedMessages are the pins of a trace of messages.
func (w *socketsWorld) pinnedMessages(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(w.layout.traces(), "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Sessions see the messages that they ask for, with what the module did; connections of before the trace, too, and
// those of IPv4 of a server that listens on IPv6.
func TestTraceOfMessages(t *testing.T) {
	w := newSocketsWorld(t)
	m := socketsModule(t, "sockets", nil)
	spec := w.deploy(t, m, "")
	for _, at := range []struct{ listen, to string }{{"127.0.0.1", "127.0.0.1"}, {"::1", "::1"}, {"::", "127.0.0.1"}} {
		p := connectTo(t, at.listen, at.to)
		p.send(t, "before")
		p.expect(t, "before")
		client, server := p.client.LocalAddr().(*net.TCPAddr).AddrPort(), p.client.RemoteAddr().(*net.TCPAddr).AddrPort()
		own := TraceFilter{Port: client.Port(), Addr: netip.PrefixFrom(server.Addr(), server.Addr().BitLen())}
		all, one := w.traceMessages(t, TraceFilter{SlowerThan: 1}, spec, m), w.traceMessages(t, own, spec, m)
		elsewhere := w.traceMessages(t, TraceFilter{Netns: 1 << 63}, spec, m)
		other := w.traceMessages(t, TraceFilter{SlowerThan: time.Hour}, spec, m)
		p.send(t, "hello")
		p.expect(t, "hello")
		p.client, p.server = p.server, p.client
		p.send(t, "back")
		p.expect(t, "back")
		for _, s := range []*Trace{all, one} {
			checkMessage(t, nextMessage(t, s), client, server, 5)
			e := nextMessage(t, s)
			checkMessage(t, e, server, client, 4)
			if s.Chains[e.Chain-1].ID() != spec.ID() {
				t.Errorf("of chain %d", e.Chain)
			}
		}
		for _, s := range []*Trace{all, one, elsewhere, other} {
			if e := nextMessage(t, s); e.Message() || s.Lost() != 0 {
				t.Errorf("%s: another one: %+v, %d lost", at.listen, e, s.Lost())
			}
			s.Close()
		}
		if err := w.ForgetTraces(); err != nil || len(w.pinnedMessages(t)) != 0 {
			t.Errorf("%s: pinned after it: %v (%v)", at.listen, w.pinnedMessages(t), err)
		}
	}
}

// checkMessage checks the event of a message that was redirected.
func checkMessage(t *testing.T, e TraceEvent, from, to netip.AddrPort, length uint32) {
	t.Helper()
	key, value := e.Note()
	if !e.Message() || kerbabi.Verdict(e.Verdict) != kerbabi.Redirect || e.Len != length || e.Proto != 6 ||
		netip.AddrPortFrom(e.Addr(e.SourceAddr), e.SourcePort) != from ||
		netip.AddrPortFrom(e.Addr(e.DestAddr), e.DestPort) != to ||
		key != 1 || value != uint64(to.Port()) || e.Elapsed == 0 || e.Key == 0 {
		t.Errorf("%+v, want a message of %d bytes from %v to %v", e, length, from, to)
	}
}

// What an agent that was killed has begun ends with the next one.
func TestTraceOfMessagesEnds(t *testing.T) {
	w := newSocketsWorld(t)
	m := socketsModule(t, "sockets", nil)
	spec := w.deploy(t, m, "")
	trace := w.traceMessages(t, TraceFilter{}, spec, m)
	p := connect(t)
	p.send(t, "one")
	p.expect(t, "one")
	if e := nextMessage(t, trace); !e.Message() {
		t.Fatal("no message")
	}
	maps := w.maps(t, m)
	var s messageSessions
	ring := func() error {
		var id uint32
		return maps[messageEventsMap].Lookup(uint32(0), &id)
	}
	if err := errors.Join(maps[messageSessionsMap].Lookup(uint32(0), &s), ring()); err != nil || s.Sessions != 1 {
		t.Errorf("while it runs: %+v, %v", s, err)
	}
	w.reopen(t)
	if err := w.ForgetTraces(); err != nil {
		t.Fatal(err)
	}
	if err := maps[messageSessionsMap].Lookup(uint32(0), &s); err != nil || s.Sessions != 0 {
		t.Errorf("after it: %+v, %v", s, err)
	}
	if err := ring(); err == nil {
		t.Error("the ring is still there")
	}
	p.send(t, "two")
	p.expect(t, "two")
	if e := nextMessage(t, trace); e.Message() {
		t.Errorf("%+v", e)
	}
	if n := len(w.pinnedMessages(t)); n != 0 {
		t.Errorf("%d pins", n)
	}
}

// Sessions do not disturb each other when the module has another configuration meanwhile, with the same maps or new
// ones; and what an agent leaves that is killed then ends with the next one.
func TestTraceOfMessagesAcrossChanges(t *testing.T) {
	for name, entries := range map[string]uint32{"the same maps": 1024, "new maps": 512} {
		t.Run(name, func(t *testing.T) {
			w := newSocketsWorld(t)
			m := socketsModule(t, "sockets", nil)
			first := w.traceMessages(t, TraceFilter{}, w.deploy(t, m, ""), m)
			next := socketsModule(t, "sockets", nil)
			next.ID, next.Settings.MaxEntries = "0123456789", map[string]uint32{"peers": entries}
			second := w.traceMessages(t, TraceFilter{}, w.deploy(t, next, m.ID), next)
			p := connect(t)
			p.send(t, "hello")
			p.expect(t, "hello")
			if e := nextMessage(t, second); !e.Message() || second.Chains[e.Chain-1].Members[0].Name != "sockets" {
				t.Errorf("the second session sees %+v", e)
			}
			if e := nextMessage(t, first); e.Message() != (entries == 1024) {
				t.Errorf("the first session sees %+v", e)
			}
			first.Close()
			p.send(t, "again")
			p.expect(t, "again")
			if e := nextMessage(t, second); !e.Message() {
				t.Error("the second session has ended with the first")
			}
			w.reopen(t)
			if err := w.ForgetTraces(); err != nil {
				t.Fatal(err)
			}
			for _, of := range []Module{m, next} {
				var s messageSessions
				if err := w.maps(t, of)[messageSessionsMap].Lookup(uint32(0), &s); err != nil || s.Sessions != 0 {
					t.Errorf("afterwards: %+v, %v", s, err)
				}
			}
		})
	}
}

// Messages for which there is no room are counted, and others follow.
func TestLostMessages(t *testing.T) {
	w := newSocketsWorld(t)
	m := socketsModule(t, "sockets", nil)
	spec := w.deploy(t, m, "")
	trace := w.traceMessages(t, TraceFilter{}, spec, m)
	p := connect(t)
	if err := w.maps(t, m)[messageEventsMap].Delete(uint32(0)); err != nil {
		t.Fatal(err)
	}
	p.send(t, "one")
	p.expect(t, "one")
	if trace.Lost() != 1 {
		t.Errorf("%d lost, want 1", trace.Lost())
	}
}
