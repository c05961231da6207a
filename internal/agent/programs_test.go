// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/resource"
)

// One service is read without the rest of the node, for which changes are waited for, as long as its interface runs
// what was seen last. Something else on it is found.
func TestServiceIsReadAlone(t *testing.T) {
	n := newNode(t)
	looks := 0
	n.stop()
	n.opened = func(a *Agent) {
		a.Look = func(time.Duration) (chain.State, error) {
			looks++
			return a.Dataplane.Observe()
		}
	}
	n.start(t)
	n.apply(t, n.both(), module("count", "counter", "*", nil))
	n.Exclusive.Lock() // a change is under way
	defer n.Exclusive.Unlock()
	read := func() *v1.ServiceStatus {
		t.Helper()
		s, err := get(t.Context(), n, resource.Service, "web")
		if err != nil || s.Status == nil || len(s.Status.Links) != 1 || len(s.Status.Links[0].Hooks) != 2 {
			t.Fatalf("%+v, %v", s, err)
		}
		return s.Status
	}
	for _, h := range read().Links[0].Hooks {
		if h.Program == 0 {
			t.Errorf("%+v", h)
		}
	}
	if looks != 0 {
		t.Errorf("the node was read %d times, want none", looks)
	}
	pins, err := filepath.Glob(filepath.Join(n.cfg.Paths.BPF, "links", "*"))
	if err != nil || len(pins) != 4 {
		t.Fatal(pins, err)
	}
	for _, pin := range pins {
		if err := os.Remove(pin); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range read().Links[0].Hooks {
		if h.Program != 0 {
			t.Errorf("%+v", h)
		}
	}
	if looks != 1 {
		t.Errorf("the node was read %d times, want 1", looks)
	}
}
