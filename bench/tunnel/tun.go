// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"embed"
	"errors"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/bench"
)

//go:embed tun/tun.c
var tunFiles embed.FS

const (
	tunDevice = "tun0"
	tunPort   = 50104
	// The maximum size of a packet in a UDP datagram.
	tunLargest = 60000
)

// setupTUN compiles a user-space tunnel and starts it on both nodes.
func setupTUN(g *topology) error {
	made, err := bench.Compile(context.Background(), nil, tunFiles, "tun/tun.c")
	if err != nil {
		return err
	}
	g.Later(made.Close)
	return g.startTUN(func(i int) []string {
		return []string{bench.Program(made.Dir, "tun/tun.c"), tunDevice, g.node(i).String(), g.node(1 - i).String(),
			strconv.Itoa(tunPort), strconv.Itoa(g.service)}
	})
}

// startTUN starts a command on each node, and adds routes to their devices, which are removed when they exit.
func (g *topology) startTUN(command func(node int) []string) error {
	for i, lab := range g.labs {
		line := command(i)
		p, err := bench.StartProcess(g.group.Adopt(lab.Node().Command(context.Background(), line[0], line[1:]...)))
		if err != nil {
			return err
		}
		g.Later(p.Stop)
	}
	return g.each(func(i int) error {
		device, err := netlink.LinkByName(tunDevice)
		if err != nil {
			return err
		}
		err = errors.Join(netlink.LinkSetMTU(device, g.service), netlink.LinkSetGSOMaxSize(device, tunLargest),
			netlink.LinkSetGSOIPv4MaxSize(device, tunLargest), netlink.LinkSetUp(device))
		if err != nil {
			return err
		}
		return g.routeTo(i, tunDevice, netip.Addr{})
	})
}
