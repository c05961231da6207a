// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/sdk"
)

const (
	sweepEvery = 2 * time.Second
	endedIdle  = 3 * time.Second // of a TCP connection that is over
	registered = time.Second     // after this an interface is known
	urgentIdle = 2 * time.Second // of any flow, while a service has more than three quarters of its room in use
)

// Run adds what flows carry to the hour, and takes out those that are idle.
func (g *running) Run(ctx context.Context) {
	sdk.Every(ctx, sweepEvery, func() {
		if err := g.sweep(time.Now(), sdk.Monotonic()); err != nil {
			slog.Warn("flows: sweep failed", "module", g.Module, "error", err)
		}
	})
}

// sweep is one round of Run. now and clock are the same time by different clocks.
func (g *running) sweep(now time.Time, clock uint64) error {
	g.mu.Lock() // before anything is read: another round may be under way
	defer g.mu.Unlock()
	used, err := g.usages()
	if err != nil {
		return err
	}
	g.hour.turn(now)
	places := g.interfaces()
	g.gone = g.missing(places, used, clock)
	g.miss(places, used, clock)
	if err := g.walk(places, used, clock); err != nil {
		return err
	}
	for ifindex := range g.gone {
		if !g.isGone(ifindex, clock) {
			continue
		}
		if err := errors.Join(g.Maps.Delete(mapServices, ifindex), g.Maps.Delete(mapRemoved, ifindex)); err != nil {
			return err
		}
	}
	return nil
}

func (g *running) interfaces() map[uint32]place {
	out := map[uint32]place{}
	for _, at := range g.Attachments() {
		out[at.Ifindex] = place{at.Service, at.Interface}
	}
	return out
}

// missing returns interfaces with entries that are not among the attachments, and since when.
func (g *running) missing(places map[uint32]place, used map[uint32]usage, clock uint64) map[uint32]uint64 {
	gone := map[uint32]uint64{}
	for ifindex := range used {
		if _, there := places[ifindex]; !there && ifindex != 0 {
			gone[ifindex] = clock
			if since, before := g.gone[ifindex]; before {
				gone[ifindex] = min(since, clock)
			}
		}
	}
	return gone
}

// isGone reports whether an interface is missing for so long that it is not only being registered.
func (g *running) isGone(ifindex uint32, clock uint64) bool {
	since, missing := g.gone[ifindex]
	return missing && clock-since >= uint64(registered)
}

// miss adds to the hour what packets found no room since the sweep before.
func (g *running) miss(places map[uint32]place, used map[uint32]usage, clock uint64) {
	before := g.before
	g.before = used
	if before == nil {
		return
	}
	for ifindex, u := range used {
		b, ok := before[ifindex]
		if !ok || u.Unrecorded < b.Unrecorded || u.Unreadable < b.Unreadable {
			b = usage{} // of another interface with the same number
		}
		if u.Unrecorded == b.Unrecorded && u.Unreadable == b.Unreadable {
			continue
		}
		p := places[ifindex]
		if u.Unrecorded > b.Unrecorded {
			g.lossAt, g.lossOf = clock, p
		}
		l := g.hour.lost[p]
		l.add(lost{unrecorded: u.Unrecorded - b.Unrecorded, unrecordedBytes: u.UnrecordedBytes - b.UnrecordedBytes,
			unreadable: u.Unreadable - b.Unreadable, unreadableBytes: u.UnreadableBytes - b.UnreadableBytes})
		g.hour.miss(p, l)
	}
}

// walk goes through the table, and writes how many entries have been taken out. That follows from the entries that are
// left, so that it is right again after a crash. used is from before: an entry that is made meanwhile counts as one
// that is held twice, until the next sweep.
func (g *running) walk(places map[uint32]place, used map[uint32]usage, clock uint64) error {
	held, known := map[uint32]uint64{}, map[key]carried{}
	var idle []key
	for _, u := range used {
		if u.held() > 0 {
			err := g.each(func(k key, v *value) {
				g.take(places, k, v, known)
				if at := countedAt(used, k); g.isIdle(k, v, used[at], clock) {
					idle = append(idle, k)
				} else {
					held[at]++
				}
			})
			if err != nil {
				return err
			}
			break
		}
	}
	for _, k := range idle {
		if stays, err := g.remove(places, k, known); err != nil {
			return err
		} else if stays {
			held[countedAt(used, k)]++
		}
	}
	g.known = known
	for ifindex, u := range used {
		removed := max(u.Created, held[ifindex]) - held[ifindex]
		if removed == u.removed {
			continue
		}
		if err := g.Maps.Put(mapRemoved, ifindex, removed); err != nil {
			return err
		}
	}
	return nil
}

// countedAt is the entry of used that a flow is counted at: that of its interface, or 0 if there was no room for one.
func countedAt(used map[uint32]usage, k key) uint32 {
	if _, own := used[k.Ifindex]; own {
		return k.Ifindex
	}
	return 0
}

// take adds to the hour what a flow has carried since it was read last. What flows carried before the hour began is in
// no minute.
func (g *running) take(places map[uint32]place, k key, v *value, known map[key]carried) {
	p, there := places[k.Ifindex]
	total := carriedBy(v)
	before, seen := g.known[k]
	if !seen && v.First < g.opened {
		before = total
	}
	news := total.since(before)
	known[k] = total
	if !there || news == (carried{}) {
		return
	}
	t := talker{place: p, remote: k.Remote, proto: k.Proto, initiator: v.Initiator & 1}
	if port := k.RemotePort; t.initiator == egress {
		t.port = uint16(port[0])<<8 | uint16(port[1])
	} else {
		t.port = uint16(k.LocalPort[0])<<8 | uint16(k.LocalPort[1])
	}
	g.hour.add(t, &news, len(places))
}

func (g *running) isIdle(k key, v *value, u usage, clock uint64) bool {
	after := g.idle
	if v.ended() {
		after = min(after, endedIdle)
	}
	if u.held() > g.quota/4*3 {
		after = min(after, urgentIdle)
	}
	last := v.last()
	return g.isGone(k.Ifindex, clock) || clock > last && clock-last > uint64(after)
}

// remove takes a flow out, unless it has had packets meanwhile.
func (g *running) remove(places map[uint32]place, k key, known map[key]carried) (stays bool, err error) {
	var v value
	switch err := g.Maps[mapFlows].Lookup(k, &v); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read map %s: %w", mapFlows, err)
	}
	if carriedBy(&v) != known[k] {
		return true, nil // what it has carried is for the next sweep
	}
	delete(known, k)
	return false, g.Maps.Delete(mapFlows, k)
}
