// SPDX-License-Identifier: Apache-2.0

// Package nat is the control plane of the NAT: it compiles the configuration, lists mappings, and deletes those of
// interfaces that no longer exist.
package nat

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// Control returns the control plane.
func Control() sdk.Control { return sdk.Define(compile) }

// Names of maps in the data plane.
const (
	mapMappings = "nat_mappings"
	mapPorts    = "nat_ports"
	mapExcept   = "nat_except"
	mapInbound  = "nat_inbound"
	mapOutbound = "nat_outbound"
)

// inside mirrors struct nat_inside.
type inside struct {
	Ifindex uint32
	Port    [2]byte // network byte order
	Proto   uint8
	Family  uint8    // 4 or 6
	Addr    [16]byte // IPv4 as ::ffff:a.b.c.d
}

// outside mirrors struct nat_outside.
type outside struct {
	Ifindex uint32
	Port    [2]byte
	_       uint16
}

// mapping mirrors struct nat_mapping.
type mapping struct {
	Lock   uint32
	State  uint32
	Inside inside
	Used   uint64
}

// prefix mirrors struct nat_prefix.
type prefix struct {
	Len  uint32
	Addr [16]byte
}

// running is a started map set of the module's maps.
type running struct{ sdk.Live }

var (
	_ sdk.Handler   = running{}
	_ sdk.Runner    = running{}
	_ sdk.Collector = running{}
)

// Settings implements sdk.Compiled.
func (c *compiled) Settings() sdk.Settings {
	size := c.Services * c.count()
	return sdk.Settings{Constants: c.constants(), MaxEntries: map[string]uint32{mapMappings: size, mapPorts: size}}
}

// Fill implements sdk.Compiled. Mappings are kept.
func (c *compiled) Fill(maps sdk.Maps) error {
	for _, p := range c.except {
		if err := maps.Put(mapExcept, p, uint32(1)); err != nil {
			return err
		}
	}
	for out, in := range c.forward {
		if err := maps.Put(mapInbound, out, in); err != nil {
			return err
		}
		if err := maps.Put(mapOutbound, in, out); err != nil {
			return err
		}
	}
	return nil
}

// Open implements sdk.Compiled.
func (*compiled) Open(live sdk.Live) (sdk.Running, error) { return running{live}, nil }

// Mapping is a mapping as GET mappings has it.
type Mapping struct {
	Service   string `json:"service,omitempty"`
	Interface string `json:"interface"`
	Protocol  string `json:"protocol"`
	Address   string `json:"address"`
	Port      uint16 `json:"port"`
	Outside   uint16 `json:"outside"` // the port of the outside address
}

// Handler serves GET mappings.
func (g running) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /mappings", func(w http.ResponseWriter, _ *http.Request) { sdk.Answer(w)(g.list()) })
	return mux
}

// Collect implements sdk.Collector.
func (g running) Collect() ([]sdk.Sample, error) {
	all, err := sdk.ReadTable[outside, mapping](g.Maps, mapMappings)
	if err != nil {
		return nil, err
	}
	counts := map[uint32]int{}
	for key := range all {
		counts[key.Ifindex]++
	}
	var out []sdk.Sample
	for _, i := range g.Attachments() {
		out = append(out, sdk.Sample{Name: "mappings", Help: "Ports that have a mapping, expired ones included.",
			Labels: map[string]string{"service": i.Service, "interface": i.Interface}, Value: float64(counts[i.Ifindex])})
	}
	return out, nil
}

const sweepEvery = 30 * time.Second

// Run removes the mappings of interfaces that are gone.
func (g running) Run(ctx context.Context) {
	gone := map[uint32]bool{}
	sdk.Every(ctx, sweepEvery, func() {
		var err error
		if gone, err = g.sweep(gone); err != nil {
			slog.Warn("nat: sweep failed", "module", g.Module, "error", err)
		}
	})
}

// sweep deletes the entries of interfaces that are missing now and were missing the last time, and returns those that
// are missing.
func (g running) sweep(before map[uint32]bool) (map[uint32]bool, error) {
	present, missing := g.ByIfindex(), map[uint32]bool{}
	ports, err := sdk.ReadTable[inside, uint32](g.Maps, mapPorts)
	if err != nil {
		return before, err
	}
	mappings, err := sdk.ReadTable[outside, mapping](g.Maps, mapMappings)
	if err != nil {
		return before, err
	}
	obsolete := func(ifindex uint32) bool {
		if _, there := present[ifindex]; there {
			return false
		}
		missing[ifindex] = true
		return before[ifindex]
	}
	for key := range ports {
		if obsolete(key.Ifindex) {
			if err := g.Maps.Delete(mapPorts, key); err != nil {
				return before, err
			}
		}
	}
	for key := range mappings {
		if obsolete(key.Ifindex) {
			if err := g.Maps.Delete(mapMappings, key); err != nil {
				return before, err
			}
		}
	}
	return missing, nil
}

func compile(raw json.RawMessage) (*compiled, error) {
	c := &compiled{}
	if _, err := sdk.DecodeConfig(raw, &c.config); err != nil {
		return nil, err
	}
	return c, c.check()
}
