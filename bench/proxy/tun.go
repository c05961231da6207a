// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"

	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/contender"
	"github.com/kerb-edge/kerb/internal/lab/tempdir"
)

//go:embed tun/tun.c
var tunFiles embed.FS

const (
	tunDevice = "tun0"
	tunMTU    = 1450 // Oakestra's
)

// tun is a user-space proxy in the lab's node.
type tun struct {
	process *bench.Process
	dir     string
}

func raiseTUN(g *ground, mode string) (io.Closer, error) {
	dir, err := tempdir.New()
	if err != nil {
		return nil, err
	}
	t := &tun{dir: dir}
	if err := t.start(g, mode); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *tun) start(g *ground, mode string) error {
	program, err := t.program(mode)
	if err != nil {
		return err
	}
	args := append(program[1:], g.addr(g.client).String(), g.virtual[0].String(), g.addr(g.server).String(),
		g.virtual[1].String())
	t.process, err = bench.StartProcess(g.group.Adopt(g.lab.Node().Command(context.Background(), program[0], args...)))
	if err != nil {
		return err
	}
	return g.lab.Node().Do(func() error { return lead(g, mode) })
}

// program is the command and its first arguments.
func (t *tun) program(mode string) ([]string, error) {
	if mode == "goroutines" {
		return contender.Goroutines(tunDevice)
	}
	err := bench.CompileC(context.Background(), t.dir, tunFiles, "tun/tun.c")
	return []string{bench.Program(t.dir, "tun/tun.c"), tunDevice, mode}, err
}

// lead routes both virtual addresses into the device.
func lead(g *ground, mode string) error {
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

// Close ends the proxy, and with it the device.
func (t *tun) Close() error {
	var err error
	if t.process != nil {
		err = t.process.Stop()
	}
	return errors.Join(err, tempdir.Remove(t.dir))
}
