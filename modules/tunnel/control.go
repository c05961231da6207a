// SPDX-License-Identifier: Apache-2.0

// Package tunnel is the control plane of the tunnel: it tells the data plane which node has which addresses, from the
// configuration and from virtual services whose instances name a node, and where this node's own services are.
package tunnel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf/features"

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
	return &Tunnel{config: c, virtual: map[string][]remote{}, paths: map[netip.Addr]pathMTU{}}, nil
}

// Tunnel is a configuration at work.
type Tunnel struct {
	config *config

	mu       sync.Mutex
	virtual  map[string][]remote // by virtual service
	mention  map[string]bool     // services that were put since a reset; nil outside of one
	complete bool                // all virtual services are known
	problem  error               // why the tables are not what they should be
	gone     map[uint32]bool     // places of nodes that nobody needed at the last sweep
	ways     map[netip.Addr]node // nodes as last written
	refused  map[netip.Addr]string
	paths    map[netip.Addr]pathMTU
}

var (
	_ sdk.Handler            = (*Tunnel)(nil)
	_ sdk.Runner             = (*Tunnel)(nil)
	_ sdk.Measurer           = (*Tunnel)(nil)
	_ sdk.HealthChecker      = (*Tunnel)(nil)
	_ sdk.Conditioner        = (*Tunnel)(nil)
	_ sdk.VirtualServiceUser = (*Tunnel)(nil)
	_ sdk.InstanceFollower   = (*Tunnel)(nil)
)

// Settings implements sdk.Compiled. Keys are no constants: those are kept on disk.
func (t *Tunnel) Settings() sdk.Settings {
	c := t.config
	settings := sdk.Settings{Constants: map[string]any{
		"mode": modes[c.Mode], "port": c.Port, "network": c.Network, "keyed": c.keyed(), "decap_l3": knowsDecap(),
	}}
	if c.Mode == modeDevice {
		settings.LinkTypes = []string{"ethernet"}
	}
	return settings
}

// knowsDecap tells whether the kernel has BPF_F_ADJ_ROOM_DECAP_L3_*. A control plane may not load programs, so that it cannot
// try.
var knowsDecap = sync.OnceValue(func() bool {
	version, err := features.LinuxVersionCode()
	return err == nil && version >= 6<<16|3<<8
})

// Fill implements sdk.Compiled. Nodes have their places in a map that is shared with the running generation: those that are
// new to it take free ones, which nothing there points to.
func (t *Tunnel) Fill(maps sdk.Maps) error {
	prefixes, err := maps.Get(mapPrefixes)
	if err != nil {
		return err
	}
	sharing.Lock()
	defer sharing.Unlock()
	places, err := readPlaces(maps)
	if err != nil {
		return err
	}
	for _, p := range t.config.peers {
		at, err := places.take(p.addr)
		if err != nil {
			return err
		}
		if err := places.keep(p.addr); err != nil {
			return err
		}
		for _, subnet := range p.subnets {
			if err := prefixes.Put(prefixOf(subnet), end{Node: at}); err != nil {
				return fmt.Errorf("fill map %s: %w", mapPrefixes, err)
			}
		}
	}
	for at, n := range places.nodes { // those of virtual services, too, which the running generation knows
		if n.Addr == (address{}) {
			continue
		}
		if err := t.config.writeKeys(maps, uint32(at), n); err != nil {
			return err
		}
	}
	return nil
}

const sweepEvery = 30 * time.Second

// Run brings the tables up to date, and now and then frees the places of nodes that nobody needs any more.
func (t *Tunnel) Run(ctx context.Context, live sdk.Live) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	var learning sync.WaitGroup
	defer learning.Wait()
	learning.Go(func() { t.followPath(ctx, live) })
	for {
		t.refresh(live)
		t.sweep(live)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// InstanceChanged implements sdk.InstanceFollower.
func (t *Tunnel) InstanceChanged(live sdk.Live, _ sdk.Instance, _ bool) { t.refresh(live) }

// VirtualServices implements sdk.VirtualServiceUser: instances that name a node are there.
func (t *Tunnel) VirtualServices(live sdk.Live, update sdk.VirtualServiceUpdate) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if update.Reset {
		t.mention = map[string]bool{}
	}
	for _, service := range update.Put {
		t.virtual[service.Name] = remotes(service)
		if t.mention != nil {
			t.mention[service.Name] = true
		}
	}
	for _, name := range update.Remove {
		delete(t.virtual, name)
	}
	if update.Complete {
		for name := range t.virtual {
			if !t.mention[name] {
				delete(t.virtual, name)
			}
		}
		t.mention, t.complete = nil, true
	}
	t.problem = t.apply(live)
	return t.problem
}

func (t *Tunnel) refresh(live sdk.Live) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.problem = t.apply(live); t.problem != nil {
		slog.Warn("tunnel: tables are not up to date", "module", live.Module, "error", t.problem)
	}
}

// Health implements sdk.HealthChecker.
func (t *Tunnel) Health(live sdk.Live) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.problem != nil {
		return t.problem
	}
	if len(links(live)) == 0 {
		return errors.New("no underlay interface: name it in spec.attach.interfaces")
	}
	return nil
}
