// SPDX-License-Identifier: Apache-2.0

// Package proxy is the control plane of the proxy: it turns virtual services into the tables that proxy.bpf.c chooses
// instances by, follows instances that come, move and go, holds packets to addresses that are not known yet, and ages
// sessions.
package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/sdk"
)

// Control returns the control plane.
func Control() sdk.Control { return control{} }

type control struct{}

// Compile implements sdk.Control.
func (control) Compile(raw json.RawMessage) (sdk.Compiled, error) {
	c, err := parseConfig(raw)
	if err != nil {
		return nil, err
	}
	return &Proxy{config: c, planes: map[*ebpf.Map]*plane{}}, nil
}

// Proxy is a compiled config.
type Proxy struct {
	config *config

	mu     sync.Mutex
	planes map[*ebpf.Map]*plane // by the map of virtual addresses, which stands for a generation
}

var (
	_ sdk.Compiled           = (*Proxy)(nil)
	_ sdk.Handler            = (*Proxy)(nil)
	_ sdk.Runner             = (*Proxy)(nil)
	_ sdk.Measurer           = (*Proxy)(nil)
	_ sdk.HealthChecker      = (*Proxy)(nil)
	_ sdk.Conditioner        = (*Proxy)(nil)
	_ sdk.InstanceReporter   = (*Proxy)(nil)
	_ sdk.VirtualServiceUser = (*Proxy)(nil)
	_ sdk.InstanceFollower   = (*Proxy)(nil)
)

// Settings implements sdk.Compiled.
func (p *Proxy) Settings() sdk.Settings {
	t := p.config.Tables
	return sdk.Settings{
		Constants: map[string]any{"short_path": p.config.ShortPath, "max_sessions": uint64(t.Sessions), "service_sessions": uint64(t.SessionsPerService),
			"pending_budget": t.Sessions / 4},
		MaxEntries: map[string]uint32{
			mapSessions: 2 * t.Sessions, mapPending: 2 * t.Sessions, mapVIPs: t.Addresses + maxNegative, mapPorts: t.Ports, mapSlots: t.Slots,
			mapTurns: t.Addresses + 1, mapInstances: t.Instances + 1, mapOwners: t.Instances + 1, mapInstanceStats: t.Instances + 1, // index 0 is none
		},
	}
}

// Fill implements sdk.Compiled. All but the ranges is state, which the generations share; sessions move if their table changes.
func (p *Proxy) Fill(maps sdk.Maps) error {
	m, err := maps.Get(mapRanges)
	if err != nil {
		return err
	}
	if err := write(m, mapRanges, uint32(0), rangesOf(p.config.Ranges)); err != nil {
		return err
	}
	if before := maps[previousSessions]; before != nil {
		return carryOver(before, maps)
	}
	return nil
}

// previousSessions is the table of sessions of the running generation, if the new one has another.
const previousSessions = "previous." + mapSessions

// carryOver puts sessions where they belong now. Of versions before 0.2 all of them are in one table.
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
	err = each(before, previousSessions, func(keys []flow, values []session) {
		for i := range keys {
			if !values[i].live() || sessions.Put(&keys[i], &values[i]) != nil { // full: it may be evicted, as before
				failed = cmp.Or(failed, write(pending, mapPending, &keys[i], &values[i]))
			}
		}
	})
	return cmp.Or(err, failed)
}

func rangesOf(all []netip.Prefix) (out addressRanges) {
	out.Count = uint32(len(all))
	for i, p := range all {
		bits := p.Bits()
		if p.Addr().Is4() {
			bits += 96
		}
		out.Range[i].Prefix = addressOf(p.Addr())
		for b := range bits {
			out.Range[i].Mask[b/8] |= 0x80 >> (b % 8)
		}
	}
	return out
}

// plane returns what is known of a generation; at first that is what its maps tell.
func (p *Proxy) plane(live sdk.Live) (*plane, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key, err := live.Maps.Get(mapVIPs)
	if err != nil {
		return nil, err
	}
	if w := p.planes[key]; w != nil {
		return w, nil
	}
	w, err := newPlane(p.config, live)
	if err != nil {
		return nil, err
	}
	p.planes[key] = w
	return w, nil
}

// VirtualServices implements sdk.VirtualServiceUser.
func (p *Proxy) VirtualServices(live sdk.Live, update sdk.VirtualServiceUpdate) error {
	w, err := p.plane(live)
	if err != nil {
		return err
	}
	free, err := w.update(&update, time.Now())
	w.inject(free)
	return err
}

// InstanceChanged implements sdk.InstanceFollower.
func (p *Proxy) InstanceChanged(live sdk.Live, i sdk.Instance, there bool) {
	w, err := p.plane(live)
	if err == nil {
		err = w.instanceChanged(i, there, time.Now())
	}
	if err != nil {
		slog.Warn("proxy: cannot update the data plane after a service was added or removed", "module", live.Module, "interface", i.Interface, "error", err)
	}
}

const (
	tickEvery  = time.Second
	sweepEvery = 10 * time.Second
)

// Run implements sdk.Runner.
func (p *Proxy) Run(ctx context.Context, live sdk.Live) {
	w, err := p.plane(live)
	if err != nil {
		slog.Error("proxy: the maps are not readable", "module", live.Module, "error", err)
		return
	}
	defer p.forget(live)
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

// age sweeps the tables of sessions until ctx ends: at once, as the counts may be those of another version, and every 10 s.
func (w *plane) age(ctx context.Context) {
	w.pause = func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for now := time.Now(); ; {
		w.note("ageing of sessions", w.sweep(now))
		w.note("another try", w.again(now))
		select {
		case <-ctx.Done():
			return
		case now = <-sweep.C:
		}
	}
}

// forget lets go of a generation that is over.
func (p *Proxy) forget(live sdk.Live) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.planes, live.Maps[mapVIPs])
}

func (w *plane) tick(now time.Time) {
	free, err := w.overdue(now)
	w.inject(free)
	w.note("unknown addresses", err)
	w.note("closest instances", w.rankAgain(now))
	w.note("passive health", w.judge(now))
}

// note remembers how background work went, for the health.
func (w *plane) note(work string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && w.troubles[work] == nil {
		slog.Warn("proxy: "+work+" failed", "module", w.live.Module, "error", err)
	}
	w.troubles[work] = err
}

// rankAgain looks which instances are closest now.
func (w *plane) rankAgain(now time.Time) error {
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

// again tries to find room for what had none.
func (w *plane) again(now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.services {
		if s.spec == nil {
			continue
		}
		if _, err := w.put(s.spec, now); err != nil {
			return err
		}
	}
	return nil
}

// Health implements sdk.HealthChecker.
func (p *Proxy) Health(live sdk.Live) error {
	w, err := p.plane(live)
	if err != nil {
		return err
	}
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
