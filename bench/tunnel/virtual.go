// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"io"
	"net/netip"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/contender"
	"github.com/kerb-edge/kerb/bench/internal/path"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// VirtualLoads are the loads in which the client reaches a server on another node by a virtual address.
var VirtualLoads = []string{"two-nodes-virtual/ipv4", "two-nodes-virtual/ipv6"}

// virtual has the virtual addresses of the services by node.
var virtual = [2][2]netip.Addr{
	{netip.MustParseAddr("10.30.0.1"), netip.MustParseAddr("fdff:2000::1")},
	{netip.MustParseAddr("10.30.0.2"), netip.MustParseAddr("fdff:2000::2")},
}

// virtualConfigs are paths to a virtual address on another node. direct is the limit: routes, and the server's own
// address.
var virtualConfigs = []config{
	{"direct", true, setupRoutes},
	{"kerb", true, setupVirtual},
	{"vxlan-nftables", true, setupNFTables},
	{"tun-go", true, setupGoroutines},
}

// RunVirtual runs loads of VirtualLoads, also for other experiments.
func RunVirtual(ctx context.Context, r *bench.Run, load string) error {
	return runConfigs(ctx, r, load, virtualConfigs)
}

// RunLong runs loads of path.LongLoads with the server on another node, by its virtual IPv4 address.
func RunLong(ctx context.Context, r *bench.Run, load string) error {
	var ways []path.Config
	for i, c := range virtualConfigs {
		ways = append(ways, path.Config{Name: c.name, Open: func() (*path.Path, io.Closer, error) {
			g, err := open(c, loads[VirtualLoads[0]], i)
			if err != nil {
				return nil, nil, err
			}
			return g.path, g, nil
		}})
	}
	return path.RunLong(ctx, r, load, ways)
}

// virtualOf returns a service's virtual address in the family of the load.
func (g *topology) virtualOf(node int) netip.Addr {
	if g.ip6 {
		return virtual[node][1]
	}
	return virtual[node][0]
}

// setupVirtual deploys the proxy on each node, before the tunnel.
func setupVirtual(g *topology) error {
	if err := setupKerb(g, false); err != nil {
		return err
	}
	for _, n := range g.agents {
		resources := append(virtualServices(g), node.Module("px", "proxy", "*", map[string]any{}))
		if err := n.Apply(resources...); err != nil {
			return err
		}
	}
	return nil
}

// virtualServices returns a virtual service for the service of each node.
func virtualServices(g *topology) (all []any) {
	for i, h := range []*netlab.Host{g.client, g.server} {
		var addresses []v1.VirtualAddress
		for _, a := range virtual[i] {
			addresses = append(addresses, v1.VirtualAddress{Address: a.String()})
		}
		all = append(all, v1.VirtualService{
			TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindVirtualService},
			Metadata: v1.ObjectMeta{Name: h.Name()},
			Spec: v1.VirtualServiceSpec{Addresses: addresses, Instances: []v1.VirtualInstance{{Name: h.Name(),
				Addresses: []string{h.Addr4().String(), h.Addr6().String()}, Node: g.node(i).String()}}},
		})
	}
	return all
}

// setupNFTables loads kube-proxy's rules on the client's node, before the kernel's VXLAN.
func setupNFTables(g *topology) error {
	if err := setupVXLAN(g); err != nil {
		return err
	}
	rules := contender.NFTables(g.virtualOf(1), g.addr(g.server), contender.Ports)
	return contender.Feed(g.labs[0].Node(), rules, "nft", "-f", "-")
}

// setupGoroutines starts the user-space proxy and tunnel in one program, with the structure of NetManager.
func setupGoroutines(g *topology) error {
	g.proxied = true
	program, err := contender.Goroutines(tunDevice)
	if err != nil {
		return err
	}
	end := func(i int) string { return netip.AddrPortFrom(g.node(i), tunPort).String() }
	return g.startTUN(func(i int) []string {
		return append(slices.Clip(program), g.addr(g.client).String(), g.virtualOf(0).String(), g.addr(g.server).String(),
			g.virtualOf(1).String(), end(i), end(1-i))
	})
}
