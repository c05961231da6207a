// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"os/exec"
	"path/filepath"
	"time"

	"github.com/kerb-edge/kerb/bench"
)

// `kerb bench mesh` is the matrix of Simas 2025: two pods of a node that talk by a service's address, without a
// mesh, on a path like Cilium's and through sidecars, plain and with the accelerator.

func init() {
	e := newVariant(mesh)
	bench.Register(bench.Experiment{
		Name: "mesh",
		Short: "connections by a service's address, without a mesh, past the node's stack and through sidecars, plain and " +
			"accelerated",
		Baseline:   "plain",
		Loads:      meshLoads(),
		QuickLoads: []string{"none/echo", "cilium-like/mqtt-qos1", "sidecar/echo"},
		Configs:    meshConfigs,
		Flags:      e.cpusFlag,
		Run:        e.execute,
	})
}

// Plain is measured twice here, too. With unix the programs of a sidecar's path talk by AF_UNIX, as the limit.
var meshConfigs = []string{"plain", "plain-again", "kerb", publishedKeys, "unix"}

var mesh = variant{"kbm", meshConfigs, meshWorkloads, openMesh, meshAvailable, meshAllow, (*experiment).notePublished}

// meshAllow are the programs of these workloads that the module does not know, by the names of their files: the
// operator who allows them says that they do without the calls that redirected sockets lack.
func meshAllow() []string {
	all := []string{"memtier_benchmark", "mosquitto", "envoy"}
	if python, err := pythonPath(); err == nil {
		all = append(all, filepath.Base(python))
	}
	return all
}

// meshLoads are all workloads through all meshes.
func meshLoads() (all []string) {
	for _, mesh := range meshes {
		for _, w := range meshWorkloads {
			all = append(all, mesh+"/"+w.name)
		}
	}
	return all
}

// amounts are what one round of these workloads has.
type amounts struct {
	trips      int // of ping-echo
	operations int // of each of memtier's connections
	messages   int // of MQTT
}

var (
	meshAmounts      = amounts{trips: 100_000, operations: 10_000, messages: 50_000} // the first two as published
	meshQuickAmounts = amounts{trips: 2000, operations: 100, messages: 1000}
	meshWarmAmounts  = amounts{trips: 200, operations: 20, messages: 100}
)

// publishedChanges are by how much acceleration changed p50 of a metric, in percent.
var publishedChanges = []struct {
	load, metric string
	percent      float64
}{
	{"none/echo", "latency", -39.4}, {"cilium-like/echo", "latency", -27.6}, {"sidecar/echo", "latency", -42.0},
	{"none/echo", "rate", 65}, {"cilium-like/echo", "rate", 38}, {"sidecar/echo", "rate", 72},
	{"none/echo", "fct", -34.7}, {"cilium-like/echo", "fct", -22.7}, {"sidecar/echo", "fct", -41.2},
	{"none/echo", "jitter", -0.2}, {"cilium-like/echo", "jitter", 10.8}, {"sidecar/echo", "jitter", -35.6},
	{"none/echo", "cpu", -16.2}, {"cilium-like/echo", "cpu", -12.1}, {"sidecar/echo", "cpu", -23.2},
	{"none/file", "fct", -21}, {"cilium-like/file", "fct", -11.7}, {"sidecar/file", "fct", 20},
	{"none/file", "cpu", -5.8}, {"cilium-like/file", "cpu", -0.7}, {"sidecar/file", "cpu", 13.7},
	{"none/redis", "rate", 47}, {"cilium-like/redis", "rate", 1.3}, {"sidecar/redis", "rate", -1.7},
	{"none/redis", "latency", -32.2}, {"cilium-like/redis", "latency", -1.4}, {"sidecar/redis", "latency", 1.7},
	{"none/redis", "cpu", 8}, {"cilium-like/redis", "cpu", 29}, {"sidecar/redis", "cpu", 22},
}

// notePublished notes the work's figures next to ours.
func (e *experiment) notePublished() {
	r := e.run.Report()
	for _, p := range publishedChanges {
		plain, ok1 := r.Find("plain", p.load, p.metric, "p50")
		kerb, ok2 := r.Find("kerb", p.load, p.metric, "p50")
		if ok1 && ok2 && plain.Value > 0 {
			e.run.Note("%s, %s p50: published %+.1f %%, here %+.1f %%", p.load, p.metric, p.percent,
				100*(kerb.Value/plain.Value-1))
		}
	}
	e.run.Note("not a cluster: two namespaces and one that routes between them, which translates the service's "+
		"address (nftables as kube-proxy writes it; cilium-like: BPF); %s; cilium-like is bpf_redirect_peer without "+
		"Cilium's connection tracking and policy; sidecars are Envoy with one thread, mutual TLS and REDIRECT", redisClient())
	e.run.Note("Istio ambient is left out: ztunnel needs Istio's control plane or a configuration made by hand, and " +
		"multiplexes connections in HTTP/2 with mutual TLS (HBONE)")
	e.run.Note("kerb allows %v, which the module does not include by itself", e.allow())
	e.run.Note("cpu and memory (PSS, its maximum of samples every %v) are of all programs: client, server, proxies, and "+
		"with kerb the agent and its maps; the kernel's memory for sockets is left out", memoryPeriod)
}

// memoryPeriod is between two readings of the memory of all programs, which stops each for some microseconds.
const memoryPeriod = 200 * time.Millisecond

func redisClient() string {
	if _, err := exec.LookPath(memtier); err != nil {
		return "redis is asked by a program with memtier_benchmark's mix, as that is not installed"
	}
	return "redis is asked by memtier_benchmark"
}
