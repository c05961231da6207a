// SPDX-License-Identifier: Apache-2.0

// Package tunnel implements `kerb bench tunnel`: connections between services on two nodes, through Kerb's tunnel with
// and without authentication, the kernel's VXLAN, and a user-space tunnel on a TUN device, compared with plain routing,
// which is the limit. In some loads the client uses a virtual address through a proxy. Each config has separate nodes
// for the whole load.
package tunnel

import (
	"context"
	"fmt"
	"io"
	"net/netip"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/path"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// load has the properties of packets.
type load struct {
	ip6      bool // of services and underlay
	underlay int  // MTU in bytes
	service  int  // MTU of services, the same for all configs: that of the largest headers, VXLAN's
	virtual  bool // the client uses the server's virtual address
}

var loads = map[string]load{
	"two-nodes/ipv4": {underlay: 1500, service: 1450},
	"two-nodes/ipv6": {ip6: true, underlay: 1500, service: 1430},
	"jumbo":          {underlay: 9000, service: 8950},

	VirtualLoads[0]: {underlay: 1500, service: 1450, virtual: true},
	VirtualLoads[1]: {ip6: true, underlay: 1500, service: 1430, virtual: true},
}

func init() {
	bench.Register(bench.Experiment{
		Name:       "tunnel",
		Short:      "connections to a service on another node, compared with VXLAN and a user-space tunnel",
		Baseline:   "vxlan",
		Loads:      append([]string{"two-nodes/ipv4", "two-nodes/ipv6", "jumbo"}, VirtualLoads...),
		QuickLoads: []string{"two-nodes/ipv4"},
		Run:        run,
	})
}

// config is one path to the other node.
type config struct {
	name  string
	quick bool                  // measured in a quick run, too
	setup func(*topology) error // its resources are closed with the topology
}

var configs = []config{
	{"direct", true, setupRoutes},
	{"kerb", true, func(g *topology) error { return setupKerb(g, false) }},
	{"kerb-mac", false, func(g *topology) error { return setupKerb(g, true) }},
	{"vxlan", true, setupVXLAN},
	{"tun", true, setupTUN},
}

func run(ctx context.Context, r *bench.Run) error {
	r.Note("underlay: a veth pair between two namespaces, which carries GSO packets unsegmented for every config")
	for _, name := range r.Loads() {
		if err := runConfigs(ctx, r, name, configsOf(loads[name])); err != nil {
			return err
		}
	}
	return nil
}

func configsOf(l load) []config {
	if l.virtual {
		return virtualConfigs
	}
	return configs
}

func runConfigs(ctx context.Context, r *bench.Run, name string, all []config) error {
	var trials []bench.Trial
	for i, c := range all {
		if r.Quick && !c.quick {
			continue
		}
		var g *topology
		trials = append(trials, bench.Trial{Config: c.name,
			Open: func() (_ io.Closer, err error) { g, err = open(c, loads[name], i); return g, err },
			Measure: func(context.Context) ([]bench.Sample, error) {
				if r.Scale > 0 {
					return g.path.MeasurePublished(r, c.name, name)
				}
				return g.path.Measure(r.Quick)
			}})
	}
	return r.Interleave(ctx, name, trials...)
}

// topology is two connected nodes with a service on each.
type topology struct {
	bench.Closers
	load
	labs           [2]*netlab.Lab
	wire           *netlab.Wire
	client, server *netlab.Host
	group          *path.Group
	path           *path.Path
	agents         []*node.Node // of Kerb, by node
	proxied        bool         // a user-space proxy translates the virtual addresses
}

// plans has the services' networks by node.
var plans = [2][2]netip.Prefix{
	{netip.MustParsePrefix("10.81.0.0/16"), netip.MustParsePrefix("fd81::/64")},
	{netip.MustParsePrefix("10.82.0.0/16"), netip.MustParsePrefix("fd82::/64")},
}

// open is prepare, and starts the servers of the measurements.
func open(c config, l load, number int) (*topology, error) {
	g, err := prepare(c, l, number)
	if err != nil {
		return nil, err
	}
	g.Later(g.path.Close)
	return g, g.CloseOn(g.path.Open())
}

func prepare(c config, l load, number int) (*topology, error) {
	g := &topology{load: l}
	return g, g.CloseOn(g.build(fmt.Sprintf("kbtn%d", number), c))
}

// build creates resources in an order that Close can reverse: it stops processes before it removes their labs, and
// these before the cgroup.
func (g *topology) build(prefix string, c config) (err error) {
	if g.group, err = path.NewGroup(prefix); err != nil {
		return err
	}
	g.Later(g.group.Close) // after all processes of the labs
	for i, name := range []string{prefix + "a", prefix + "b"} {
		g.labs[i], err = netlab.Open(name, netlab.Options{OwnNode: true, Gateway: true, Plan4: plans[i][0],
			Plan6: plans[i][1]})
		if err != nil {
			return err
		}
		g.Later(g.labs[i].Close)
	}
	if g.wire, err = netlab.Connect(g.labs[0], g.labs[1], g.underlay); err != nil {
		return err
	}
	for i, host := range []**netlab.Host{&g.client, &g.server} {
		if *host, err = g.labs[i].Host([]string{"client", "server"}[i], netlab.HostOptions{MTU: g.service}); err != nil {
			return err
		}
	}
	if err := c.setup(g); err != nil {
		return err
	}
	g.path = &path.Path{Client: g.client, Server: g.server, Address: g.addr(g.server), Group: g.group, Agents: g.agents}
	if g.virtual && c.name != "direct" {
		g.path.Address = g.virtualOf(1)
	}
	return nil
}

// addr returns a host's address in the family of the load.
func (g *topology) addr(h *netlab.Host) netip.Addr {
	if g.ip6 {
		return h.Addr6()
	}
	return h.Addr4()
}

// node returns a node's address on the underlay in the family of the load.
func (g *topology) node(i int) netip.Addr {
	if g.ip6 {
		return g.wire.Addr6(g.labs[i])
	}
	return g.wire.Addr4(g.labs[i])
}
