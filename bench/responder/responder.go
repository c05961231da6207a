// SPDX-License-Identifier: Apache-2.0

// Package responder implements `kerb bench responder`. It measures the response time of a UDP service, the loss-free
// request rate and the CPU time per request, with Kerb's responder in the kernel, compared with a plain server, the
// fastest servers in user space, AF_XDP, and a program that only reflects packets. Client and servers are C programs,
// compiled at the start; hosts are network namespaces, with a router between them in the routed loads.
package responder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/bench"
)

func init() {
	bench.Register(bench.Experiment{
		Name:       "responder",
		Short:      "requests answered in the kernel, compared with servers in user space, AF_XDP and a bare reflector",
		Baseline:   "user",
		Loads:      loads(),
		QuickLoads: []string{"direct/16", "routed/16"},
		Flags: func(cmd *cobra.Command) {
			cmd.Flags().IntVar(&flags.serverCPUs, "server-cpus", 0, "CPUs of the servers; the client has all others "+
				"(default half, with --peer all)")
			cmd.Flags().StringVar(&flags.peer, "peer", "", "address and port of `kerb bench peer` on the client's machine; "+
				"the servers run on this one")
			cmd.Flags().StringVar(&flags.tokenFile, "token-file", "", "file with the token of --peer")
		},
		Run: run,
	})
}

// flags are the values of the flags.
var flags struct {
	serverCPUs      int
	peer, tokenFile string
}

// The loads: a family and a number, of client threads or requests per second.
func loads() []string {
	var all []string
	for _, f := range []struct {
		family  string
		numbers []int
	}{
		{"direct", []int{1, 16, 64, 120}},
		{"routed", []int{1, 16, 64, 120}},
		{"coap", []int{1, 16, 64, 120}},
		{"curve", []int{16}},
		{"published", []int{120}},
		{"until-loss", []int{maxThreads}},
		{"threads", []int{1, 50, 100, 150, 200, 250, maxThreads}},
		{"offered", []int{50_000, 100_000, 200_000, 400_000, 800_000}},
		{"tcp", []int{1, 16, 64}},
		{"work", []int{0, 100, 1000, 10_000, 100_000}},
		{"precision", []int{10, 100, 1000}},
		{"setpoint", []int{1, 16, 120}},
		{"priority", []int{1000, 100_000, 300_000}},
		{"direct6", []int{1, 16, 64, 120}},
		{"routed6", []int{1, 16, 64, 120}},
		{"energy", []int{40_000}},
	} {
		for _, n := range f.numbers {
			all = append(all, fmt.Sprintf("%s/%d", f.family, n))
		}
	}
	return all
}

// maxThreads is the maximum number of threads of the published experiments.
const maxThreads = 300

// family has the common properties of loads with one prefix: place, configs and measurement.
type family struct {
	place    string
	protocol string
	configs  []string
	measure  func(c *contender, n int) ([]bench.Sample, error)
	// alone is set if the cost of dropped requests is measured, too, with the returned flows and rate.
	alone func(n int) (flows int, rate float64)
}

var udpConfigs = []string{"user", "user-best", "afxdp", "mixed", "kernel", "reflector"}

// ipv6Configs are the configs with IPv6.
var ipv6Configs = []string{"user", "user-best", "mixed", "kernel", "reflector"}

// publishedConfigs are the configs of the published experiments, with the published program.
var publishedConfigs = append(slices.Clone(udpConfigs), publishedPrefix+"mixed", publishedPrefix+"kernel")

func (e *experiment) family(name string) family {
	f := family{place: "direct", protocol: "speed", configs: udpConfigs}
	switch name {
	case "direct", "routed":
		f.place, f.measure, f.alone = name, e.measureAll, flowsAtCostRate
	case "direct6", "routed6":
		f.place, f.configs, f.measure, f.alone = name, ipv6Configs, e.measureAll, flowsAtCostRate
	case "coap":
		f.protocol, f.configs = "coap", []string{"user", "user-best", "afxdp", "mixed"}
		f.measure, f.alone = e.measureAll, flowsAtCostRate
	case "curve":
		f.protocol, f.configs, f.measure = "curve", []string{"user", "mixed", "kernel"}, e.measureCurve
	case "published":
		f.configs, f.measure = publishedConfigs, e.measurePublished
	case "until-loss":
		f.configs, f.measure = publishedConfigs, e.measureUntilLoss
	case "threads":
		f.configs, f.measure = publishedConfigs, e.measureThreads
	case "offered":
		f.measure = e.measureOffered
	case "tcp":
		f.protocol, f.configs, f.measure = "tcp", []string{"user", "user-best", "sockmap"}, e.measureTCP
	case "work":
		f.place, f.protocol, f.configs = "routed", "work", []string{"user", "user-best", "afxdp", "kernel"}
		f.measure, f.alone = e.measureWork, func(steps int) (int, float64) { return workFlows, workRate(steps) }
	case "precision":
		f.protocol, f.configs, f.measure = "cars", precisionConfigs, e.measurePrecision
	case "setpoint":
		f.protocol, f.configs, f.measure = "coap", setPointConfigs, e.measureSetPoints
	case "priority":
		f.place, f.configs, f.measure = "routed", priorityConfigs, e.measurePriority
	case "energy":
		f.configs, f.measure = []string{"user", "mixed", "kernel", "reflector"}, e.measureEnergy
	}
	if e.remote != nil {
		f.place, f.configs = "peer", remoteConfigs
	}
	return f
}

// prepare sets up c for a load, and returns the number of threads for the selection of its variant.
func (f family) prepare(c *contender, n int) (threads int) {
	if f.protocol == "work" {
		c.steps = n
		return workThreads
	}
	return n
}

// experiment is one run: the compiled programs and the running contenders.
type experiment struct {
	run     *bench.Run
	tools   *tools
	remote  *remote // nil if the client is on this machine
	lengths lengths
	up      map[string]*contender // by place, protocol and config
	alone   float64               // cost in us of a request that is dropped at the server's interface, in this round
}

func run(ctx context.Context, r *bench.Run) (err error) {
	remote, done, err := openRemote(r, cmp.Or(r.Peer, flags.peer), cmp.Or(r.TokenFile, flags.tokenFile))
	if err != nil {
		return err
	}
	defer done()
	tools, err := compile(ctx, cmp.Or(r.ServerCPUs, flags.serverCPUs), remote != nil)
	if err != nil {
		return err
	}
	e := &experiment{run: r, tools: tools, lengths: lengthsOf(r.Quick), up: map[string]*contender{}, remote: remote}
	defer func() { err = errors.Join(err, e.close()) }()
	for _, load := range r.Loads() {
		if err := e.runLoad(ctx, load); err != nil {
			return err
		}
	}
	e.notes()
	return nil
}

func (e *experiment) close() error {
	errs := []error{e.tools.Close()}
	for _, c := range e.up {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

func (e *experiment) runLoad(ctx context.Context, load string) error {
	name, number, _ := strings.Cut(load, "/")
	n, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	if e.remote != nil && !slices.Contains(remoteLoads, name) {
		e.run.Note("%s is left out: --peer supports %s", load, strings.Join(remoteLoads, ", "))
		return nil
	}
	if _, ok := bench.ReadEnergy(os.DirFS("/")); name == "energy" && !ok {
		e.run.Note("%s is left out: this machine has no energy counter (/sys/class/powercap)", load)
		return nil
	}
	f := e.family(name)
	var trials []bench.Trial
	if f.alone != nil {
		trials = append(trials, e.aloneTrial(f, n))
	}
	for _, config := range f.configs {
		if e.remote != nil {
			trials = append(trials, e.remoteTrial(f, config, load, n))
			continue
		}
		var c *contender
		trials = append(trials, bench.Trial{Config: config,
			Open: func() (_ io.Closer, err error) { // e closes it after all loads
				if c, err = e.contender(f, config); err == nil {
					err = e.chooseVariant(c, load, f.prepare(c, n))
				}
				return nil, err
			},
			Measure: func(context.Context) ([]bench.Sample, error) { return f.measure(c, n) }})
	}
	return e.run.Interleave(ctx, load, trials...)
}

// aloneTrial returns no samples; its cost is subtracted from that of others.
func (e *experiment) aloneTrial(f family, n int) bench.Trial {
	return bench.Trial{Config: "dropped", Measure: func(context.Context) ([]bench.Sample, error) {
		c, err := e.contender(f, "dropped")
		if err != nil {
			return nil, err
		}
		c.steps = 0 // its requests are dropped without being read
		flows, rate := f.alone(n)
		e.alone, err = e.cost(c, flows, rate)
		return nil, err
	}}
}

// contender opens a config's hosts once per place and protocol.
func (e *experiment) contender(f family, config string) (*contender, error) {
	key := strings.Join([]string{f.place, f.protocol, config}, "/")
	if c := e.up[key]; c != nil {
		return c, nil
	}
	c, err := e.open(f, config)
	if err == nil {
		e.up[key] = c
	}
	return c, err
}

// chooseVariant selects, for a config with several ways of waiting, the one with the best median for this load.
func (e *experiment) chooseVariant(c *contender, load string, n int) error {
	if len(c.variants) < 2 {
		return nil
	}
	best := 0.0
	chosen := c.variants[0]
	for _, v := range c.variants {
		c.variant = v
		samples, err := e.measureTimes(c, min(n, maxThreads))
		if err != nil {
			return err
		}
		if p50 := samples[0].Value; best == 0 || p50 < best {
			best, chosen = p50, v
		}
	}
	c.variant = chosen
	e.run.Note("%s, %s: the server waits with %q, the variant with the best median of %s", load, c.config, chosen,
		strings.Join(c.variants, ", "))
	return nil
}

func (e *experiment) notes() {
	clients, servers := e.tools.cpus()
	if e.remote != nil {
		e.run.Note("servers are pinned to CPUs %s of this machine; the kernel processes packets on the CPU that handles the "+
			"NIC's interrupt", servers)
		return
	}
	e.run.Note("the client is pinned to CPU %s, servers to CPU %s; the kernel processes a packet on the CPU of its "+
		"sender, but in the routed loads on the server's (RPS), which router and server share", clients, servers)
	e.run.Note("threads share the client's CPUs; each yields its CPU after a reply, so that threads alternate between " +
		"requests")
	if len(e.tools.clients) <= len(e.tools.others) {
		e.run.Note("the client has no more CPUs than the servers: with many threads, times are mostly the client's own " +
			"work; use --server-cpus 1 on a machine with three or more CPUs to avoid that")
	}
	e.run.Note("memory is that of the server under load, and of the agent with the maps of its modules; it does not " +
		"include the client and the maps of the published programs")
	if e.run.Scale > 0 {
		return // not in the tables of the published experiments
	}
	e.run.Note("cpu is the CPU time of client, server and kernel, including softirqs on idle CPUs, at %d requests/s in "+
		"batches of %d, less the CPU time of the same requests when they are dropped at the server's interface: it includes "+
		"the delivery of the reply to the client; servers that can spin are measured in the variant that sleeps; over TCP "+
		"it is all CPU time used",
		int(costRate), costBatch)
}
