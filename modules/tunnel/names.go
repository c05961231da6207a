// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// addTo adds what an instance on another node is called between nodes. at is the place of its node. Of several virtual
// services with the same virtual address the first one has it.
func (l located) addTo(names map[address]name, at uint32) {
	if _, taken := names[l.virtual.As16()]; l.virtual.IsValid() && !taken {
		names[l.virtual.As16()] = name{Node: at}
	}
}

// syncNames writes the names, which mode oakestra has. The data plane writes to them, too. Those that are not wanted go
// first, whatever follows: after a change of the mode, which the map outlives, a name would permit its source to
// whatever node has its place by then.
func (t *tunnel) syncNames(want map[address]name) error {
	inUse := t.config.Mode == modeOakestra
	if !inUse {
		want = nil
	}
	before, err := sdk.ReadTable[address, name](t.live.Maps, mapNames)
	if err != nil {
		return err
	}
	for a, b := range before {
		if n, stays := want[a]; stays {
			n.Used = b.Used
			want[a] = n
		} else if t.complete || !inUse {
			if err := t.live.Maps.Delete(mapNames, a); err != nil {
				return err
			}
		}
	}
	if len(want) > maxNames {
		return fmt.Errorf("%d virtual addresses of instances exceed the maximum of %d", len(want), maxNames)
	}
	for a, n := range want {
		if b, there := before[a]; there && b == n {
			continue
		}
		if err := t.live.Maps.Put(mapNames, a, n); err != nil {
			return err
		}
	}
	return nil
}

// Times and limits of senders.
const (
	askAgain   = 10 * time.Second // after which an unknown source is looked up again
	idleFor    = 5 * time.Minute  // after which a sender is forgotten
	forgetEach = time.Second      // how often expired lookups are searched for
	maxAsked   = 4096
	maxAskedBy = 64 // for packets from one outer address: inner sources can be made up at will
	// how long a lookup counts whose source turns out to be of another node: about as long as the proxy keeps what was
	// found for nothing
	foreignFor = 10 * time.Minute
	// how often an outer address beyond maxAskedBy has a source looked up all the same: another node may have made it
	// up, and its node has new senders
	trickle = time.Second
)

// lookups are the sources that are being looked up.
type lookups struct {
	pending map[netip.Addr]lookup // by source
	of      map[netip.Addr]asker  // by the outer address that the packet came from
	foreign []foreign             // oldest first
	swept   time.Time
}

// asker is an outer address that packets from unknown sources came from.
type asker struct {
	pending, foreign int // lookups; one that is foreign is not counted as pending
	last             time.Time
}

// foreign is a lookup for a packet that its source has not sent: it filled tables that all share for nothing.
type foreign struct {
	from  netip.Addr
	until time.Time
}

type lookup struct {
	from  netip.Addr
	begun time.Time // it is not looked up again for askAgain
	over  bool      // it has been answered, or was not in time
	spent bool      // it counts as foreign
}

func newLookups() lookups {
	return lookups{pending: map[netip.Addr]lookup{}, of: map[netip.Addr]asker{}}
}

// begin reports whether a source is to be looked up. One that is being looked up is not, nor one beyond the limits.
func (l *lookups) begin(source, from netip.Addr, now time.Time) bool {
	if now.Sub(l.swept) >= forgetEach {
		l.swept = now
		for a, p := range l.pending {
			if now.Sub(p.begun) >= askAgain {
				l.end(a)
			}
		}
		for len(l.foreign) > 0 && !now.Before(l.foreign[0].until) {
			l.forgive()
		}
	}
	by := l.of[from]
	if _, pending := l.pending[source]; pending || len(l.pending) >= maxAsked || by.pending >= maxAskedBy ||
		by.pending+by.foreign >= maxAskedBy && now.Sub(by.last) < trickle {
		return false
	}
	l.pending[source] = lookup{from: from, begun: now}
	by.pending, by.last = by.pending+1, now
	l.of[from] = by
	return true
}

// end reports whether a source was being looked up.
func (l *lookups) end(source netip.Addr) bool {
	p, pending := l.pending[source]
	if !pending {
		return false
	}
	delete(l.pending, source)
	if !p.spent {
		l.count(p.from, -1, 0)
	}
	return true
}

// count adds to the lookups of an outer address.
func (l *lookups) count(from netip.Addr, pending, foreign int) {
	by := l.of[from]
	by.pending, by.foreign = by.pending+pending, by.foreign+foreign
	l.of[from] = by
	if by.pending+by.foreign == 0 {
		delete(l.of, from)
	}
}

// answered notes that a source is an address of a service: of an instance on a node, or of none (an invalid one). If
// the packet came from another node, which may not send from it, the lookup counts as foreign.
func (l *lookups) answered(source, node netip.Addr, now time.Time) {
	p, pending := l.pending[source]
	if !pending || p.spent || p.from == node {
		return
	}
	p.spent, p.over = true, true
	l.pending[source] = p
	if len(l.foreign) == maxAsked {
		l.forgive()
	}
	l.foreign = append(l.foreign, foreign{p.from, now.Add(foreignFor)})
	l.count(p.from, -1, 1)
}

// forgive forgets the oldest foreign lookup.
func (l *lookups) forgive() {
	l.count(l.foreign[0].from, 0, -1)
	l.foreign = l.foreign[1:]
}

// waits reports whether the answer is still to come.
func (l *lookups) waits(source netip.Addr) bool {
	p, pending := l.pending[source]
	return pending && !p.over
}

// fail notes that a source is not to be waited for.
func (l *lookups) fail(source netip.Addr) {
	if p, pending := l.pending[source]; pending {
		p.over = true
		l.pending[source] = p
	}
}

// stranger mirrors struct tun_stranger, an event: a packet with an unknown source, which follows.
type stranger struct {
	Source, From               address
	Ifindex, Len, TOS, Partial uint32
	To                         address // outer destination
	Port, _                    [2]byte // outer source port, big endian
}

func parseStranger(raw []byte) (p heldPacket, ok bool) {
	var s stranger
	n, err := binary.Decode(raw, binary.NativeEndian, &s)
	if err != nil || int(s.Len) > len(raw)-n {
		return p, false
	}
	p = heldPacket{source: s.Source.addr(), from: s.From.addr(), ifindex: s.Ifindex, tos: byte(s.TOS),
		to: s.To.addr(), port: binary.BigEndian.Uint16(s.Port[:])}
	if s.Len >= 14 {
		p.frame = bytes.Clone(raw[n : n+int(s.Len)])
	}
	if s.Partial != 0 { // which the kernel would not know any more
		sdk.CompleteChecksum(p.frame)
	}
	return p, true
}

// followStrangers looks up the senders of packets until ctx ends.
func (t *tunnel) followStrangers(ctx context.Context) {
	ring, err := t.live.Maps.Get(mapStrange)
	if err != nil {
		slog.Error("tunnel: senders are not looked up", "module", t.live.Module, "error", err)
		return
	}
	for raw, err := range sdk.PromptEvents(ctx, ring) {
		if err != nil {
			slog.Error("tunnel: senders are not looked up", "module", t.live.Module, "error", err)
			return
		}
		if p, ok := parseStranger(raw); ok {
			t.ask(p, time.Now())
		}
	}
}

// ask looks up the source of a packet, and holds the packet meanwhile. An attacker may have made up its source and the
// outer one.
func (t *tunnel) ask(p heldPacket, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	named := t.isNamed(p.source) // the answer has come while the packet was on its way here
	if !named && t.asked.begin(p.source, p.from, now) {
		t.live.Resolve(p.source)
		time.AfterFunc(holdFor, func() { t.overdue(p.source, now) })
	}
	switch {
	case p.frame == nil:
		t.held.counts.Long++
	case named:
		t.pass([]heldPacket{p})
	case t.asked.waits(p.source):
		t.held.add(p)
	default:
		t.held.counts.Denied++
	}
}

// overdue ends the wait for a lookup that began then.
func (t *tunnel) overdue(source netip.Addr, begun time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked.waits(source) && t.asked.pending[source].begun.Equal(begun) {
		t.asked.fail(source)
		t.held.counts.Overdue += uint64(len(t.held.take(source)))
	}
}

// isNamed reports whether the data plane knows a source.
func (t *tunnel) isNamed(source netip.Addr) bool {
	var n name
	return t.live.Maps.Lookup(mapNames, address(source.As16()), &n) == nil
}

// pass has packets arrive again. The data plane judges them as if it had not seen them. t.mu is held.
func (t *tunnel) pass(packets []heldPacket) {
	for _, p := range packets {
		if t.live.Arrive(p.ifindex, p.wrap(t.config.Port)) {
			t.held.counts.Passed++
		} else {
			t.held.counts.Dropped++
		}
	}
}

// lookedUp notes which services were looked up here, and so are in use, and has the packets of sources arrive again
// that the data plane knows now. A source may turn out to be an instance of this node, or an address of a whole
// service, which no instance sends from. t.mu is held.
func (t *tunnel) lookedUp(update sdk.VirtualServiceUpdate, now time.Time) {
	for _, service := range update.Put {
		for _, a := range service.Spec.Addresses {
			addr, err := netip.ParseAddr(a.Address)
			p, pending := t.asked.pending[addr]
			if err != nil || !pending {
				continue
			}
			t.senders[service.Name] = now
			node := t.nodeNamed(service.Name, addr)
			t.asked.answered(addr, node, now)
			if !t.isNamed(addr) {
				t.denied(addr)
				continue
			}
			if p.from == node {
				t.asked.end(addr)
			}
			t.pass(t.held.take(addr))
		}
	}
	for _, source := range update.Unknown {
		t.denied(source)
	}
}

// nodeNamed is the node of the instance that a virtual address of a service stands for; invalid: this one, or none.
func (t *tunnel) nodeNamed(service string, addr netip.Addr) netip.Addr {
	for _, l := range t.virtual[service] {
		if l.virtual == addr {
			return l.node
		}
	}
	return netip.Addr{}
}

// denied drops the packets of a source. It is not looked up again for a while. t.mu is held.
func (t *tunnel) denied(source netip.Addr) {
	t.asked.fail(source)
	t.held.counts.Denied += uint64(len(t.held.take(source)))
}

// releaseIdle releases services of which no packet has come for a while, looked up here or not, and requests them again
// when one has.
func (t *tunnel) releaseIdle(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.senders) == 0 {
		return
	}
	m, err := t.live.Maps.Get(mapNames)
	if err != nil {
		return // the sweep says so
	}
	for service, last := range t.senders {
		for _, l := range t.virtual[service] {
			var n name
			key := address(l.virtual.As16())
			if !l.virtual.IsValid() || m.Lookup(key, &n) != nil || n.Used == 0 {
				continue
			}
			n.Used = 0
			_ = m.Put(key, n) // else it counts as used again
			if last.IsZero() {
				t.live.Resolve(l.virtual)
			}
			last = now
		}
		if !last.IsZero() && now.Sub(last) > idleFor {
			t.live.Release(service)
			last = time.Time{}
		}
		t.senders[service] = last
	}
}
