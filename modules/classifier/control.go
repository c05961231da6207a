// SPDX-License-Identifier: Apache-2.0

// Package classifier is the control plane of the classifier: it loads models into the data plane while packets flow,
// reports their verdicts by source, unblocks sources when their time is over, stops blocking when too many sources are
// blocked, and evaluates the models itself if the config says so.
package classifier

import (
	"context"
	"fmt"
	"log/slog"
	"math/bits"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/modules/classifier/inference"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/model"
)

// Control returns the control plane.
func Control() sdk.Control { return control{sdk.Define(parseConfig)} }

type control struct{ sdk.Control }

// Extractors implements model.User.
func (control) Extractors() map[string][]string { return Features }

// OpenEngine implements model.User.
func (control) OpenEngine() (model.Engine, error) { return inference.Open() }

var (
	_ model.User        = control{}
	_ sdk.Compiled      = (*config)(nil)
	_ sdk.Handler       = (*running)(nil)
	_ sdk.Runner        = (*running)(nil)
	_ sdk.Collector     = (*running)(nil)
	_ sdk.NoteNamer     = (*running)(nil)
	_ sdk.HealthChecker = (*running)(nil)
	_ sdk.Conditioner   = (*running)(nil)
	_ sdk.ModelUser     = (*running)(nil)
)

const leastBlocks = 1024 // compiled size of the map

// Settings implements sdk.Compiled.
func (c *config) Settings() sdk.Settings {
	out := sdk.Settings{Constants: c.constants(), Tunables: c.tunables(), MaxEntries: map[string]uint32{
		mapRecords: c.Sources, "newcomers": c.Sources, "lapsing": 2 * c.Sources, mapWindows: c.Sources,
		mapBlocks: max(leastBlocks, uint32(1)<<bits.Len32(2*c.Fuse.Sources-1))}} // the same for most changes of the fuse
	if c.Action.Do == "mark" {
		out.Hooks, out.Shape = []string{"tc"}, "mark" // packets on XDP have no mark
	}
	if c.Extractor != "rpl" || c.RPL.Frames != "raw" {
		out.LinkTypes = []string{"ethernet"}
	}
	switch c.Direction {
	case "ingress":
		out.Idle = []string{"egress"}
	case "egress":
		out.Idle = []string{"ingress"}
	}
	return out
}

// Fill implements sdk.Compiled. All maps but the allow-list are state, which the map sets share.
func (c *config) Fill(maps sdk.Maps) error {
	half, err := maps.FreeHalf()
	if err != nil {
		return err
	}
	all := map[prefix]uint32{}
	for _, text := range c.Allow {
		p, err := parsePrefix(text)
		if err != nil {
			return err
		}
		all[prefix{Len: uint32(32 + p.Bits()), Half: uint32(half), Addr: p.Addr().As16()}] = 1
	}
	return sdk.SyncTable(maps, mapAllowed, all, func(p prefix, _ uint32) bool { return p.Half == uint32(half) })
}

// Open implements sdk.Compiled: it reads the state that the maps have.
func (c *config) Open(live sdk.Live) (sdk.Running, error) { return newPlane(c, live) }

const (
	sweepEvery    = time.Second
	evaluateEvery = 50 * time.Millisecond // in user mode: how late a verdict may be
)

// Run implements sdk.Runner.
func (w *running) Run(ctx context.Context) {
	defer w.stream.End()
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { w.note("events", w.follow(ctx)) })
	w.note("allow-list", w.freeAllowed())
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	evaluate := time.NewTicker(evaluateEvery)
	defer evaluate.Stop()
	if !w.config.inUser() {
		evaluate.Stop()
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-sweep.C:
			w.note("blocked sources", w.sweep())
		case <-evaluate.C:
			w.note("windows", w.evaluateAll())
		}
	}
}

// note keeps the result of background work for Health.
func (w *running) note(work string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && w.troubles[work] == nil {
		slog.Warn("classifier: "+work+" failed", "module", w.live.Module, "error", err)
	}
	w.troubles[work] = err
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
	return nil
}

// Conditions implements sdk.Conditioner.
func (w *running) Conditions() ([]sdk.Condition, error) {
	return []sdk.Condition{w.fuseCondition(), w.modelCondition()}, nil
}
