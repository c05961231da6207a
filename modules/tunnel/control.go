// SPDX-License-Identifier: Apache-2.0

// Package tunnel is the control plane of the tunnel: it writes to the data plane which node has which addresses, from
// the configuration and from virtual services whose instances name a node, and where this node's own services are.
package tunnel

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf/features"

	"github.com/kerb-edge/kerb/sdk"
)

// Control returns the control plane.
func Control() sdk.Control { return sdk.Define(parseConfig) }

// tunnel is a started map set: a config and the maps that see packets.
type tunnel struct {
	config *config
	live   sdk.Live
	half   int // of the maps of the config

	mu       sync.Mutex
	virtual  map[string][]located // by virtual service
	mention  map[string]bool      // services that were put since a reset; nil outside of one
	complete bool                 // all virtual services are known
	problem  error                // why the tables are not up to date; nil if they are
	gone     map[uint32]bool      // places of nodes that were not in use at the last sweep
	ways     map[netip.Addr]node  // nodes as last written
	refused  map[netip.Addr]string
	paths    map[netip.Addr]pathMTU
	asked    lookups
	held     held
	senders  map[string]time.Time // dynamic virtual services by the time of their last packet; zero: released
}

var (
	_ sdk.Compiled           = (*config)(nil)
	_ sdk.Handler            = (*tunnel)(nil)
	_ sdk.Runner             = (*tunnel)(nil)
	_ sdk.Collector          = (*tunnel)(nil)
	_ sdk.HealthChecker      = (*tunnel)(nil)
	_ sdk.Conditioner        = (*tunnel)(nil)
	_ sdk.VirtualServiceUser = (*tunnel)(nil)
	_ sdk.AttachmentWatcher  = (*tunnel)(nil)
)

// Settings implements sdk.Compiled. Keys are no constants: those are kept on disk.
func (c *config) Settings() sdk.Settings {
	settings := sdk.Settings{Constants: map[string]any{
		"mode": modes[c.Mode], "keyed": c.keyed(), "decap_l3": knowsDecap(),
	}, Tunables: map[string]any{"port": c.Port, "network": c.Network}}
	if c.Mode == modeDevice {
		settings.LinkTypes = []string{"ethernet"}
	}
	return settings
}

// knowsDecap reports whether the kernel has BPF_F_ADJ_ROOM_DECAP_L3_*. A control plane may not load programs, so that
// it cannot try.
var knowsDecap = sync.OnceValue(func() bool {
	version, err := features.LinuxVersionCode()
	return err == nil && version >= 6<<16|3<<8
})

// Fill implements sdk.Compiled. Nodes have their places in a map that is shared with the running map set: those that
// are new to it take free ones, which nothing there points to.
func (c *config) Fill(maps sdk.Maps) error {
	half, err := maps.FreeHalf()
	if err != nil {
		return err
	}
	sharing.Lock()
	defer sharing.Unlock()
	places, err := readPlaces(maps)
	if err != nil {
		return err
	}
	subnets := map[prefix]end{}
	for _, p := range c.peers {
		at, err := places.take(p.addr)
		if err != nil {
			return err
		}
		if err := places.keep(p.addr); err != nil {
			return err
		}
		for _, subnet := range p.subnets {
			subnets[prefixOf(half, subnet)] = end{Node: at}
		}
	}
	inHalf := func(p prefix, _ end) bool { return p.Half == uint32(half) }
	if err := sdk.SyncTable(maps, mapPrefixes, subnets, inHalf); err != nil {
		return err
	}
	for at, n := range places.nodes { // those of virtual services, too, which the running map set knows
		if n.Addr == (address{}) {
			continue
		}
		if err := c.writeKeys(maps, half, uint32(at), n); err != nil {
			return err
		}
	}
	return nil
}

// Open implements sdk.Compiled.
func (c *config) Open(live sdk.Live) (sdk.Running, error) {
	half, err := live.Maps.ActiveHalf()
	if err != nil {
		return nil, err
	}
	return &tunnel{config: c, live: live, half: half, virtual: map[string][]located{}, paths: map[netip.Addr]pathMTU{},
		asked: newLookups(), senders: map[string]time.Time{}}, nil
}

const sweepEvery = 30 * time.Second

// Run updates the tables, and frees the places of nodes that are no longer in use.
func (t *tunnel) Run(ctx context.Context) {
	var learning sync.WaitGroup
	defer learning.Wait()
	learning.Go(func() { t.followPath(ctx) })
	if t.config.Mode == modeOakestra {
		learning.Go(func() { t.followStrangers(ctx) })
	}
	sdk.Every(ctx, sweepEvery, func() {
		t.refresh()
		t.sweep()
		t.releaseIdle(time.Now())
	})
}

// AttachmentChanged implements sdk.AttachmentWatcher.
func (t *tunnel) AttachmentChanged(sdk.Attachment, bool) { t.refresh() }

// VirtualServices implements sdk.VirtualServiceUser: an instance that names a node is reached through that node.
func (t *tunnel) VirtualServices(update sdk.VirtualServiceUpdate) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if update.Reset {
		t.mention = map[string]bool{}
	}
	for _, service := range update.Put {
		if _, known := t.virtual[service.Name]; !known && service.Dynamic {
			t.senders[service.Name] = time.Now()
		}
		t.virtual[service.Name] = locate(service)
		if t.mention != nil {
			t.mention[service.Name] = true
		}
	}
	for _, name := range update.Remove {
		delete(t.virtual, name)
		delete(t.senders, name)
	}
	if update.Complete {
		for name := range t.virtual {
			if !t.mention[name] {
				delete(t.virtual, name)
				delete(t.senders, name)
			}
		}
		t.mention, t.complete = nil, true
	}
	t.problem = t.apply()
	t.lookedUp(update, time.Now())
	return t.problem
}

func (t *tunnel) refresh() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.problem = t.apply(); t.problem != nil {
		slog.Warn("tunnel: tables are not up to date", "module", t.live.Module, "error", t.problem)
	}
}

// Health implements sdk.HealthChecker.
func (t *tunnel) Health() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.problem != nil {
		return t.problem
	}
	if len(t.links()) == 0 {
		return errors.New("no underlay interface: name it in spec.attach.interfaces")
	}
	return nil
}
