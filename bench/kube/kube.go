// SPDX-License-Identifier: Apache-2.0

// Package kube implements `kerb bench kube`, which measures the costs of Kerb in a Kubernetes cluster:
//
//   - burst: how much kerb-cni, as the last plugin of the chain, delays the network setup of pods that start at the
//     same time on a node.
//   - fleet: many simulated nodes and a real API server. The time until a changed module reaches all nodes, requests
//     and writes while nothing changes, and how many nodes switch to a version that the kernel of one node rejects.
//   - pods, services: the memory of kerb-kube-node.
//   - rollout: the time until a node rolls back from a version that drops packets.
package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/internal/binpath"
	"github.com/kerb-edge/kerb/internal/lab/kubeapi"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

const labPrefix = "kbkube"

// Targets of what kerb-cni adds to an ADD of a burst of 100, in milliseconds.
const (
	targetP50 = 20
	targetP99 = 150
)

// Configs.
const (
	withKerb = "kerb"
	plain    = "plain"
	tuning   = "tuning" // the plugin of the CNI project without settings: the cost of executing one more program per pod
	watch    = "watch"  // one plain watch of ClusterModules per node
	target   = "target" // the goals
)

// kubeAPI is the path of the API server's program, which all loads except burst need.
var kubeAPI string

func init() {
	bench.Register(bench.Experiment{
		Name:     "kube",
		Short:    "pods starting at the same time, changes on 1,000 nodes, memory of kerb-kube-node, rollbacks",
		Baseline: plain,
		Loads: []string{"burst/1", "burst/10", "burst/100", "fleet/1000", "pods/5000",
			"rollout/drops", "rollout/refused"},
		QuickLoads: []string{"burst/10", "fleet/50"},
		LongLoads:  []string{"burst/200", "fleet/50", "fleet/200", "pods/500", "services/1000"},
		Flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&kubeAPI, "kube-api", os.Getenv(kubeapi.Program), "path of the `program` with etcd and the "+
				"API server, needed by all loads but burst: make kube-api in a checkout of Kerb builds out/kube-api; default is "+
				"$"+kubeapi.Program)
		},
		Run: run,
	})
}

// kinds of loads, by the part before the slash.
var kinds = map[string]func(ctx context.Context, r *bench.Run, load, of string) error{
	"burst": bursts, "fleet": fleet, "pods": pods, "services": services,
	"rollout": rollouts}

func run(ctx context.Context, r *bench.Run) error {
	for _, load := range r.Loads() {
		kind, of, _ := strings.Cut(load, "/")
		err := kinds[kind](ctx, r, load, of)
		if r.LeftOut(load, err) {
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bursts measures the start of a number of pods.
func bursts(ctx context.Context, r *bench.Run, load, of string) (err error) {
	pods, err := strconv.Atoi(of)
	if err != nil {
		return err
	}
	n, err := start()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	if err := r.Interleave(ctx, load, n.trials(pods)...); err != nil {
		return err
	}
	if load == "burst/100" {
		r.Record(target, load, bench.Sample{Metric: "added", Stat: "p50", Unit: "ms", Value: targetP50},
			bench.Sample{Metric: "added", Stat: "p99", Unit: "ms", Value: targetP99})
	}
	r.Note("burst: added is the difference between the quantiles of add with and without the last plugin, in the same " +
		"round")
	r.Note("burst: the plugin chain is bridge with host-local; with kerb-cni the pod denies all packets when ADD returns")
	r.Note("burst: left counts the services of pods, over all rounds, that DEL could not delete within 3 s; " +
		"kerb-kube-node deletes them")
	r.Note("burst does not include the time of the container runtime, the kubelet and the API server")
	return nil
}

// trials returns a trial per chain. The added time of a plugin is the difference to the plain chain of the same round.
func (n *place) trials(pods int) (trials []bench.Trial) {
	var reference []bench.Sample
	for _, config := range []string{plain, tuning, withKerb} {
		measure := func(ctx context.Context) ([]bench.Sample, error) {
			times, left, err := n.burst(ctx, pods, config)
			out := bench.MedianAnd99("add", "ms", times)
			if config == plain {
				reference = out
				return out, err
			}
			if config == withKerb {
				out = append(out, bench.Count("left", uint64(left)))
			}
			for i, s := range bench.MedianAnd99("added", "ms", times) {
				if len(reference) > 0 { // it was measured
					s.Value -= reference[i].Value
					out = append(out, s)
				}
			}
			return out, err
		}
		trials = append(trials, bench.Trial{Config: config, Measure: measure})
	}
	return trials
}

// place is a node with an agent, and the programs of the plugins.
type place struct {
	bench.Closers
	lab     *netlab.Lab
	agent   *node.Node
	plugins []string // directories
	number  int      // of pods so far
}

var _ io.Closer = (*place)(nil)

func start() (*place, error) {
	n := &place{}
	return n, n.CloseOn(n.build())
}

func (n *place) build() (err error) {
	if n.plugins, err = find(); err != nil {
		return err
	}
	if n.lab, err = netlab.NewIn(labPrefix); err != nil {
		return err
	}
	n.Later(n.lab.Close)
	if n.agent, err = node.Start(n.lab.Node()); err != nil {
		return err
	}
	n.Later(n.agent.Close)
	// Without it no pod starts. On real nodes, kerb-kube-node applies it at its first sync.
	return n.agent.Call("POST", "/v1/apply?owner="+names.Owner, []any{names.PendingModule()}, nil)
}

// find returns the directories of the plugins. The plugins of the CNI project are in CNI_PATH, or in the default
// directories of nodes.
func find() ([]string, error) {
	cni, err := binpath.Find("kerb-cni")
	if err != nil {
		return nil, err
	}
	places := append(filepath.SplitList(os.Getenv("CNI_PATH")), "/opt/cni/bin", "/usr/lib/cni")
	for _, dir := range places {
		if has(dir, "bridge") && has(dir, "host-local") && has(dir, tuning) {
			return []string{filepath.Dir(cni), dir}, nil
		}
	}
	return nil, fmt.Errorf("the plugins bridge, host-local and tuning are not in %s: install "+
		"containernetworking-plugins, or set CNI_PATH to their directory", strings.Join(places, ", "))
}

func has(dir, program string) bool {
	_, err := os.Stat(filepath.Join(dir, program))
	return err == nil
}
