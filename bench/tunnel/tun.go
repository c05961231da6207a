// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"embed"
	"errors"
	"io"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/tempdir"
)

//go:embed tun/tun.c
var tunFiles embed.FS

const (
	tunDevice = "tun0"
	tunPort   = 50104
	// What is left of a UDP datagram for a large packet.
	tunLargest = 60000
)

// tun is a user-space tunnel on both nodes.
type tun struct {
	processes []*bench.Process
	dir       string
}

// program is the command line of a user-space tunnel on a node; dir is for what it has to compile.
type program func(g *ground, dir string, node int) ([]string, error)

func compiled(g *ground, dir string, i int) ([]string, error) {
	var err error
	if i == 0 { // once for both
		err = bench.CompileC(context.Background(), dir, tunFiles, "tun/tun.c")
	}
	return []string{bench.Program(dir, "tun/tun.c"), tunDevice, g.node(i).String(), g.node(1 - i).String(),
		strconv.Itoa(tunPort), strconv.Itoa(g.service)}, err
}

func raiseTUN(g *ground, of program) (io.Closer, error) {
	dir, err := tempdir.New()
	if err != nil {
		return nil, err
	}
	t := &tun{dir: dir}
	if err := t.start(g, of); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *tun) start(g *ground, of program) error {
	for i, lab := range g.labs {
		line, err := of(g, t.dir, i)
		if err != nil {
			return err
		}
		p, err := bench.StartProcess(g.group.Adopt(lab.Node().Command(context.Background(), line[0], line[1:]...)))
		if err != nil {
			return err
		}
		t.processes = append(t.processes, p)
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

// Close ends the tunnel, and with it the devices.
func (t *tun) Close() error {
	errs := []error{tempdir.Remove(t.dir)}
	for _, p := range t.processes {
		errs = append(errs, p.Stop())
	}
	return errors.Join(errs...)
}
