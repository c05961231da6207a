// SPDX-License-Identifier: Apache-2.0

// Package proxy implements `kerb bench proxy`: connections between two services on one node by a virtual address, with
// Kerb's proxy, nftables and iptables rules like kube-proxy's, and user-space proxies on a TUN device, compared with
// direct connections over the bridge, which only a shorter path can outperform. Each config has a separate lab for the
// whole load, so that rounds alternate without repeated setup.
package proxy

import (
	"context"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/path"
	"github.com/kerb-edge/kerb/bench/tunnel"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// Virtual addresses of client and server, which no interface has.
var virtual = map[string][2]netip.Addr{
	"same-node/ipv4": {netip.MustParseAddr("10.30.0.1"), netip.MustParseAddr("10.30.0.2")},
	"same-node/ipv6": {netip.MustParseAddr("fdff:2000::1"), netip.MustParseAddr("fdff:2000::2")},
}

func init() {
	bench.Register(bench.Experiment{
		Name:       "proxy",
		Short:      "connections to a virtual address, compared with nftables, iptables and user-space proxies",
		Baseline:   "direct",
		Loads:      slices.Concat([]string{"same-node/ipv4", "same-node/ipv6"}, tunnel.VirtualLoads, flowLoads),
		QuickLoads: []string{"same-node/ipv4", "flows/uniform-10k"},
		LongLoads:  longLoads,
		Run:        run,
	})
}

// config is one path to the server.
type config struct {
	name string
	// routed services without a bridge, as in networks with kube-proxy, where DNAT is faster than with a bridge
	routed bool
	setup  func(*topology) error
}

var configs = []config{
	{"direct", false, func(*topology) error { return nil }},
	{"kerb", false, setupKerb},
	{"nftables", true, setupNFTables},
	{"iptables", true, setupIPTables},
	{"tun-go", false, func(g *topology) error { return setupTUN(g, "goroutines") }},
	{"tun", false, func(g *topology) error { return setupTUN(g, "single") }},
	{"tun-best", false, func(g *topology) error { return setupTUN(g, "multi") }},
}

func run(ctx context.Context, r *bench.Run) error {
	r.Note("nftables and iptables: one of 100 services, routed, without a bridge; no masquerading and no policy")
	for _, load := range r.Loads() {
		run := runLoad
		if path.IsLong(load) {
			run = runLong
		} else if strings.HasPrefix(load, flowPrefix) {
			run = runFlows
		} else if slices.Contains(tunnel.VirtualLoads, load) {
			run = tunnel.RunVirtual
		}
		if err := run(ctx, r, load); err != nil {
			return err
		}
	}
	return nil
}

func runLoad(ctx context.Context, r *bench.Run, load string) error {
	var trials []bench.Trial
	for _, c := range configs {
		var g *topology
		trials = append(trials, bench.Trial{Config: c.name,
			Open: func() (_ io.Closer, err error) { g, err = open(c, virtual[load]); return g, err },
			Measure: func(context.Context) ([]bench.Sample, error) {
				if r.Scale > 0 {
					return g.path.MeasurePublished(r, c.name, load)
				}
				return g.measure(r.Quick)
			}})
	}
	return r.Interleave(ctx, load, trials...)
}

// topology is a lab with a client and a server.
type topology struct {
	bench.Closers
	config         config
	lab            *netlab.Lab
	client, server *netlab.Host
	virtual        [2]netip.Addr // of client and server
	group          *path.Group
	path           *path.Path
	kerb           *kerb // nil with other configs
}

// open returns a lab with a config, and the path through it.
func open(c config, virtual [2]netip.Addr) (*topology, error) {
	g, err := openLab(c, virtual)
	if err != nil {
		return nil, err
	}
	g.path = &path.Path{Client: g.client, Server: g.server, Address: g.destination(), Group: g.group}
	if g.kerb != nil {
		g.path.Agents = []*node.Node{g.kerb.node}
	}
	g.Later(g.path.Close)
	return g, g.CloseOn(g.path.Open())
}

func openLab(c config, virtual [2]netip.Addr) (*topology, error) {
	prefix := "kbpx" + c.name[:2] + c.name[len(c.name)-1:]
	g := &topology{config: c, virtual: virtual}
	return g, g.CloseOn(g.build(prefix))
}

func (g *topology) build(prefix string) (err error) {
	if g.group, err = path.NewGroup(prefix); err != nil {
		return err
	}
	g.Later(g.group.Close) // after all processes of the lab
	if g.lab, err = netlab.NewIn(prefix); err != nil {
		return err
	}
	g.Later(g.lab.Close)
	for name, host := range map[string]**netlab.Host{"client": &g.client, "server": &g.server} {
		if *host, err = g.lab.Host(name, netlab.HostOptions{Routed: g.config.routed}); err != nil {
			return err
		}
	}
	return g.config.setup(g)
}

// destination returns the server's address for the client.
func (g *topology) destination() netip.Addr {
	if g.config.name == "direct" {
		return g.addr(g.server)
	}
	return g.virtual[1]
}

// addr returns a host's own address in the family of the load.
func (g *topology) addr(h *netlab.Host) netip.Addr {
	if g.virtual[0].Is4() {
		return h.Addr4()
	}
	return h.Addr6()
}

func (g *topology) measure(quick bool) ([]bench.Sample, error) {
	samples, err := g.path.Measure(quick)
	if err != nil {
		return nil, err
	}
	if g.kerb != nil {
		packet, err := g.kerb.packet(func() error {
			_, err := g.path.Trips(100 * time.Millisecond)
			return err
		})
		return append(samples, bench.P50("packet", "ns", packet)), err
	}
	return samples, nil
}
