// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"os/exec"
	"path/filepath"
	"time"

	"github.com/kerb-edge/kerb/bench"
)

// `kerb bench mesh` measures the matrix of Simas 2025: two pods of a node that connect by a service's address, without
// a mesh, on a path like Cilium's, through ztunnel and through sidecars, each plain and with the accelerator. `kerb
// bench paper simas` compares the results with the published figures.

func init() {
	e := newVariant(mesh)
	bench.Register(bench.Experiment{
		Name: "mesh",
		Short: "connections to a service's address: without a mesh, around the node's stack, through ztunnel and through " +
			"sidecars, plain and accelerated",
		Baseline:   "plain",
		Loads:      meshLoads(),
		QuickLoads: []string{"none/echo", "cilium-like/mqtt-qos1", "sidecar/echo"},
		Configs:    meshConfigs,
		Flags:      e.cpusFlag,
		Run:        e.execute,
	})
}

// Plain is measured twice, too. With unix, the programs on a sidecar's path communicate over AF_UNIX, the upper limit.
// redirect-all shows the potential gain of ztunnel; it requires that no message uses TCP after redirected ones.
var meshConfigs = []string{"plain", "plain-again", "kerb", publishedKeys, "redirect-all", "unix"}

var mesh = variant{"kbm", meshConfigs, meshWorkloads, openMesh, meshAvailable, meshAllow, (*experiment).noteMesh,
	map[string]string{"redirect-all": "ambient"}}

// meshAllow returns the programs of these workloads that the module excludes by default, by file name: by allowing
// them, the operator states that they do not use the calls that redirected sockets lack. The module includes Envoy, but
// not in the directory of the PyPI package.
func meshAllow() []string {
	all := []string{"memtier_benchmark", "mosquitto", "envoy"}
	if python, err := pythonPath(); err == nil {
		all = append(all, filepath.Base(python))
	}
	return all
}

// meshLoads returns all workloads through all meshes.
func meshLoads() (all []string) {
	for _, mesh := range meshes {
		for _, w := range meshWorkloads {
			all = append(all, mesh+"/"+w.name)
		}
	}
	return all
}

// amounts are the sizes of one round of the workloads.
type amounts struct {
	trips      int // of ping-echo
	operations int // per connection of memtier
	messages   int // of MQTT
}

var (
	meshAmounts      = amounts{trips: 100_000, operations: 10_000, messages: 50_000} // the first two as published
	meshQuickAmounts = amounts{trips: 2000, operations: 100, messages: 1000}
	meshWarmAmounts  = amounts{trips: 200, operations: 20, messages: 100}
)

// share returns a fraction of the amounts, at least as many as percentiles need.
func (a amounts) share(scale float64) amounts {
	of := func(n, least int) int { return max(least, int(scale*float64(n))) }
	return amounts{of(a.trips, 100), of(a.operations, 20), of(a.messages, 100)}
}

// noteMesh adds notes about the setup.
func (e *experiment) noteMesh() {
	e.run.Note("not a cluster: two namespaces and a third that routes between them and translates the service's "+
		"address (with nftables rules as kube-proxy writes them; cilium-like: BPF; ambient: ztunnel itself); %s; "+
		"cilium-like is bpf_redirect_peer without Cilium's connection tracking and policy; ambient is ztunnel with one "+
		"thread and a file instead of Istio's control plane, and closes idle connections between pods after %v, so that "+
		"each round opens new ones; sidecars are Envoy with one thread, mutual TLS and REDIRECT", redisClient(), tunnelIdle)
	e.run.Note("kerb is configured to include %v, which the module excludes by default", e.allow())
	e.run.Note("cpu and memory (PSS, the maximum of samples taken every %v) are totals of all programs: client, server, "+
		"proxies, and with kerb the agent and its maps; the kernel's socket memory is not included", memoryPeriod)
}

// memoryPeriod is the interval of memory readings, each of which stops every program for some microseconds.
const memoryPeriod = 200 * time.Millisecond

func redisClient() string {
	if _, err := exec.LookPath(memtier); err != nil {
		return "the redis client is a substitute with memtier_benchmark's mix, as memtier_benchmark is not installed"
	}
	return "the redis client is memtier_benchmark"
}
