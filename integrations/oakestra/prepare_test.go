// SPDX-License-Identifier: Apache-2.0

package oakestra_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// TestModulesArePrepared announces instances before they are deployed. The deployment then attaches programs that are
// already in the kernel; prepared modules that are not deployed are removed.
func TestModulesArePrepared(t *testing.T) {
	n, c := newClusterNode(t, "")
	n.must("POST", "/register", `{"client_id":"w1","cluster_address":"127.0.0.1"}`)
	n.Eventually("the modules of the worker", func() bool { return len(list[v1.Module](n, "module")) == 2 })
	const firewall = `[{"name": "firewall", "config": {"rules": []}}, {"name": "counter"}]`
	announce := func(app, modules string, want int) {
		t.Helper()
		c.Forge("nodes/w1/control/deploy", jobText(app, 0, modules))
		n.Eventually("modules of "+app, func() bool { return len(n.modulesFor(app)) == want })
	}
	announce(appName, firewall, 2)
	var ready []uint32
	n.Eventually("chains that run nowhere", func() bool {
		ready = nil
		for _, chain := range list[v1.Chain](n, "chain") {
			if chain.Ready && slices.Contains(chain.Modules, "oakestra-0") {
				ready = append(ready, chain.Program)
			}
		}
		return len(ready) == 2
	})
	if got := n.must("GET", "/ebpf", ""); got != "[]" {
		t.Errorf("modules of a service that does not run: %s", got)
	}
	n.container().deploy(appName, 0, "")
	var run []uint32
	for _, chain := range list[v1.Chain](n, "chain") {
		if slices.ContainsFunc(chain.Points, func(p v1.Attachment) bool { return p.Service != "" }) {
			run = append(run, chain.Program)
		}
	}
	slices.Sort(ready)
	slices.Sort(run)
	if !slices.Equal(ready, run) {
		t.Errorf("the service runs the programs %v, prepared were %v", run, ready)
	}

	other := "app.test.other.test"
	announce(other, firewall, 2)
	n.container().deploy(other, 0, `,"ebpfModules":[{"name":"packetCounter"}]`)
	if got := n.modulesFor(other); !cmp.Equal(got, []string{"packetCounter"}) {
		t.Errorf("modules of the deployment that asks for others than were announced: %v", got)
	}
	announce("app.test.former.test", firewall, 2)
	n.must("POST", "/register", `{"client_id":"w2","cluster_address":"127.0.0.1"}`)
	n.Eventually("modules of the former worker are removed", func() bool {
		return !slices.ContainsFunc(list[v1.Module](n, "module"), func(m v1.Module) bool {
			return strings.HasPrefix(m.Spec.Attach.Services, "oakestra.io/service=")
		})
	})
}
