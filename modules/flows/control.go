// SPDX-License-Identifier: Apache-2.0

// Package flows is the control plane of the module that records who talks to whom: it takes flows that are idle out of
// the data plane's table, and sums up what they carried by minute for an hour.
package flows

import (
	"cmp"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// Control returns the control plane.
func Control() sdk.Control { return sdk.Define(compile) }

// config of the module. Defaults are those of the manifest's schema.
type config struct {
	Flows    uint32 `json:"flows"`
	Services uint32 `json:"services"`
	Idle     uint32 `json:"idle"` // seconds
}

// most flows that the table may have room for: 16 MiB of kernel memory, and twice as much in the control plane for a
// moment of each sweep, which all built-in control planes share.
const most = 65536

func compile(raw json.RawMessage) (*config, error) {
	c, err := sdk.DecodeConfig(raw, &config{Flows: 1024, Services: 32, Idle: 15})
	if err != nil {
		return nil, err
	}
	if c.Flows*c.Services > most {
		return nil, sdk.ConfigErrorf("services", "%d services of %d flows are %d, and at most %d are possible: choose "+
			"smaller numbers", c.Services, c.Flows, c.Flows*c.Services, most)
	}
	return c, nil
}

// Settings implements sdk.Compiled.
func (c *config) Settings() sdk.Settings {
	return sdk.Settings{Constants: map[string]any{"quota": c.Flows},
		MaxEntries: map[string]uint32{mapFlows: c.Flows * c.Services}}
}

// Fill implements sdk.Compiled. Flows are kept; the entry for interfaces that find no room in a table is always there.
func (c *config) Fill(maps sdk.Maps) error {
	services, err := maps.Get(mapServices)
	if err != nil {
		return err
	}
	var there kernelUsage
	if services.Lookup(uint32(0), &there) == nil {
		return nil
	}
	return maps.Put(mapServices, uint32(0), kernelUsage{})
}

// Open implements sdk.Compiled.
func (c *config) Open(live sdk.Live) (sdk.Running, error) {
	return &running{Live: live, idle: time.Duration(c.Idle) * time.Second, quota: uint64(c.Flows),
		opened: sdk.Monotonic(), known: map[key]carried{}}, nil
}

// running is a started map set of the module's maps.
type running struct {
	sdk.Live
	idle   time.Duration
	quota  uint64
	opened uint64 // CLOCK_MONOTONIC

	asking sync.Mutex // one request at a time: each reads the whole table

	mu     sync.Mutex
	known  map[key]carried   // what the hour has of the flows in the table
	gone   map[uint32]uint64 // interfaces that are missing, and since when
	before map[uint32]usage
	lossAt uint64 // CLOCK_MONOTONIC, when packets without room were last noticed; 0: never
	lossOf place
	hour   hour
}

var (
	_ sdk.Handler     = (*running)(nil)
	_ sdk.Runner      = (*running)(nil)
	_ sdk.Collector   = (*running)(nil)
	_ sdk.Conditioner = (*running)(nil)
)

// Collect implements sdk.Collector.
func (g *running) Collect() ([]sdk.Sample, error) {
	used, err := g.usages()
	if err != nil {
		return nil, err
	}
	var out []sdk.Sample
	for _, at := range g.places(used) {
		u := used[at.Ifindex]
		labels := map[string]string{"service": at.Service, "interface": at.Interface}
		add := func(name, help string, counter bool, value uint64) {
			out = append(out, sdk.Sample{Name: name, Help: help, Counter: counter, Labels: labels, Value: float64(value)})
		}
		add("recorded", "Flows in the table.", false, u.held())
		add("created_total", "Flows that were recorded.", true, u.Created)
		add("unrecorded_packets_total", "Packets of flows that there was no room for.", true, u.Unrecorded)
		add("unrecorded_bytes_total", "Bytes of frames of flows that there was no room for.", true, u.UnrecordedBytes)
		add("unreadable_packets_total", "IP packets whose headers cannot be parsed.", true, u.Unreadable)
	}
	return out, nil
}

// places are the attachments, and what packets of interfaces without room for their counts are counted for.
func (g *running) places(used map[uint32]usage) []sdk.Attachment {
	all := g.Attachments()
	if u := used[0]; u != (usage{}) {
		all = append(all, sdk.Attachment{})
	}
	return all
}

// lossStays is how long after a loss the condition is false: with each sweep, it would be true until the next loss.
const lossStays = time.Minute

// Conditions implements sdk.Conditioner.
func (g *running) Conditions() ([]sdk.Condition, error) {
	return g.conditions(sdk.Monotonic())
}

func (g *running) conditions(clock uint64) ([]sdk.Condition, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	used, err := g.usages()
	if err != nil {
		return nil, err
	}
	for _, at := range g.places(used) {
		if g.before != nil && used[at.Ifindex].Unrecorded > g.before[at.Ifindex].Unrecorded {
			g.lossAt, g.lossOf = clock, place{at.Service, at.Interface}
			break
		}
	}
	out := sdk.Condition{Type: "RecordsAllFlows", Status: "True", Reason: "RoomLeft"}
	if g.lossAt > 0 && less(clock, g.lossAt) < uint64(lossStays) {
		out = sdk.Condition{Type: out.Type, Status: "False", Reason: "TableFull", Message: fmt.Sprintf(
			"packets of %s were, in the last minute, of flows that there is no room for (flows: %d for a service, "+
				"%d services): choose larger numbers", nameOf(g.lossOf), g.quota, g.tableSize()/g.quota)}
	}
	return []sdk.Condition{out}, nil
}

func nameOf(p place) string {
	return cmp.Or(p.service, p.iface, "interfaces without counts of their own")
}

func (g *running) tableSize() uint64 { return uint64(g.Maps[mapFlows].MaxEntries()) }
