// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/contender"
)

//go:embed tun/tun.c
var tunFiles embed.FS

const (
	tunDevice = "tun0"
	tunMTU    = 1450 // Oakestra's
)

// setupTUN starts a user-space proxy in the lab's node. Its device is removed when it exits.
func setupTUN(g *topology, mode string) error {
	program, err := g.program(mode)
	if err != nil {
		return err
	}
	args := append(program[1:], g.addr(g.client).String(), g.virtual[0].String(), g.addr(g.server).String(),
		g.virtual[1].String())
	process, err := bench.StartProcess(g.group.Adopt(g.lab.Node().Command(context.Background(), program[0], args...)))
	if err != nil {
		return err
	}
	g.Later(process.Stop)
	return g.lab.Node().Do(func() error { return routeVirtual(g, mode) })
}

// program returns the command and its first arguments.
func (g *topology) program(mode string) ([]string, error) {
	if mode == "goroutines" {
		return contender.Goroutines(tunDevice)
	}
	made, err := bench.Compile(context.Background(), nil, tunFiles, "tun/tun.c")
	if err != nil {
		return nil, err
	}
	g.Later(made.Close)
	return []string{bench.Program(made.Dir, "tun/tun.c"), tunDevice, mode}, nil
}

// routeVirtual routes both virtual addresses to the device.
func routeVirtual(g *topology, mode string) error {
	device, err := netlink.LinkByName(tunDevice)
	if err != nil {
		return err
	}
	if mode != "multi" {
		err = netlink.LinkSetMTU(device, tunMTU)
	}
	if err := errors.Join(err, netlink.LinkSetUp(device)); err != nil {
		return err
	}
	for _, addr := range g.virtual {
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: device.Attrs().Index,
			Dst: netlink.NewIPNet(addr.AsSlice())}); err != nil {
			return fmt.Errorf("route to %s: %w", addr, err)
		}
	}
	return nil
}
