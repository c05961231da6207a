// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

// example builds a copy of one of the examples with another version.
func example(t *testing.T, name, version string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, os.DirFS("../../examples/"+name)); err != nil {
		t.Fatal(err)
	}
	setVersion(t, dir, version)
	if err := pkgs.Build(t.Context(), dir, pkgs.Options{Out: t.Output()}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func setVersion(t *testing.T, dir, version string) {
	t.Helper()
	editFile(t, filepath.Join(dir, "kerb.yaml"), "version: 0.1.0", "version: "+version)
}

func editFile(t *testing.T, path, old, new string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(strings.Replace(string(text), old, new, 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// packets returns the count of topports for the port of the stream.
func (n *node) packets() (count uint64) {
	n.T.Helper()
	var top struct {
		Ports []struct {
			Port    int
			Packets uint64
		}
	}
	if err := json.Unmarshal([]byte(n.must("module", "query", "top", "top?n=100", "-o", "json")), &top); err != nil {
		n.T.Fatal(err)
	}
	for _, p := range top.Ports {
		if p.Port == streamPort {
			count = p.Packets
		}
	}
	return count
}

// sickExample builds version 0.3.0 of an example in Python, which is never healthy.
func (n *node) sickExample(name string) string {
	n.T.Helper()
	dir := example(n.T, name, "0.3.0")
	editFile(n.T, filepath.Join(dir, "control.py"), "return self.events.error", "return 'never well'")
	editFile(n.T, filepath.Join(dir, "kerb.yaml"), "control:", "control:\n  healthWithin: 2s")
	return dir
}

// The examples are deployed, changed, upgraded and removed while the agent runs.
func TestExamplesAtRunTime(t *testing.T) {
	n := newRunningNode(t)
	pid := n.PID()
	watch := func(port int) map[string]any { return map[string]any{"watch": []any{port}} }
	fast, slow := map[string]any{"rate": 1000000, "burst": 100000}, map[string]any{"rate": 1, "burst": 1}
	limit := example(t, "ratelimit", "0.2.0")
	n.apply(module("top", example(t, "topports", "0.1.0"), "app=web", watch(9)),
		module("limit", example(t, "ratelimit", "0.1.0"), "app=web", fast), n.stamp(1))
	n.awaitHealthy("top")
	udp := startStream(t, n.db, n.web)
	n.Eventually("the port of the stream is counted", func() bool { return n.packets() > 0 })
	n.apply(module("top", get[v1.Module](n, "module", "top").Spec.Package, "app=web", watch(streamPort)))
	told := func() bool { return strings.Contains(n.must("module", "query", "top", "events", "-o", "json"), "7007") }
	n.Eventually("packets to a watched port are reported", told)
	before := n.packets()
	n.apply(module("top", example(t, "topports", "0.2.0"), "app=web", watch(streamPort)),
		module("limit", limit, "app=web", fast))
	n.Eventually("they are sent to the new version", told)
	for _, name := range []string{"top", "limit"} {
		if got := get[v1.Module](n, "module", name).Status.Package.Version; got != "0.2.0" {
			t.Errorf("%s has version %s after the upgrade", name, got)
		}
	}
	if after := n.packets(); after < before {
		t.Errorf("the upgrade took the counter from %d to %d", before, after)
	}
	n.refused(n.tryApply(module("top", n.sickExample("topports"), "app=web", watch(streamPort))), 5,
		"rolled back to 0.2.0", "never well")
	n.awaitHealthy("top")
	n.Eventually("they are sent to the old version again, which was away meanwhile", told)
	udp.finish(1)
	n.apply(module("limit", limit, "app=web", slow))
	for range 100 {
		_, _ = udp.out.Write(make([]byte, payloadSize)) // refused, where it arrives
	}
	n.Eventually("with a lower rate packets are dropped", func() bool {
		got := get[v1.Module](n, "module", "limit").Status.Drops
		return len(got) == 1 && got[0].Packets >= 50
	})
	n.must("module", "delete", "top")
	n.must("module", "delete", "limit")
	n.Eventually("their processes end", func() bool { return len(n.children()) == 0 })
	if n.PID() != pid {
		t.Error("the agent was restarted")
	}
	n.checkPins()
}
