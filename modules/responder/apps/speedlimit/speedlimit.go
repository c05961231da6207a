// SPDX-License-Identifier: Apache-2.0

// Package speedlimit is the road sign: it keeps what its data plane answers up to date, and lets user space read and
// change the number of cars in range.
package speedlimit

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/modules/responder/app"
	"github.com/kerb-edge/kerb/sdk"
)

// App returns the application.
func App() app.App { return speedlimit{} }

type speedlimit struct{}

// writing is held while user space changes its values in the data plane: there is one writer at a time.
var writing sync.Mutex

var (
	_ app.Filler      = speedlimit{}
	_ app.Runner      = speedlimit{}
	_ app.Stateful    = speedlimit{}
	_ app.ValueStore  = speedlimit{}
	_ app.ReasonNamer = speedlimit{}
)

// Limit is the speed limit in km/h for so many cars in range, as published.
func Limit(cars int64) float64 {
	switch {
	case cars < 30:
		return 120
	case cars >= 100:
		return 30
	}
	return 45*math.Cos(math.Pi/70*float64(cars-30)) + 75
}

// Config of a listener.
type Config struct {
	Mode      string `json:"mode"`      // user, mixed or kernel
	Recompute string `json:"recompute"` // of mixed: an interval such as 1s, or change
}

var modes = map[string]uint32{"mixed": 0, "kernel": 1, "user": 2}

// Compile implements app.App.
func (speedlimit) Compile(l app.Listener) (app.Service, error) {
	c := Config{Mode: "kernel", Recompute: "1s"}
	if err := app.Decode(l.Config, &c); err != nil {
		return nil, err
	}
	mode, ok := modes[c.Mode]
	if !ok {
		return nil, &sdk.ConfigError{Field: "mode", Reason: fmt.Sprintf("%q is not one of user, mixed, kernel", c.Mode)}
	}
	s := &service{mode: mode}
	if c.Recompute != "change" {
		every, err := time.ParseDuration(c.Recompute)
		if err != nil || every < time.Millisecond {
			return nil, &sdk.ConfigError{Field: "recompute",
				Reason: fmt.Sprintf("%q is neither change nor an interval of at least 1ms such as 1s", c.Recompute)}
		}
		s.every = every
	}
	return s, nil
}

type service struct {
	mode  uint32
	every time.Duration // 0: at each change
}

const messageSize = 8

// Shape implements app.Service.
func (s *service) Params() app.Params {
	return app.Params{MinRequest: messageSize, MaxRequest: messageSize, Config: [app.Words]uint32{s.mode}}
}

// Reasons implements app.ReasonNamer.
func (speedlimit) Reasons() []string { return []string{"other_op", "user_mode"} }

const (
	mapCounts = "sl_counts"
	mapGiven  = "sl_given"
)

// count mirrors struct sl_count, given struct sl_given.
type count struct {
	Lock, Zero  uint32
	Cars        int64
	Asked, Left uint64
	Spare       [4]uint64
}

type given struct {
	Offset      int64
	Limit, Zero uint32
}

// Fill implements app.Filler.
func (speedlimit) Fill(m sdk.Maps, all []app.PlacedListener) error {
	for _, p := range all {
		if !p.Fresh {
			continue
		}
		counts, err := m.Get(mapCounts)
		if err != nil {
			return err
		}
		if err := counts.Update(p.Slot, count{}, ebpf.UpdateLock); err != nil {
			return fmt.Errorf("write map %s: %w", mapCounts, err)
		}
		if err := writeGiven(m, p.Slot, given{Limit: rounded(0)}); err != nil {
			return err
		}
	}
	return nil
}

func rounded(cars int64) uint32 { return uint32(math.Round(Limit(cars))) }

func read(m sdk.Maps, slot uint32) (n count, g given, err error) {
	counts, err := m.Get(mapCounts)
	if err != nil {
		return n, g, err
	}
	if err := counts.LookupWithFlags(slot, &n, ebpf.LookupLock); err != nil {
		return n, g, fmt.Errorf("read map %s: %w", mapCounts, err)
	}
	g, err = readGiven(m, slot)
	return n, g, err
}

func readGiven(m sdk.Maps, slot uint32) (g given, err error) {
	err = m.Lookup(mapGiven, slot, &g)
	return g, err
}

func writeGiven(m sdk.Maps, slot uint32, g given) error { return m.Put(mapGiven, slot, g) }

// Run implements app.Runner: it computes the limits of mixed listeners, once each interval or when their count has
// changed.
func (a speedlimit) Run(ctx context.Context, live app.Live) {
	mixed := map[uint32]*service{}
	next := map[uint32]time.Time{}
	every := time.Hour
	changing := []app.PlacedListener{}
	for _, p := range live.All {
		s := p.Service.(*service)
		if s.mode != modes["mixed"] {
			continue
		}
		mixed[p.Slot] = s
		if s.every == 0 {
			changing = append(changing, p)
			continue
		}
		next[p.Slot] = time.Now()
		every = min(every, s.every)
	}
	var changes <-chan uint32
	if len(changing) > 0 {
		changes = live.Watch(ctx)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		for slot, at := range next {
			if now := time.Now(); !now.Before(at) {
				a.recompute(live.Maps, slot)
				next[slot] = at.Add(mixed[slot].every)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case slot, ok := <-changes:
			if !ok {
				changes = nil
			} else if s := mixed[slot]; s != nil && s.every == 0 {
				a.recompute(live.Maps, slot)
			}
		}
	}
}

func (speedlimit) recompute(m sdk.Maps, slot uint32) {
	writing.Lock()
	defer writing.Unlock()
	n, g, err := read(m, slot)
	if err == nil && g.Limit != rounded(n.Cars+g.Offset) {
		g.Limit = rounded(n.Cars + g.Offset)
		err = writeGiven(m, slot, g)
	}
	if err != nil {
		slog.Error("speedlimit: limit not computed", "error", err)
	}
}

// State of a listener. Cars counts what the kernel counted and what user space added.
type State struct {
	Cars     int64  `json:"cars"`     // in range
	Limit    uint32 `json:"limit"`    // km/h
	Answered uint64 `json:"answered"` // GET_SPEED_LIMIT that the kernel answered since the listener exists
	Left     uint64 `json:"left"`     // OUT_OF_RANGE that the kernel took
}

// State implements app.Stateful.
func (speedlimit) State(m sdk.Maps, p app.PlacedListener) (any, error) {
	n, g, err := read(m, p.Slot)
	s := State{Cars: max(0, n.Cars+g.Offset), Limit: g.Limit, Answered: n.Asked, Left: n.Left}
	if p.Service.(*service).mode != modes["mixed"] {
		s.Limit = rounded(s.Cars)
	}
	return s, err
}

// change is the body of PUT state: a new number of cars, or how many more or fewer.
type change struct {
	Cars *int64 `json:"cars"`
	Add  int64  `json:"add"`
}

const maxCars = 1 << 40

// SetState implements app.Stateful.
func (a speedlimit) SetState(m sdk.Maps, p app.PlacedListener, body json.RawMessage) error {
	var c change
	if err := app.Decode(body, &c); err != nil {
		return err
	}
	if c.Cars != nil && (*c.Cars < 0 || *c.Cars > maxCars || c.Add != 0) || c.Add > maxCars || c.Add < -maxCars {
		return &sdk.ConfigError{Field: "body", Reason: `want {"cars": n} with n >= 0, or {"add": n}`}
	}
	return a.change(m, p, c)
}

// change moves the offset, which only user space writes: what the data plane counts at the same time is not lost.
func (a speedlimit) change(m sdk.Maps, p app.PlacedListener, c change) error {
	writing.Lock()
	defer writing.Unlock()
	n, g, err := read(m, p.Slot)
	if err != nil {
		return err
	}
	if c.Cars != nil {
		g.Offset = *c.Cars - n.Cars
	} else {
		g.Offset = max(0, max(0, n.Cars+g.Offset)+c.Add) - n.Cars
	}
	if p.Service.(*service).every == 0 {
		g.Limit = rounded(n.Cars + g.Offset)
	}
	return writeGiven(m, p.Slot, g)
}

// Values implements app.ValueStore.
func (a speedlimit) Values(m sdk.Maps, p app.PlacedListener) ([]app.Value, error) {
	n, g, err := read(m, p.Slot)
	return []app.Value{{Key: "cars", Value: strconv.FormatInt(max(0, n.Cars+g.Offset), 10)}}, err
}

// SetValue implements app.ValueStore.
func (a speedlimit) SetValue(m sdk.Maps, p app.PlacedListener, key string, body json.RawMessage) error {
	if key != "cars" {
		return fmt.Errorf("%w: %s has cars only", app.ErrNoValue, p.Name)
	}
	var v struct {
		Value string `json:"value"`
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return &sdk.ConfigError{Field: "body", Reason: err.Error()}
	}
	cars, err := strconv.ParseInt(v.Value, 10, 64)
	if err != nil || cars < 0 || cars > maxCars {
		return &sdk.ConfigError{Field: "cars", Reason: fmt.Sprintf("%q is not a number from 0 on", v.Value)}
	}
	return a.change(m, p, change{Cars: &cars})
}
