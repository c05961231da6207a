// SPDX-License-Identifier: Apache-2.0

// Package classifier is the control plane of the classifier: it loads models into the data plane while packets flow, tells
// what they say of whom, frees what they have blocked, watches that they do not block too much, and runs them itself if the
// config says so.
package classifier

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
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
	return &Classifier{config: c, planes: map[*ebpf.Map]*plane{}}, nil
}

// Classifier is a compiled config.
type Classifier struct {
	config *config

	mu     sync.Mutex
	planes map[*ebpf.Map]*plane // by the map of models, which stands for a generation
}

var (
	_ sdk.Compiled      = (*Classifier)(nil)
	_ sdk.Handler       = (*Classifier)(nil)
	_ sdk.Runner        = (*Classifier)(nil)
	_ sdk.Measurer      = (*Classifier)(nil)
	_ sdk.HealthChecker = (*Classifier)(nil)
	_ sdk.Conditioner   = (*Classifier)(nil)
	_ sdk.ModelUser     = (*Classifier)(nil)
)

const leastBlocks = 1024 // compiled size of the map

// Settings implements sdk.Compiled.
func (f *Classifier) Settings() sdk.Settings {
	c := f.config
	out := sdk.Settings{Constants: c.constants(), MaxEntries: map[string]uint32{
		mapRecords: c.Sources, "newcomers": c.Sources, "lapsing": 2 * c.Sources, mapWindows: c.Sources, mapBlocks: max(leastBlocks, 2*c.Fuse.Sources)}}
	if c.Action.Do == "mark" {
		out.Hooks = []string{"tc"} // packets on XDP have no mark
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

// Fill implements sdk.Compiled. All but the allow-list is state, which the generations share.
func (f *Classifier) Fill(maps sdk.Maps) error {
	for _, text := range f.config.Allow {
		p, err := parsePrefix(text)
		if err != nil {
			return err
		}
		if err := put(maps, mapAllowed, prefix{Len: uint32(p.Bits()), Addr: p.Addr().As16()}, uint32(1)); err != nil {
			return err
		}
	}
	return nil
}

// plane returns what is known of a generation; at first that is what its maps tell.
func (f *Classifier) plane(live sdk.Live) (*plane, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key, err := live.Maps.Get(mapModels)
	if err != nil {
		return nil, err
	}
	if w := f.planes[key]; w != nil {
		return w, nil
	}
	w, err := newPlane(f.config, live)
	if err != nil {
		return nil, err
	}
	f.planes[key] = w
	return w, nil
}

const (
	sweepEvery = time.Second
	judgeEvery = 50 * time.Millisecond // in user mode: how late a verdict may be
)

// Run implements sdk.Runner.
func (f *Classifier) Run(ctx context.Context, live sdk.Live) {
	w, err := f.plane(live)
	if err != nil {
		slog.Error("classifier: the maps are not readable", "module", live.Module, "error", err)
		return
	}
	defer f.forget(live)
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { w.note("events", w.follow(ctx)) })
	w.note("allow-list", w.freeAllowed())
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	judge := time.NewTicker(judgeEvery)
	defer judge.Stop()
	if !w.config.inUser() {
		judge.Stop()
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-sweep.C:
			w.note("blocked sources", w.sweep())
		case <-judge.C:
			w.note("windows", w.judgeAll())
		}
	}
}

// forget lets go of a generation that is over.
func (f *Classifier) forget(live sdk.Live) {
	f.mu.Lock()
	w := f.planes[live.Maps[mapModels]]
	delete(f.planes, live.Maps[mapModels])
	f.mu.Unlock()
	w.end()
}

// note remembers how background work went, for the health.
func (w *plane) note(work string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && w.troubles[work] == nil {
		slog.Warn("classifier: "+work+" failed", "module", w.live.Module, "error", err)
	}
	w.troubles[work] = err
}

// Health implements sdk.HealthChecker.
func (f *Classifier) Health(live sdk.Live) error {
	w, err := f.plane(live)
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
	return nil
}

// Conditions implements sdk.Conditioner.
func (f *Classifier) Conditions(live sdk.Live) ([]sdk.Condition, error) {
	w, err := f.plane(live)
	if err != nil {
		return nil, err
	}
	return []sdk.Condition{w.fuseCondition(), w.modelCondition()}, nil
}
