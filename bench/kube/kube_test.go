// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/binpath"
	"github.com/kerb-edge/kerb/internal/lab/gobuild"
	"github.com/kerb-edge/kerb/internal/lab/kubeapi"
)

// installed builds the programs of a node.
func installed(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	for name, pkg := range map[string]string{"kerb": "github.com/kerb-edge/kerb/cmd/kerb",
		"kerb-cni":             "github.com/kerb-edge/kerb/cmd/kerb-cni",
		"kerb-kube-node":       "github.com/kerb-edge/kerb/cmd/kerb-kube-node",
		"kerb-kube-controller": "github.com/kerb-edge/kerb/cmd/kerb-kube-controller",
		"bridge":               "github.com/containernetworking/plugins/plugins/main/bridge",
		"tuning":               "github.com/containernetworking/plugins/plugins/meta/tuning",
		"host-local":           "github.com/containernetworking/plugins/plugins/ipam/host-local"} {
		if err := gobuild.Build(filepath.Join(dir, name), pkg); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(binpath.KerbEnv, filepath.Join(dir, "kerb"))
	t.Setenv("CNI_PATH", dir)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// ADDs of a burst overlap; pods are services of the agent only with kerb-cni; nothing is left afterwards.
func TestBurst(t *testing.T) {
	installed(t)
	n, err := start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	var here sync.WaitGroup
	here.Add(3)
	if _, err := n.addConcurrently(make([]sandbox, 3), func(sandbox) error {
		here.Done()
		here.Wait() // until all three calls have arrived here
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	services := func() int {
		var all []v1.Service
		if err := n.agent.Get("/v1/services", &all); err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	for config, wanted := range map[string]int{plain: 0, tuning: 0, withKerb: 3} {
		all, err := n.sandboxes(3)
		if err != nil {
			t.Fatal(err)
		}
		list, err := n.conflist(config)
		if err != nil {
			t.Fatal(err)
		}
		runtime := n.runtime(filepath.Join(t.TempDir(), "cache"))
		if _, err := n.addConcurrently(all, func(s sandbox) error {
			_, err := runtime.AddNetworkList(t.Context(), list, s.conf)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if seen := services(); seen != wanted {
			t.Errorf("with %s, the agent has %d services of three pods", config, seen)
		}
		if _, err := n.addConcurrently(all, func(s sandbox) error {
			return runtime.DelNetworkList(t.Context(), list, s.conf)
		}); err != nil {
			t.Fatal(err)
		}
		if err := removeAll(all); err != nil {
			t.Fatal(err)
		}
		times, _, err := n.burst(t.Context(), 4, config)
		if err != nil || len(times) != 4 || slices.Min(times) <= 0 {
			t.Errorf("%s: %v, %v", config, times, err)
		}
		if left := services(); left != 0 {
			t.Errorf("%d services are left", left)
		}
	}
	out, err := exec.Command("ip", "netns").CombinedOutput()
	if err != nil || strings.Contains(string(out), n.lab.Prefix()+"-pod") {
		t.Errorf("namespaces are left: %s (%v)", out, err)
	}
}

// Without the plugins, the error lists the searched directories.
func TestNoPlugins(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"kerb-cni", "bridge"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	t.Setenv("CNI_PATH", dir)
	if has("/opt/cni/bin", "bridge") || has("/usr/lib/cni", "bridge") {
		t.Skip("this machine has plugins")
	}
	if _, err := find(); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "CNI_PATH") {
		t.Error(err)
	}
}

// Without the API server's program, the loads are left out with a note about how to get it.
func TestNoAPIServer(t *testing.T) {
	kubeAPI = ""
	e, _ := bench.Find("kube")
	r := bench.NewRun(e, true, 1, []string{"fleet/50", "pods/5000", "rollout/drops"}, io.Discard)
	if err := e.Run(t.Context(), r); err != nil || len(r.Report().Cells) != 0 {
		t.Errorf("%v, %v", err, r.Report().Cells)
	}
	notes := r.Report().Notes
	if len(notes) != 3 || !strings.Contains(notes[0], "make kube-api") || !strings.Contains(notes[0], "--kube-api") {
		t.Errorf("%q", notes)
	}
}

// All loads with an API server report their figures and the expected counts, with few nodes and pods.
func TestLoads(t *testing.T) {
	if kubeAPI = os.Getenv(kubeapi.Program); kubeAPI == "" {
		t.Skip("needs a Kubernetes API server: make test-kube-api")
	}
	installed(t)
	e, _ := bench.Find("kube")
	defer func(n int) { podsOfServices = n }(podsOfServices)
	podsOfServices = 20
	r := bench.NewRun(e, true, 1, []string{"fleet/5", "pods/20", "services/20", "rollout/drops", "rollout/refused"},
		io.Discard)
	if err := e.Run(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if err := r.Report().Err(); err != nil {
		t.Error(err)
	}
	for _, c := range []struct{ config, load, metric, stat string }{{withKerb, "fleet/5", "change", "p99"},
		{watch, "fleet/5", "change", "p99"}, {withKerb, "fleet/5", "api_memory", "max"},
		{withKerb, "fleet/5", "controller_memory", "max"}, {withKerb, "pods/20", "memory", "max"},
		{withKerb, "services/20", "memory", "max"},
		{withKerb, "rollout/drops", "back", "max"}} {
		if cell, ok := r.Report().Find(c.config, c.load, c.metric, c.stat); !ok || cell.Value <= 0 {
			t.Errorf("%+v: %+v", c, cell)
		}
	}
	if cell, ok := r.Report().Find(withKerb, "rollout/refused", "switched", "sum"); !ok || cell.Value != 0 {
		t.Errorf("a version that the kernel refuses: %+v", cell)
	}
	for _, metric := range []string{"writes", "switched"} {
		stat := map[string]string{"writes": "p50", "switched": "sum"}[metric]
		if cell, ok := r.Report().Find(withKerb, "fleet/5", metric, stat); !ok || cell.Value != 0 {
			t.Errorf("%s: %+v", metric, cell)
		}
	}
}
