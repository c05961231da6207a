// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/modules"
)

// Memory limits of an idle node.
const (
	maxIdle = 25 << 20 // VmRSS of an agent without modules
	maxAll  = 40 << 20 // PSS of an agent with all modules, and of their control planes
)

// configs are the configs of the built-in packages that need one.
var configs = map[string]map[string]any{
	"tunnel": {"nodes": []any{map[string]any{"address": "192.0.2.1", "subnets": []string{"10.18.0.0/26"}},
		map[string]any{"address": "192.0.2.2", "subnets": []string{"10.18.0.64/26"}}}},
	"responder": {"listeners": []any{map[string]any{"app": "echo", "port": 7}}},
	"intercept": {"classes": []any{
		map[string]any{"name": "ctrl", "match": map[string]any{"protocol": "udp", "ports": []int{8080}}}}},
	"classifier": {"extractor": "flow"},
	"nat":        {"to_ip": "192.0.2.9"},
}

func TestNodeMemory(t *testing.T) {
	nodetest.Kerb = buildKerb(t)
	n := nodetest.New(t)
	n.Configure("cgroup: " + cgrouptest.New(t, "", "kerb-memory") + "\n")
	n.Start()
	atMost(t, "VmRSS of the idle agent", maxIdle, func() (int64, error) { return resident(n.PID()) })

	packages, err := fs.Glob(modules.Packages(), "*/kerb.yaml")
	if err != nil || len(packages) != 10 {
		t.Fatal(packages, err)
	}
	n.Apply(node.Service(n.Host("web")))
	if err := n.Lab.AddUnderlay(); err != nil {
		t.Fatal(err)
	}
	for _, path := range packages {
		name := strings.TrimSuffix(path, "/kerb.yaml")
		m := node.Module(name, name, "*", configs[name])
		if name == "tunnel" {
			m.Spec.Attach.Interfaces = []string{netlab.Underlay} // without one it is not healthy
		}
		n.Apply(m)
		n.Eventually("the control plane of "+name+" runs", func() bool { return controlled(n, name) })
	}
	// Until then the agent runs programs in the background at low priority.
	n.Eventually("the costs of all chains are measured", func() bool {
		var chains []v1.Chain
		n.Must(http.MethodGet, "/v1/chains", nil, &chains)
		return len(chains) > 0 && !slices.ContainsFunc(chains, func(c v1.Chain) bool {
			return c.Cost == nil && c.Hook != "sockets"
		})
	})
	atMost(t, "PSS with all modules", maxAll, func() (int64, error) { return proportional(n.PID()) })
}

// controlled reports whether a module's control plane runs.
func controlled(n *nodetest.Node, name string) bool {
	var m v1.Module
	n.Must(http.MethodGet, "/v1/modules/"+name, nil, &m)
	for _, c := range m.Status.Conditions {
		if c.Type == "ControlPlane" && c.Status == "True" {
			return true
		}
	}
	return false
}

// atMost waits until an idle process has returned the memory that only changes needed.
func atMost(t *testing.T, what string, limit int64, measure func() (int64, error)) {
	t.Helper()
	var got int64
	defer func() { t.Logf("%s: %.1f MiB, at most %d", what, float64(got)/(1<<20), limit>>20) }()
	wait.Until(t, what, func() bool {
		var err error
		if got, err = measure(); err != nil {
			t.Fatal(err)
		}
		return got <= limit
	})
}

func resident(pid int) (kib int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	_, err = fmt.Sscan(rest, &kib)
	return kib << 10, err
}

// proportional returns the PSS of a process and its descendants.
func proportional(pid int) (int64, error) {
	all, err := node.Descendants(pid)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, pid := range append(all, pid) {
		one, err := node.Proportional(pid)
		if err != nil {
			return 0, err
		}
		sum += one
	}
	return sum, nil
}
