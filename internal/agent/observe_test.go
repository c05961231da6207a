// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/service"
)

// A change looks the node up once, for new services and for interfaces that the watcher does not know.
func TestChangeLooksUpOnce(t *testing.T) {
	n := newNode(t)
	var lookups atomic.Int32
	n.stop()
	n.opened = func(a *Agent) {
		a.Observer.Resolve = func(specs map[string]v1.ServiceSpec) (map[string]service.State, error) {
			if _, ours := specs["web"]; ours { // and not a reconciliation's
				lookups.Add(1)
			}
			return service.ResolveAll(specs)
		}
	}
	n.start(t)
	m := module("count", testPackage(t, "pass"), "*", nil)
	m.Spec.Attach.Interfaces = []string{"kagnone"}
	r, err := n.Apply(t.Context(), resource.Request{Resources: append(resource.Objects(n.both()...), &m), DryRun: true})
	if err != nil || len(r.Steps) == 0 {
		t.Fatalf("%d steps: %v", len(r.Steps), err)
	}
	if got := lookups.Load(); got != 1 {
		t.Errorf("%d lookups, want 1", got)
	}
}

// Modules are prepared before the node is observed: control planes may take long to start, and services change in the
// meantime.
func TestObservedAfterPreparing(t *testing.T) {
	n := newNode(t)
	dir := filepath.Join(t.TempDir(), "package")
	if err := os.CopyFS(dir, os.DirFS(testPackage(t, "pass"))); err != nil {
		t.Fatal(err)
	}
	n.stop()
	n.opened = func(a *Agent) {
		a.Observer.Resolve = func(specs map[string]v1.ServiceSpec) (map[string]service.State, error) {
			if _, ours := specs["web"]; ours { // and not a reconciliation's
				if err := os.RemoveAll(dir); err != nil { // what is prepared now fails
					t.Error(err)
				}
			}
			return service.ResolveAll(specs)
		}
	}
	n.start(t)
	m := module("count", dir, "*", nil)
	if _, err := n.Apply(t.Context(), resource.Request{Resources: append(resource.Objects(n.both()...), &m),
		DryRun: true}); err != nil {
		t.Error(err)
	}
}
