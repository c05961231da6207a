// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	kubenode "github.com/kerb-edge/kerb/integrations/kubernetes/node"
	"github.com/kerb-edge/kerb/internal/lab/kubefleet"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/sdk"
)

// Targets of a fleet of 1,000 nodes, and of kerb-kube-node with 5,000 pods.
const (
	targetChange   = 2                // s, p99
	targetRequests = 5                // 1/s
	targetMemory   = 20e6 / (1 << 20) // MiB
)

// Prefixes of labs. Each config has an API server of its own.
const (
	fleetPrefix = "kbkufleet"
	watchPrefix = "kbkuwatch"
)

// fleetNodes as the first argument makes this program run the nodes of a fleet: DIRECTORY NUMBER.
const fleetNodes = "kerb-bench-fleet-nodes"

func init() {
	if len(os.Args) != 4 || os.Args[1] != fleetNodes {
		return
	}
	fmt.Fprintln(os.Stderr, runNodes(os.Args[2], os.Args[3]))
	os.Exit(1)
}

func runNodes(dir, number string) error {
	n, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	kubenode.KeepMemory()
	return kubefleet.RunNodes(context.Background(), dir, n, func(ctx context.Context, n kubefleet.Node) error {
		return kubenode.Run(ctx, kubenode.Options{Node: n.Name, Agent: n.Agent, State: n.State, Kubeconfig: n.Kubeconfig},
			slog.New(slog.DiscardHandler))
	})
}

// contender is a config in which every change of a module is delivered to many nodes.
type contender interface {
	io.Closer
	server() *cluster
	// change changes the module, and returns the time until each node had the change.
	change(ctx context.Context, mark string) ([]time.Duration, error)
	// settle waits until work that follows from changes is done.
	settle(ctx context.Context) error
	// memory returns the memory of Kerb's programs other than the nodes.
	memory() ([]bench.Sample, error)
}

// fleet measures a number of nodes, compared with as many plain watches.
func fleet(ctx context.Context, r *bench.Run, load, of string) (err error) {
	n, err := strconv.Atoi(of)
	if err != nil {
		return err
	}
	var closers bench.Closers
	defer func() { err = errors.Join(err, closers.Close()) }()
	r.Progress("%s: starting the watches", load)
	watches, err := newWatches(ctx, n)
	if err != nil {
		return err
	}
	closers.Later(watches.Close)
	r.Progress("%s: starting the nodes", load)
	nodes, err := newNodes(ctx, n)
	if err != nil {
		return err
	}
	closers.Later(nodes.Close)
	if err := r.Interleave(ctx, load, changes(watch, watches), changes(withKerb, nodes)); err != nil {
		return err
	}
	if err := steady(ctx, r, load, map[string]contender{watch: watches, withKerb: nodes}); err != nil {
		return err
	}
	if err := refused(ctx, r, load, nodes); err != nil {
		return err
	}
	if n == 1000 {
		r.Record(target, load, bench.Sample{Metric: "change", Stat: "p99", Unit: "s", Value: targetChange},
			bench.P50("requests", "1/s", targetRequests), bench.P50("writes", "1/s", 0))
	}
	r.Record(target, load, bench.Count("switched", 0))
	r.Note("fleet: all nodes run the code of kerb-kube-node in one process; their agents are simulated in the process " +
		"of the benchmark, reply immediately, and have no pods. Each node has its own connections to an API server on this " +
		"machine")
	r.Note("fleet: watch is a plain GET of ClusterModules with watch=1 per node, including decoding of the event; a " +
		"node has five watches")
	r.Note("fleet: requests and writes are Kerb's without its Lease; api_cpu and api_memory are those of the API server " +
		"with etcd")
	r.Note("fleet: each watch is renewed after 40 to 60 minutes, which a run is too short to show: for 1,000 nodes, " +
		"that is 1.7 requests per second on average")
	r.Note("fleet: switched counts the nodes that had switched to a version before the rollout halted, because the " +
		"agent of one node rejected it; the rejection is simulated")
	return nil
}

// changes measures one change per round.
func changes(config string, c contender) bench.Trial {
	n := 0
	return bench.Trial{Config: config, Measure: func(ctx context.Context) ([]bench.Sample, error) {
		n++
		took, err := c.change(ctx, fmt.Sprint("change-", n))
		return bench.MedianAnd99("change", "s", seconds(took)), err
	}}
}

func seconds(all []time.Duration) (out []float64) {
	for _, d := range all {
		out = append(out, d.Seconds())
	}
	return out
}

// steady measures requests and resource use while nothing changes, for all configs at the same time: each has its own
// API server.
func steady(ctx context.Context, r *bench.Run, load string, configs map[string]contender) error {
	length := 12 * time.Second
	if r.Quick {
		length = time.Second
	}
	for _, c := range configs {
		if err := c.settle(ctx); err != nil {
			return err
		}
	}
	for round := range r.Rounds {
		r.Progress("%s idle %d/%d", load, round+1, r.Rounds)
		before := map[string]usage{}
		for config, c := range configs {
			var err error
			if before[config], err = c.server().usage(); err != nil {
				return err
			}
		}
		began := time.Now()
		sdk.Pause(ctx, length)
		if err := ctx.Err(); err != nil {
			return err
		}
		for config, c := range configs {
			now, err := c.server().usage()
			if err != nil {
				return err
			}
			memory, err := c.memory()
			if err != nil {
				return err
			}
			r.Record(config, load, append(now.since(before[config], time.Since(began)), memory...)...)
		}
	}
	return nil
}

// usage has the counters of an API server.
type usage struct {
	requests kubefleet.Requests
	cpu      time.Duration
	memory   float64 // MiB
}

func (c *cluster) usage() (u usage, err error) {
	if u.requests, err = kubefleet.CountRequests(c.api); err != nil {
		return u, err
	}
	if u.cpu, err = node.CPUOf(c.api.PID()); err != nil {
		return u, err
	}
	u.memory, err = resident(c.api.PID())
	return u, err
}

func (u usage) since(before usage, d time.Duration) []bench.Sample {
	rate := func(n int) float64 { return float64(n) / d.Seconds() }
	return []bench.Sample{bench.P50("requests", "1/s", rate(u.requests.All-before.requests.All)),
		bench.P50("writes", "1/s", rate(u.requests.Writes-before.requests.Writes)),
		bench.P50("api_cpu", "cores", (u.cpu-before.cpu).Seconds()/d.Seconds()),
		{Metric: "api_memory", Stat: "max", Unit: "MiB", Value: u.memory}}
}

// resident returns the resident memory of a process in MiB.
func resident(pid int) (float64, error) {
	sizes, err := node.Kibibytes(fmt.Sprintf("/proc/%d/status", pid))
	return float64(sizes["VmRSS"]) / 1024, err
}

// nodes is a fleet with kerb-kube-controller.
type nodes struct {
	*cluster
	kubefleet.Fleet
	controller *program
}

func newNodes(ctx context.Context, n int) (*nodes, error) {
	c, err := open(fleetPrefix)
	if err != nil {
		return nil, err
	}
	f := &nodes{cluster: c, Fleet: kubefleet.Fleet{Server: c.api, Size: n}}
	return f, c.CloseOn(f.start(ctx))
}

func (f *nodes) start(ctx context.Context) (err error) {
	owners := kubefleet.Owners{Modules: names.Owner, Pods: names.OwnerPods}
	if f.Agents, err = kubefleet.NewAgents(f.dir, f.Size, owners, nil); err != nil {
		return err
	}
	f.Later(f.Agents.Close)
	if f.controller, err = f.run("kerb-kube-controller", "--kubeconfig", f.kubeconfig); err != nil {
		return err
	}
	if err := os.Link(f.kubeconfig, kubefleet.Kubeconfig(f.dir)); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if _, err := f.runAs("nodes", []string{self, fleetNodes, f.dir, strconv.Itoa(f.Size)}); err != nil {
		return err
	}
	return kubefleet.Await(ctx, "all nodes report", func() (bool, error) {
		n, err := f.Reported()
		return n == f.Size, err
	})
}

func (f *nodes) server() *cluster { return f.cluster }

func (f *nodes) change(ctx context.Context, mark string) ([]time.Duration, error) {
	took, _, err := f.Change(ctx, mark)
	return took, err
}

func (f *nodes) settle(ctx context.Context) error {
	if err := f.Counted(ctx); err != nil {
		return err
	}
	sdk.Pause(ctx, 3*time.Second) // the controller reconciles every 2 s
	return nil
}

func (f *nodes) memory() ([]bench.Sample, error) {
	memory, err := resident(f.controller.pid())
	return []bench.Sample{{Metric: "controller_memory", Stat: "max", Unit: "MiB", Value: memory}}, err
}

// refused rolls out a version that the agent of the last node rejects, and counts the nodes that switch.
func refused(ctx context.Context, r *bench.Run, load string, f *nodes) error {
	r.Progress("%s: a version that one node rejects", load)
	const mark = "refused"
	f.Agents.Refuse(f.Size-1, mark, "the kernel's verifier refuses it (simulated)")
	m, _, err := f.Rollout(ctx, mark, "change-1")
	if err != nil {
		return err
	}
	if _, reason, message := m.RolledOut(); !m.Halted() || reason != "CheckFailed" {
		r.Invalidate("%s: a rollout that one node rejects ended with %s: %s", load, reason, message)
	}
	r.Record(withKerb, load, bench.Count("switched", uint64(len(f.Agents.Arrived(mark)))))
	return nil
}
