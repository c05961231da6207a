// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/inject"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
)

// ground is one lab with a client and a service on a bridge, and a generator
// on a third port whose frames carry the client's address.
type ground struct {
	bench.Closers
	lab                        *netlab.Lab
	client, service, generator *netlab.Host

	inject  *inject.Injector // into the generator's outer interface
	noLive  error            // why frames cannot be sent by live test runs
	wall    Firewall
	opening time.Duration // how long the wall took, with all rules

	rules   []Rule
	packets *packets // nil: one flow, from the client
}

func openGround(prefix string) (*ground, error) {
	g := &ground{}
	return g, g.CloseOn(g.build(prefix))
}

func (g *ground) build(prefix string) (err error) {
	if g.lab, err = netlab.NewIn(prefix); err != nil {
		return err
	}
	g.Later(g.lab.Close)
	for name, host := range map[string]**netlab.Host{"client": &g.client, "service": &g.service, "gen": &g.generator} {
		if *host, err = g.lab.Host(name, netlab.HostOptions{}); err != nil {
			return err
		}
	}
	if g.inject, err = inject.Open(g.lab.Node(), g.generator); err != nil {
		return err
	}
	g.Later(g.inject.Close)
	return g.inject.WithSink(g.service, func() error {
		_, _, g.noLive = g.inject.Send(g.generator, g.frame(), 1)
		return nil
	})
}

// raise puts the rules into effect on an interface without a firewall.
func (g *ground) raise(open opener) (err error) {
	start := time.Now()
	if g.wall, err = open(g.lab, g.service, g.rules); err != nil {
		return err
	}
	g.Later(g.wall.Close)
	g.opening = time.Since(start)
	return nil
}

// replace returns how long it takes until all rules are in effect again, after only one was.
func (g *ground) replace() (time.Duration, error) {
	if err := g.wall.Replace(g.rules[:1]); err != nil {
		return 0, err
	}
	start := time.Now()
	err := g.wall.Replace(g.rules)
	return time.Since(start), err
}

func (g *ground) filters() bool {
	_, none := g.wall.(none)
	return g.wall != nil && !none
}

func (g *ground) connect() (*traffic.Pair, error) {
	return traffic.Connect(g.client, g.service, netip.AddrPortFrom(g.service.Addr4(), Port))
}

func (g *ground) throughput(duration time.Duration) (gigabits float64, err error) {
	pair, err := g.connect()
	if err != nil {
		return 0, err
	}
	defer pair.Close()
	rate, err := pair.Throughput(duration)
	return rate / 1e9, err
}

func (g *ground) pingPong(duration time.Duration) ([]float64, error) {
	pair, err := g.connect()
	if err != nil {
		return nil, err
	}
	defer pair.Close()
	return pair.PingPong(duration)
}

const forwardFrames = 50_000

// forward measures one packet's way from the generator's port over the bridge
// into the service's interface, in ns: the median of several runs.
func (g *ground) forward(runs int) (ns float64, err error) {
	return g.sendPackets(g.packets, runs, forwardFrames)
}

// verify sends packets that the rules do not allow.
func (g *ground) verify() error {
	if g.noLive != nil {
		return nil
	}
	denied, err := packetsOf("denied", g.rules)
	if err == nil {
		_, err = g.sendPackets(denied, 1, 1000)
	}
	return err
}

// sendPackets sends frames with the headers of p, and checks how many arrive.
func (g *ground) sendPackets(p *packets, runs int, count uint32) (ns float64, err error) {
	if p != nil {
		if err := g.inject.SetPackets(g.frame(), p.headers); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, g.inject.SetPackets(nil, nil)) }()
	}
	var times []float64
	err = g.inject.WithSink(g.service, func() error {
		for range runs {
			t, got, err := g.inject.Send(g.generator, g.frame(), count)
			if err != nil {
				return err
			}
			denied := g.filters() && p != nil && p.denied
			if denied && got > 0 {
				return fmt.Errorf("%d of %d forbidden packets arrived: %w", got, count, errWall)
			}
			if !denied && got < uint64(count)*999/1000 {
				return fmt.Errorf("only %d of %d allowed packets arrived: %w", got, count, errWall)
			}
			times = append(times, t)
		}
		return nil
	})
	return bench.Median(times), err
}

// errWall is wrapped when a firewall does not do what its rules say.
var errWall = errors.New("the firewall is not in effect")

// frame is a TCP segment without data from the client to Port, 64 bytes with
// the frame's checksum.
func (g *ground) frame() []byte {
	f := make([]byte, 60)
	copy(f, g.service.MAC())
	copy(f[6:], g.generator.MAC())
	copy(f[12:], []byte{8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 6})
	copy(f[26:], g.client.Addr4().AsSlice())
	copy(f[30:], g.service.Addr4().AsSlice())
	binary.BigEndian.PutUint16(f[24:], inject.Checksum(f[14:34]))
	tcp := f[34:]
	binary.BigEndian.PutUint16(tcp, 40000)
	binary.BigEndian.PutUint16(tcp[2:], Port)
	tcp[12], tcp[13] = tcpHeaderLength, tcpACK
	return f
}

const (
	tcpHeaderLength = 5 << 4
	tcpACK          = 0x10
)
