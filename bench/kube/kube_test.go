// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/binpath"
	"github.com/kerb-edge/kerb/internal/lab/gobuild"
)

// installed builds what a node has.
func installed(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	for name, pkg := range map[string]string{"kerb": "github.com/kerb-edge/kerb/cmd/kerb",
		"kerb-cni":   "github.com/kerb-edge/kerb/cmd/kerb-cni",
		"bridge":     "github.com/containernetworking/plugins/plugins/main/bridge",
		"tuning":     "github.com/containernetworking/plugins/plugins/meta/tuning",
		"host-local": "github.com/containernetworking/plugins/plugins/ipam/host-local"} {
		if err := gobuild.Build(filepath.Join(dir, name), pkg); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(binpath.KerbEnv, filepath.Join(dir, "kerb"))
	t.Setenv("CNI_PATH", dir)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// ADDs of a burst overlap, pods are services of the agent only with kerb-cni, and nothing is left of either.
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
	if _, err := n.together(make([]sandbox, 3), func(sandbox) error {
		here.Done()
		here.Wait() // until all three are at the same place
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
		if _, err := n.together(all, func(s sandbox) error {
			_, err := runtime.AddNetworkList(t.Context(), list, s.conf)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if seen := services(); seen != wanted {
			t.Errorf("with %s, the agent has %d services of three pods", config, seen)
		}
		if _, err := n.together(all, func(s sandbox) error {
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

// Without the plugins the error says where they were looked for.
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
