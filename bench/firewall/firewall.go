// SPDX-License-Identifier: Apache-2.0

// Package firewall implements `kerb bench firewall`. It measures the cost of 1, 100 and 10,000 rules (exact, with
// prefixes, with prefixes and port ranges, and overlapping ordered rules as in ClassBench) between two services on a
// bridge, with Kerb, with nftables, and without a firewall. Each config has a separate lab for the whole load, so that
// rounds alternate without reloading rules. In addition to TCP throughput and round trips, it sends frames through the
// bridge with XDP test runs in live-frames mode (Linux 5.18): `forward` is the whole path of a packet to the service,
// on which firewalls differ by tens of nanoseconds, too little to measure with TCP.
package firewall

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// Firewall is a firewall with rules for packets to a service.
type Firewall interface {
	// Replace replaces the rules, and returns when the new ones are in effect.
	Replace(rules []Rule) error
	Close() error
}

// Runnable is a Firewall that consists of one program of type SchedCLS or XDP on the service's outer interface, which
// PROG_TEST_RUN can measure.
type Runnable interface {
	Firewall
	Program() (*ebpf.Program, error)
}

type opener func(lab *netlab.Lab, service *netlab.Host, rules []Rule) (Firewall, error)

type config struct {
	name string
	open opener
}

func init() {
	bench.Register(bench.Experiment{
		Name:       "firewall",
		Short:      "cost of 1 to 10,000 rules, compared with nftables",
		Baseline:   "nftables",
		Loads:      loads(),
		QuickLoads: []string{"exact/100", "range/10000"},
		Run:        run,
	})
}

func loads() []string {
	var all []string
	for _, kind := range []string{"exact", "prefix", "range"} {
		for _, n := range []int{1, 100, 10_000} {
			all = append(all, fmt.Sprintf("%s/%d", kind, n))
		}
	}
	for _, kind := range []string{"acl", "ipc", "fw"} {
		all = append(all, "classbench-"+kind+"/1000", "classbench-"+kind+"/10000")
	}
	return append(all, "miss/10000", "uniform/10000", "set/100000")
}

// loadOf returns kind and number of rules, and the packets for forward. hot is one flow to Port, which TCP uses, too.
func loadOf(name string) (rules string, n int, packets string, err error) {
	kind, number, _ := strings.Cut(name, "/")
	n, err = strconv.Atoi(number)
	switch {
	case kind == "miss" || kind == "uniform":
		return "mixed", n, kind, err
	case kind == "set":
		return kind, n, "uniform", err
	case strings.HasPrefix(kind, "classbench-"):
		return kind, n, "uniform", err
	}
	return kind, n, "hot", err
}

func run(ctx context.Context, r *bench.Run) error {
	for _, load := range r.Loads() {
		if err := runLoad(ctx, r, load); err != nil {
			return err
		}
	}
	return nil
}

type none struct{}

func (none) Replace([]Rule) error { return nil }
func (none) Close() error         { return nil }

func openNone(*netlab.Lab, *netlab.Host, []Rule) (Firewall, error) { return none{}, nil }

func runLoad(ctx context.Context, r *bench.Run, load string) error {
	var trials []bench.Trial
	open := openKerb
	if strings.HasPrefix(load, "set/") {
		open = openKerbSet
	}
	for _, c := range []config{{"none", openNone}, {"nftables", openNFTables}, {"kerb", open}} {
		var g *topology
		trials = append(trials, bench.Trial{Config: c.name,
			Open: func() (_ io.Closer, err error) {
				if g, err = prepare(c, load); err == nil && g.filters() {
					r.Record(c.name, load, bench.P50("attach_time", "ms", milliseconds(g.opening)))
				}
				return g, err
			},
			Measure: func(context.Context) ([]bench.Sample, error) { return measure(r, g) }})
	}
	return r.Interleave(ctx, load, trials...)
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

// prepare builds the lab of a config and checks that the rules are in effect.
func prepare(c config, load string) (*topology, error) {
	kind, n, packets, err := loadOf(load)
	if err != nil {
		return nil, err
	}
	g, err := openTopology("kbfw" + c.name[:2])
	if err != nil {
		return nil, err
	}
	g.rules, err = Rules(kind, n, g.client.Addr4())
	if err == nil {
		g.packets, err = packetsOf(packets, g.rules)
	}
	if err == nil {
		err = g.setup(c.open)
	}
	if err == nil && g.filters() {
		err = g.verify()
	}
	return g, g.CloseOn(err)
}

// times are the durations of one round.
type times struct {
	throughput, rr time.Duration
	forwardRuns    int
}

func timesOf(quick bool) times {
	if quick {
		return times{400 * time.Millisecond, 200 * time.Millisecond, 7}
	}
	return times{time.Second, 500 * time.Millisecond, 15}
}

// measure measures one round of a config. TCP itself costs a hundred times as much as a rule, so that the cost of rules
// is measured with frames and test runs. TCP is skipped for loads with other packets.
func measure(r *bench.Run, g *topology) (samples []bench.Sample, err error) {
	t := timesOf(r.Quick)
	if g.filters() {
		took, err := g.replace()
		if err != nil {
			return nil, err
		}
		samples = append(samples, bench.P50("load_time", "ms", milliseconds(took)))
		elements, err := measureElements(g)
		if err != nil {
			return nil, err
		}
		samples = append(samples, elements...)
	}
	if g.packets == nil {
		tcp, err := measureTCP(g, t)
		if err != nil {
			return nil, err
		}
		samples = append(samples, tcp...)
	}
	if g.noLive != nil {
		r.Note("forward is left out, as it needs live test runs: %v", g.noLive)
	} else {
		forward, err := g.forward(t.forwardRuns)
		if err != nil {
			return nil, err
		}
		samples = append(samples, bench.P50("forward", "ns", forward))
	}
	if firewall, ok := g.firewall.(Runnable); ok && g.packets == nil {
		packet, err := g.testRun(firewall)
		if err != nil {
			return nil, err
		}
		samples = append(samples, bench.P50("packet", "ns", packet))
	}
	return samples, nil
}

// measureTCP measures the effect of a firewall on throughput and on round trips.
func measureTCP(g *topology, t times) ([]bench.Sample, error) {
	gigabits, err := g.throughput(t.throughput)
	if err != nil {
		return nil, err
	}
	trips, err := g.pingPong(t.rr)
	if err != nil {
		return nil, err
	}
	throughput := bench.P50("throughput", "Gbit/s", gigabits)
	return append([]bench.Sample{throughput}, bench.MedianAnd99("rr", "us", trips)...), nil
}
