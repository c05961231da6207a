// SPDX-License-Identifier: Apache-2.0

// Package proxy is the control plane of the proxy: it compiles virtual services to the tables from which proxy.bpf.c
// selects instances, follows instances as they are added, moved and removed, queues packets to addresses that are not
// resolved yet, and ages sessions.
package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/sdk"
)

// Control returns the control plane.
func Control() sdk.Control { return sdk.Define(parseConfig) }

var (
	_ sdk.Compiled           = (*config)(nil)
	_ sdk.Handler            = (*running)(nil)
	_ sdk.Runner             = (*running)(nil)
	_ sdk.Collector          = (*running)(nil)
	_ sdk.NoteNamer          = (*running)(nil)
	_ sdk.HealthChecker      = (*running)(nil)
	_ sdk.Conditioner        = (*running)(nil)
	_ sdk.InstanceReporter   = (*running)(nil)
	_ sdk.VirtualServiceUser = (*running)(nil)
	_ sdk.AttachmentWatcher  = (*running)(nil)
)

// Settings implements sdk.Compiled.
func (c *config) Settings() sdk.Settings {
	t, cpus := c.Tables, ebpf.MustPossibleCPU()
	copies := hotBits(cpus)
	return sdk.Settings{
		TranslatesReplies: true,
		Constants: map[string]any{
			"short_path": c.ShortPath, "max_sessions": uint64(t.Sessions), "pending_budget": t.Sessions / 4,
			"hot_bits": copies, "source_instance": c.Source == sourceInstance,
		},
		Tunables: map[string]any{"service_sessions": uint64(t.SessionsPerService)},
		MaxEntries: map[string]uint32{
			mapSessions: 2 * t.Sessions, mapPending: 2 * t.Sessions, mapVIPs: t.Addresses + maxNegative, mapPorts: t.Ports,
			mapSlots: t.Slots,
			// index 0 is none
			mapTurns: t.Addresses + 1, mapInstances: t.Instances + 1, mapOwners: t.Instances + 1,
			mapInstanceStats: t.Instances + 1, mapHot: uint32(cpus) << copies,
		},
	}
}

// Copies of sessions: what all CPUs have together, and the least and the most of one.
const (
	hotMemory = 8 << 20
	hotSet    = 256 // bytes: struct px_hot_set
	minHot    = 8   // bits of the number of sets: 512 copies
	maxHot    = 13  // 16,384 copies, which fill most second-level caches
)

// hotBits returns how many sets of copies each CPU has, as an exponent of 2.
func hotBits(cpus int) uint32 {
	return uint32(max(minHot, min(maxHot, bits.Len(uint(hotMemory/hotSet/cpus))-1)))
}

// Fill implements sdk.Compiled. All maps but the ranges are state, which the map sets share. Sessions are copied if
// their table changes.
func (c *config) Fill(maps sdk.Maps) error {
	half, err := maps.FreeHalf()
	if err != nil {
		return err
	}
	if err := maps.Put(mapRanges, uint32(half), rangesOf(c.Ranges)); err != nil {
		return err
	}
	if before := maps[previousSessions]; before != nil {
		return carryOver(before, maps)
	}
	return nil
}

// previousSessions is the table of sessions of the running map set, if the new one has another.
const previousSessions = "previous." + mapSessions

// carryOver puts sessions where they belong now. Of versions before 0.2 all of them are in one table. Affinities get
// half of what sessions leave free, as in the data plane, the newest first.
func carryOver(before *ebpf.Map, maps sdk.Maps) error {
	sessions, err := maps.Get(mapSessions)
	if err != nil {
		return err
	}
	pending, err := maps.Get(mapPending)
	if err != nil {
		return err
	}
	var failed error
	kept, seen := 0, []uint64{}
	err = each(before, previousSessions, func(keys []flow, values []session) {
		for i := range keys {
			switch {
			case keys[i].Hook == hookAffinity:
				seen = append(seen, values[i].Seen)
			case values[i].live() && sessions.Put(&keys[i], &values[i]) == nil:
				kept++
			default: // no room for it: it may be evicted, as before
				failed = cmp.Or(failed, write(pending, mapPending, &keys[i], &values[i]))
			}
		}
	})
	if err = cmp.Or(err, failed); err != nil {
		return err
	}
	room := max(0, int(sessions.MaxEntries())-kept) / 4 // two entries per session
	slices.Sort(seen)
	oldest := uint64(0)
	if room > 0 && room < len(seen) {
		oldest = seen[len(seen)-room]
	}
	return each(before, previousSessions, func(keys []flow, values []session) {
		for i := range keys {
			wanted := keys[i].Hook == hookAffinity && values[i].Seen >= oldest && room > 0
			if wanted && sessions.Put(&keys[i], &values[i]) == nil {
				room--
			}
		}
	})
}

// rangesOf returns prefixes as 128-bit address and mask in network byte order.
func rangesOf(all []netip.Prefix) (out addressRanges) {
	out.Count = uint32(len(all))
	for i, p := range all {
		out.Range[i] = addressRange{addressOf(p.Addr()), sdk.PrefixMask(sdk.MappedPrefix(p).Bits())}
	}
	return out
}

// Open implements sdk.Compiled: it reads the state that the maps have.
func (c *config) Open(live sdk.Live) (sdk.Running, error) { return newPlane(c, live) }

// VirtualServices implements sdk.VirtualServiceUser.
func (w *running) VirtualServices(update sdk.VirtualServiceUpdate) error {
	free, err := w.update(&update, time.Now())
	w.inject(free)
	return err
}

// AttachmentChanged implements sdk.AttachmentWatcher.
func (w *running) AttachmentChanged(i sdk.Attachment, there bool) {
	if err := w.instanceChanged(i, there, time.Now()); err != nil {
		slog.Warn("proxy: cannot update the data plane after a service was added or removed", "module", w.live.Module,
			"interface", i.Interface, "error", err)
	}
}

const (
	tickEvery  = time.Second
	sweepEvery = 10 * time.Second
)

// Run implements sdk.Runner.
func (w *running) Run(ctx context.Context) {
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { w.note("events", w.follow(ctx)) })
	following.Go(func() { w.age(ctx) })
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			w.tick(now)
		}
	}
}

// age sweeps the tables of sessions until ctx ends: at once, as the counts may be those of another version, and every
// 10 s.
func (w *running) age(ctx context.Context) {
	w.pause = func(d time.Duration) { sdk.Pause(ctx, d) }
	sdk.Every(ctx, sweepEvery, func() {
		now := time.Now()
		w.note("ageing of sessions", w.sweep(now))
		w.note("another try", w.again(now))
	})
}

func (w *running) tick(now time.Time) {
	free, err := w.overdue(now)
	w.inject(free)
	w.note("unknown addresses", err)
	w.note("slots that have rested", w.reuseFreedSlots(now))
	w.note("closest instances", w.rankAgain(now))
	w.note("passive health", w.ejectFailing(now))
}

// note keeps the result of background work for Health.
func (w *running) note(work string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trouble(work, err)
}

// trouble is note. w.mu is held.
func (w *running) trouble(work string, err error) {
	if err != nil && w.troubles[work] == nil {
		slog.Warn("proxy: "+work+" failed", "module", w.live.Module, "error", err)
	}
	w.troubles[work] = err
}

// rankAgain looks which instances are closest now.
func (w *running) rankAgain(now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, v := range w.addresses {
		if v.nearest == nil || v.service == nil {
			continue
		}
		if err := w.writeVirtual(v, w.run(v, now), now); err != nil {
			return err
		}
	}
	return nil
}

// reuseFreedSlots gives slots, once their waiting time is over, to runs without room: an address that another virtual
// service has taken over waits for its former slots, and is not served in the meantime.
func (w *running) reuseFreedSlots(now time.Time) error {
	return w.retry(now, func(s *service) bool { return s.short != 0 && w.slots.has(s.short, now) })
}

// again tries to find room for what had none, and to write what the kernel refused.
func (w *running) again(now time.Time) error {
	return w.retry(now, func(*service) bool { return true })
}

// retry puts the services in trouble that are due, all of them even if one fails, and returns the first error.
func (w *running) retry(now time.Time, due func(*service) bool) (failed error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.syncNames()
	for _, s := range w.services {
		if s.spec == nil || !due(s) {
			continue
		}
		_, err := w.put(s.spec, now)
		failed = cmp.Or(failed, err)
	}
	return failed
}

// Health implements sdk.HealthChecker.
func (w *running) Health() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for work, err := range w.troubles {
		if err != nil {
			return fmt.Errorf("%s: %w", work, err)
		}
	}
	var errs []error
	for _, s := range w.services {
		if s.trouble != nil {
			errs = append(errs, fmt.Errorf("virtual service %s: %w", s.name, s.trouble))
		}
	}
	if len(errs) > 3 {
		errs = append(errs[:3], fmt.Errorf("and %d more", len(errs)-3))
	}
	return errors.Join(errs...)
}
