// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

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
	cmd *exec.Cmd
	dir string
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
	t.cmd = g.group.Adopt(g.lab.Node().Command(context.Background(), program[0], args...))
	t.cmd.Stderr = os.Stderr
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := t.cmd.Start(); err != nil {
		return err
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return fmt.Errorf("the proxy does not start: %w", err)
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
	if t.cmd != nil && t.cmd.Process != nil {
		_ = t.cmd.Process.Kill()
		_ = t.cmd.Wait() // killed
	}
	return tempdir.Remove(t.dir)
}
