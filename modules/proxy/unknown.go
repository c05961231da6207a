// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sort"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// unknowns counts packets to unknown addresses by result.
type unknowns struct {
	Asked    uint64 `json:"asked"`    // addresses asked for
	Answered uint64 `json:"answered"` // turned out to be virtual services
	Denied   uint64 `json:"denied"`   // no resolver knows them
	Overdue  uint64 `json:"overdue"`  // no answer came in time
	Injected uint64 `json:"injected"` // packets sent again
	Lost     uint64 `json:"lost"`     // could not be sent again: their service is gone, or the packet is no whole one
}

// follow takes packets to unknown addresses from the data plane until ctx ends.
func (w *running) follow(ctx context.Context) error {
	ring, err := w.live.Maps.Get(mapUnknown)
	if err != nil {
		return err
	}
	for raw, err := range sdk.PromptEvents(ctx, ring) {
		if err != nil {
			return err
		}
		if p, ok := parseUnknown(raw); ok {
			w.inject(w.arrive(p, time.Now()))
		}
	}
	return nil
}

const unknownSize = 32 // bytes of struct px_unknown before the frame

func parseUnknown(raw []byte) (*heldPacket, bool) {
	var u unknown
	if n, err := binary.Decode(raw, binary.NativeEndian, &u); err != nil || n != unknownSize || u.Len == 0 ||
		int(u.Len) > len(raw)-n {
		return nil, false
	}
	return &heldPacket{to: u.Dst.addr(), ifindex: u.Ifindex, frame: bytes.Clone(raw[unknownSize : unknownSize+u.Len])},
		true
}

// arrive holds a packet and asks for its destination, once. It returns the packets that can continue at once, as the
// answer has come while the packet was on its way here.
func (w *running) arrive(p *heldPacket, now time.Time) []*heldPacket {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v := w.addresses[p.to]; v != nil && v.service != nil {
		return append(w.held.take(p.to), p)
	}
	if w.held.add(*p, now) {
		w.unknowns.Asked++
		w.live.Resolve(p.to)
	}
	return nil
}

// deny makes the data plane answer that an address does not exist, for a while. It returns the packets that get this
// answer.
func (w *running) deny(a netip.Addr, now time.Time) ([]*heldPacket, error) {
	if v := w.addresses[a]; v != nil && v.service != nil {
		return nil, nil
	}
	until, over := w.negative.add(a, w.held.asker(a), now)
	w.unknowns.Denied++
	if err := w.forget(over); err != nil { // first, as the table has no room beyond the limit
		return nil, err
	}
	expires := sdk.Monotonic() + uint64(until.Sub(now))
	if err := write(w.maps.vips, mapVIPs, addressOf(a), vip{Expires: expires, Flags: vipNegative}); err != nil {
		return nil, err
	}
	return w.held.take(a), nil
}

// forget makes addresses unknown again that count as not existing.
func (w *running) forget(all []netip.Addr) error {
	for _, a := range all {
		if err := remove(w.maps.vips, mapVIPs, addressOf(a)); err != nil {
			return err
		}
	}
	return nil
}

// inject sends packets again, as if their services had sent them.
func (w *running) inject(packets []*heldPacket) {
	sent := uint64(0)
	for _, p := range packets {
		if err := w.live.Inject(p.ifindex, p.frame); err != nil {
			slog.Debug("proxy: a held packet is lost", "module", w.live.Module, "to", p.to, "error", err)
			continue
		}
		sent++
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unknowns.Injected += sent
	w.unknowns.Lost += uint64(len(packets)) - sent
}

// overdue denies addresses that were not resolved in time, and forgets what was denied long enough ago.
func (w *running) overdue(now time.Time) ([]*heldPacket, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var free []*heldPacket
	var errs []error
	for _, a := range w.held.overdue(now) {
		packets, err := w.deny(a, now)
		free, errs = append(free, packets...), append(errs, err)
		w.unknowns.Overdue++
	}
	errs = append(errs, w.forget(w.negative.expired(now)))
	return free, errors.Join(errs...)
}

// HeldAddress is an address that is asked for, with what waits for it.
type HeldAddress struct {
	Address string `json:"address"`
	Packets int    `json:"packets"`
	Bytes   int    `json:"bytes"`
	Since   string `json:"since"`
}

// HeldReport is the answer of GET held.
type HeldReport struct {
	Held     []HeldAddress `json:"held"`
	Unknown  []string      `json:"unknown"` // addresses that are known not to exist, for now
	Packets  int           `json:"packets"`
	Bytes    int           `json:"bytes"`
	Dropped  uint64        `json:"dropped"` // gave way to younger ones
	Counters unknowns      `json:"counters"`
}

// listHeld returns the packets held per unknown address and the addresses in the negative cache, both sorted. Bytes are
// whole frames.
func (w *running) listHeld(now time.Time) *HeldReport {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := &HeldReport{Held: []HeldAddress{}, Unknown: []string{}, Packets: w.held.all.Len(), Bytes: w.held.size,
		Dropped: w.held.Dropped, Counters: w.unknowns}
	for a, waits := range w.held.addresses {
		h := HeldAddress{Address: a.String(), Packets: len(waits.packets),
			Since: fmt.Sprint(now.Sub(waits.since).Round(time.Millisecond))}
		for _, e := range waits.packets {
			h.Bytes += len(e.Value.(*heldPacket).frame)
		}
		out.Held = append(out.Held, h)
	}
	for a := range w.negative.entries {
		out.Unknown = append(out.Unknown, a.String())
	}
	sort.Slice(out.Held, func(i, j int) bool { return compareText(out.Held[i].Address, out.Held[j].Address) < 0 })
	slices.Sort(out.Unknown)
	return out
}
