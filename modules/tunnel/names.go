// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
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
	forgetEach = time.Second      // how often look-ups that have expired are searched for
	maxAsked   = 4096
	maxAskedBy = 64 // for packets from one outer address: inner sources can be made up at will
)

// lookups are the sources that are being looked up.
type lookups struct {
	pending map[netip.Addr]lookup // by source
	of      map[netip.Addr]int    // number of them by the outer address that the packet came from
	swept   time.Time
}

type lookup struct {
	from  netip.Addr
	until time.Time // it is not looked up again before
}

func newLookups() lookups {
	return lookups{pending: map[netip.Addr]lookup{}, of: map[netip.Addr]int{}}
}

// begin reports whether a source is to be looked up. One that is being looked up is not, nor one beyond the limits.
func (l *lookups) begin(source, from netip.Addr, now time.Time) bool {
	if now.Sub(l.swept) >= forgetEach {
		l.swept = now
		for a, p := range l.pending {
			if !now.Before(p.until) {
				l.end(a)
			}
		}
	}
	if _, pending := l.pending[source]; pending || len(l.pending) >= maxAsked || l.of[from] >= maxAskedBy {
		return false
	}
	l.pending[source] = lookup{from, now.Add(askAgain)}
	l.of[from]++
	return true
}

// end reports whether a source was being looked up.
func (l *lookups) end(source netip.Addr) bool {
	p, pending := l.pending[source]
	if !pending {
		return false
	}
	delete(l.pending, source)
	if l.of[p.from]--; l.of[p.from] == 0 {
		delete(l.of, p.from)
	}
	return true
}

// stranger is an event: a packet with an unknown source.
type stranger struct{ Source, From address }

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
		var s stranger
		if _, err := binary.Decode(raw, binary.NativeEndian, &s); err == nil {
			t.ask(s.Source.addr(), s.From.addr(), time.Now())
		}
	}
}

// ask looks up the source of a packet from an outer address. An attacker may have made up both.
func (t *tunnel) ask(source, from netip.Addr, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked.begin(source, from, now) {
		t.live.Resolve(source)
	}
}

// lookedUp notes which services were looked up here, and so are in use. t.mu is held.
func (t *tunnel) lookedUp(update sdk.VirtualServiceUpdate, now time.Time) {
	for _, service := range update.Put {
		for _, l := range t.virtual[service.Name] {
			if t.asked.end(l.virtual) {
				t.senders[service.Name] = now
			}
		}
	}
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
