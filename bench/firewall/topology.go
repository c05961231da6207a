// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/inject"
	"github.com/kerb-edge/kerb/internal/lab/classbench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
)

// topology is a lab with client and service on a bridge, and a generator on a third port, whose frames have the
// client's address.
type topology struct {
	bench.Closers
	lab                        *netlab.Lab
	client, service, generator *netlab.Host

	inject   *inject.Injector // at the generator's outer interface
	noLive   error            // set if live test runs cannot send frames
	firewall Firewall
	opening  time.Duration // how long the wall took, with all rules

	rules   []Rule
	packets *packets // nil: one flow from the client
}

func openTopology(prefix string) (*topology, error) {
	g := &topology{}
	return g, g.CloseOn(g.build(prefix))
}

func (g *topology) build(prefix string) (err error) {
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

// setup opens the firewall with all rules on an interface without one.
func (g *topology) setup(open opener) (err error) {
	start := time.Now()
	if g.firewall, err = open(g.lab, g.service, g.rules); err != nil {
		return err
	}
	g.Later(g.firewall.Close)
	g.opening = time.Since(start)
	return nil
}

// replace returns the time to change from one rule to all rules.
func (g *topology) replace() (time.Duration, error) {
	if err := g.firewall.Replace(g.rules[:1]); err != nil {
		return 0, err
	}
	start := time.Now()
	err := g.firewall.Replace(g.rules)
	return time.Since(start), err
}

func (g *topology) filters() bool {
	_, none := g.firewall.(none)
	return g.firewall != nil && !none
}

func (g *topology) connect() (*traffic.Pair, error) {
	return traffic.Connect(g.client, g.service, netip.AddrPortFrom(g.service.Addr4(), Port))
}

func (g *topology) throughput(duration time.Duration) (gigabits float64, err error) {
	pair, err := g.connect()
	if err != nil {
		return 0, err
	}
	defer pair.Close()
	rate, err := pair.Throughput(duration)
	return rate / 1e9, err
}

func (g *topology) pingPong(duration time.Duration) ([]float64, error) {
	pair, err := g.connect()
	if err != nil {
		return nil, err
	}
	defer pair.Close()
	return pair.PingPong(duration)
}

const forwardFrames = 50_000

// forward measures a packet's path from the generator's port over the bridge to the service's interface, in ns: the
// median of several runs.
func (g *topology) forward(runs int) (ns float64, err error) {
	return g.sendPackets(g.packets, runs, forwardFrames)
}

// verify sends packets that the rules deny.
func (g *topology) verify() error {
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
func (g *topology) sendPackets(p *packets, runs int, count uint32) (ns float64, err error) {
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
				return fmt.Errorf("%d of %d forbidden packets arrived: %w", got, count, errNotInEffect)
			}
			if !denied && got < uint64(count)*999/1000 {
				return fmt.Errorf("only %d of %d allowed packets arrived: %w", got, count, errNotInEffect)
			}
			times = append(times, t)
		}
		return nil
	})
	return bench.Median(times), err
}

// errNotInEffect is wrapped if a firewall does not enforce its rules.
var errNotInEffect = errors.New("the firewall is not in effect")

// frame returns a TCP segment from the client to Port, 64 bytes with FCS.
func (g *topology) frame() []byte {
	p := packet{g.client.Addr4(), g.service.Addr4(), classbench.TCP, 40000, Port}
	headers := p.headers()
	return slices.Concat(g.service.MAC(), g.generator.MAC(), []byte{8, 0}, headers[:], make([]byte, 6))
}
