// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// each calls do in the namespaces of both nodes.
func (g *topology) each(do func(node int) error) error {
	for i, lab := range g.labs {
		if err := lab.Node().Do(func() error { return do(i) }); err != nil {
			return err
		}
	}
	return nil
}

// routeTo adds routes to the services of the other node, via an interface and an optional gateway.
func (g *topology) routeTo(node int, device string, gateway netip.Addr) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	for _, plan := range g.routedNetworks(node) {
		if gateway.IsValid() && gateway.Is4() != plan.Addr().Is4() {
			continue
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: netlab.IPNet(plan)}
		if gateway.IsValid() {
			route.Gw = gateway.AsSlice()
		}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("route to %s: %w", plan, err)
		}
	}
	return nil
}

// routedNetworks returns the networks that a node routes to the other one. With a user-space proxy, these include the
// virtual addresses.
func (g *topology) routedNetworks(node int) []netip.Prefix {
	if !g.proxied {
		return plans[1-node][:]
	}
	var all []netip.Prefix
	for _, addrs := range virtual {
		for _, a := range addrs {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return all
}

// setupRoutes routes the services' packets over the underlay without encapsulation.
func setupRoutes(g *topology) error {
	return g.each(func(i int) error {
		return g.routeTo(i, g.wire.Interface(g.labs[i]), g.node(1-i))
	})
}

const (
	vxlanDevice  = "vxlan0"
	vxlanPort    = 4789
	vxlanNetwork = 7
)

// setupVXLAN connects the nodes by the kernel's VXLAN with one static peer, its fastest form.
func setupVXLAN(g *topology) error {
	err := g.each(func(i int) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = vxlanDevice, g.service
		device := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: vxlanNetwork, Port: vxlanPort, Group: g.node(1 - i).AsSlice(),
			SrcAddr:      g.node(i).AsSlice(),
			VtepDevIndex: g.wire.Index(g.labs[i]), UDP6ZeroCSumTx: true, UDP6ZeroCSumRx: true}
		if err := netlink.LinkAdd(device); err != nil {
			return fmt.Errorf("add %s: %w", vxlanDevice, err)
		}
		link, err := netlink.LinkByName(vxlanDevice)
		if err != nil {
			return err
		}
		for _, addr := range overlay[i] {
			if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: netlab.IPNet(addr)}); err != nil {
				return fmt.Errorf("address %s: %w", addr, err)
			}
		}
		return netlink.LinkSetUp(link)
	})
	if err != nil {
		return err
	}
	return g.each(func(i int) error {
		peer := overlay[1-i][0]
		if g.ip6 {
			peer = overlay[1-i][1]
		}
		return g.routeTo(i, vxlanDevice, peer.Addr())
	})
}

// overlay has the nodes' addresses inside the VXLAN.
var overlay = [2][2]netip.Prefix{
	{netip.MustParsePrefix("10.80.0.1/24"), netip.MustParsePrefix("fd80::1/64")},
	{netip.MustParsePrefix("10.80.0.2/24"), netip.MustParsePrefix("fd80::2/64")},
}
