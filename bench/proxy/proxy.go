// SPDX-License-Identifier: Apache-2.0

// Package proxy is `kerb bench proxy`: two services on one node, and what it costs to reach one of them by a virtual
// address: by Kerb's proxy, by nftables and iptables in kube-proxy's style, by user-space proxies on a TUN device,
// alongside the direct way by its own address over the bridge, which is the limit that only a shorter path can pass.
// Every config has a lab of its own for the whole load, so rounds alternate without setting anything up again.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/path"
	"github.com/kerb-edge/kerb/bench/tunnel"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// Virtual addresses of client and server, none of which any interface has.
var virtual = map[string][2]netip.Addr{
	"same-node/ipv4": {netip.MustParseAddr("10.30.0.1"), netip.MustParseAddr("10.30.0.2")},
	"same-node/ipv6": {netip.MustParseAddr("fdff:2000::1"), netip.MustParseAddr("fdff:2000::2")},
}

func init() {
	bench.Register(bench.Experiment{
		Name:       "proxy",
		Short:      "a service by its virtual address, against nftables, iptables and user-space proxies",
		Baseline:   "direct",
		Loads:      slices.Concat([]string{"same-node/ipv4", "same-node/ipv6"}, tunnel.VirtualLoads, flowLoads),
		QuickLoads: []string{"same-node/ipv4", "flows/uniform-10k"},
		Run:        run,
	})
}

// config is one way to the server.
type config struct {
	name string
	// services without a bridge, as networks with kube-proxy have them: there DNAT is faster than over a bridge
	routed bool
	raise  func(*ground) (closer, error)
}

type closer interface{ Close() error }

type nothing struct{}

func (nothing) Close() error { return nil }

var configs = []config{
	{"direct", false, func(*ground) (closer, error) { return nothing{}, nil }},
	{"kerb", false, raiseKerb},
	{"nftables", true, raiseNFTables},
	{"iptables", true, raiseIPTables},
	{"tun-go", false, func(g *ground) (closer, error) { return raiseTUN(g, "goroutines") }},
	{"tun", false, func(g *ground) (closer, error) { return raiseTUN(g, "single") }},
	{"tun-best", false, func(g *ground) (closer, error) { return raiseTUN(g, "multi") }},
}

func run(ctx context.Context, r *bench.Run) error {
	r.Note("nftables and iptables: one service among 100, routed services without a bridge; masquerading and " +
		"policy left out")
	for _, load := range r.Loads() {
		run := runLoad
		if strings.HasPrefix(load, flowPrefix) {
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

func runLoad(ctx context.Context, r *bench.Run, load string) (err error) {
	var trials []bench.Trial
	for _, c := range configs {
		if !r.Wants(c.name) {
			continue
		}
		g, wrong := open(c, virtual[load]) // err is what closing them adds to
		if errors.Is(wrong, exec.ErrNotFound) {
			r.Note("%s is left out: %v", c.name, wrong)
			continue
		}
		if wrong != nil {
			return fmt.Errorf("%s: %w", c.name, wrong)
		}
		defer func() { err = errors.Join(err, g.close()) }()
		trials = append(trials, bench.Trial{Config: c.name, Measure: func(context.Context) ([]bench.Sample, error) {
			if r.Scale > 0 {
				return g.path.MeasurePublished(r, c.name, load)
			}
			return g.measure(r.Quick)
		}})
	}
	return r.Interleave(ctx, load, trials...)
}

// ground is a lab with a client and a server.
type ground struct {
	config         config
	lab            *netlab.Lab
	client, server *netlab.Host
	virtual        [2]netip.Addr // of the client, of the server
	group          *path.Group
	path           *path.Path
	way            closer
}

// open has a lab with a way and a path through it.
func open(c config, virtual [2]netip.Addr) (*ground, error) {
	g, err := openLab(c, virtual)
	if err != nil {
		return nil, err
	}
	g.path = &path.Path{Client: g.client, Server: g.server, Address: g.destination(), Group: g.group}
	if err := g.path.Open(); err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

func openLab(c config, virtual [2]netip.Addr) (*ground, error) {
	prefix := "kbpx" + c.name[:2] + c.name[len(c.name)-1:]
	if err := netlab.Sweep(prefix); err != nil {
		return nil, err
	}
	g := &ground{config: c, virtual: virtual}
	if err := g.build(prefix); err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

func (g *ground) build(prefix string) (err error) {
	if g.lab, err = netlab.NewIn(prefix); err != nil {
		return err
	}
	for name, host := range map[string]**netlab.Host{"client": &g.client, "server": &g.server} {
		if *host, err = g.lab.Host(name, netlab.HostOptions{Routed: g.config.routed}); err != nil {
			return err
		}
	}
	if g.group, err = path.NewGroup(prefix); err != nil {
		return err
	}
	g.way, err = g.config.raise(g)
	return err
}

// destination is where the client finds the server.
func (g *ground) destination() netip.Addr {
	if g.config.name == "direct" {
		return g.addr(g.server)
	}
	return g.virtual[1]
}

// addr is a host's own address in the family of the load.
func (g *ground) addr(h *netlab.Host) netip.Addr {
	if g.virtual[0].Is4() {
		return h.Addr4()
	}
	return h.Addr6()
}

func (g *ground) measure(quick bool) ([]bench.Sample, error) {
	samples, err := g.path.Measure(quick)
	if err != nil {
		return nil, err
	}
	if k, ok := g.way.(*kerb); ok {
		packet, err := k.packet(func() error {
			_, err := g.path.Trips(100 * time.Millisecond)
			return err
		})
		return append(samples, bench.Sample{Metric: "packet", Stat: "p50", Unit: "ns", Value: packet}), err
	}
	return samples, nil
}

func (g *ground) close() error {
	var errs []error
	if g.path != nil {
		errs = append(errs, g.path.Close())
	}
	if g.way != nil {
		errs = append(errs, g.way.Close())
	}
	if g.lab != nil {
		errs = append(errs, g.lab.Close())
	}
	if g.group != nil {
		errs = append(errs, g.group.Close())
	}
	return errors.Join(errs...)
}
