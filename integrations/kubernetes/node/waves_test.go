// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

// fleet is a controller, and simulated nodes n2 to n9 whose reports the test writes, next to the real node n1.
type fleet struct {
	*bed
	name string
}

var others = strings.Fields("n2 n3 n4 n5 n6 n7 n8 n9")

func newFleet(t *testing.T, name string) *fleet {
	f := &fleet{newBed(t), name}
	for _, node := range others {
		f.says(node, kernelOf(node))
	}
	f.Eventually("the real node reports", func() bool { return f.status().Status.Kernel != "" })
	f.controller(f.controllerConfig())
	return f
}

// kernelOf returns the kernel that a node of the fleet reports. There are three kinds, including that of the real node.
func kernelOf(node string) string {
	if node < "n6" {
		return "kernel: 4.18.0-553, architecture: riscv64"
	}
	return "kernel: 4.18.0-477, architecture: arm64"
}

// checks makes the other nodes report that they could run the new version.
func (f *fleet) checks() {
	f.T.Helper()
	m := f.get()
	of := m.Module()
	for _, node := range others {
		f.says(node, fmt.Sprintf("%s, checked: [{name: %s, version: %s}]", kernelOf(node), f.name, of.Version()))
	}
}

func (f *fleet) get() (m api.ClusterModule) {
	f.T.Helper()
	f.api.Must(http.MethodGet, modulesPath+f.name, nil, &m)
	if m.Status == nil {
		m.Status = &api.ClusterModuleStatus{}
	}
	if m.Status.Rollout == nil {
		m.Status.Rollout = &api.RolloutStatus{}
	}
	if len(m.Status.Conditions) == 0 {
		m.Status.Conditions = []api.Condition{{}}
	}
	return m
}

// runs makes the other nodes with the new version report that they run it, and returns them.
func (f *fleet) runs() (all []string) {
	f.T.Helper()
	m := f.get()
	of := m.Module()
	for _, node := range others {
		if of.Updated(node) {
			f.says(node, fmt.Sprintf("%s, updated: [{name: %s, version: %s}]", kernelOf(node), f.name, of.Version()))
			all = append(all, node)
		}
	}
	return all
}

// config returns the field of a module's config that this node runs.
func (f *fleet) config() string {
	var m v1.Module
	if f.Get("/v1/modules/"+f.name, &m) != nil {
		return ""
	}
	config, _ := json.Marshal(m.Spec.Config)
	return string(config)
}

func (f *fleet) percent(want int) {
	f.T.Helper()
	f.Eventually(fmt.Sprint("a wave of ", want, " %"), func() bool { return f.get().Status.Rollout.Percent == want })
}

// condition waits for the condition, and returns its message.
func (f *fleet) condition(status, reason string) string {
	f.T.Helper()
	var c api.Condition
	f.Eventually("RolledOut is "+status+" "+reason, func() bool {
		c = f.get().Status.Conditions[0]
		return c.Type == "RolledOut" && c.Status == status && c.Reason == reason
	})
	return c.Message
}

func firewallRollout(policy, rollout string) string {
	version := func(policy string) string {
		return "package: {name: firewall}, config: {defaultPolicy: {ingress: " + policy + "}}"
	}
	return "{" + version(policy) + ", attach: {pods: {}}, rollout: {" + rollout + ", previous: {" + version("allow") +
		"}}}"
}

// kerb-kube-controller starts with canaries of each kernel when all nodes have checked the version. Then it raises the
// percentage with one write for each wave, and halts when a node rolls back: no further node starts. resume continues,
// another version starts over, and undo ends the rollout.
func TestWaves(t *testing.T) {
	f := newFleet(t, "guard")
	f.module(f.name, "{package: {name: firewall}, config: {defaultPolicy: {ingress: allow}}, attach: {pods: {}}}")
	f.Eventually("the first version runs", func() bool { return strings.Contains(f.config(), "allow") })
	const waves = "nodes: [n1], waves: [50, 100], soakSeconds: 1"
	f.module(f.name, firewallRollout("deny", waves))
	f.condition("False", "Preflight")
	f.Eventually("the real node has checked it", func() bool { return len(f.status().Status.Checked) == 1 })
	if strings.Contains(f.config(), "deny") || len(f.runs()) > 0 {
		t.Fatal("nodes have begun before all have checked the version")
	}
	f.checks()
	f.Eventually("the canary runs the new version", func() bool { return strings.Contains(f.config(), "deny") })
	if canaries := f.runs(); len(canaries) != 2 || canaries[0] > "n5" || canaries[1] < "n6" {
		t.Fatalf("canaries %v and n1", canaries)
	}
	f.percent(50)
	wave := f.runs()
	if len(wave) <= 2 || len(wave) == len(others) {
		t.Fatalf("a wave of %v", wave)
	}
	const reason = "the new version dropped 41 of 3904 packets"
	f.says(wave[0], fmt.Sprintf("modules: [{name: guard, generation: %d, reason: RolledBack, message: %q}]",
		f.get().Metadata.Generation, reason))
	if text := f.condition("False", "NodesFailed"); !strings.Contains(text, wave[0]+" RolledBack: "+reason) {
		t.Errorf("the condition does not contain the node's report: %s", text)
	}
	out, code := f.kubectl("rollout", "status", f.name)
	if code != 3 || !strings.Contains(out, "50 % of the nodes and 3 by name, halted") ||
		!strings.Contains(out, "NodesFailed: 1 of ") {
		t.Errorf("status of a rollout that has halted: %d %s", code, out)
	}
	if has := f.runs(); len(has) != len(wave) {
		t.Errorf("nodes %v have the version, before the halt %v", has, wave)
	}
	f.says(wave[0], kernelOf(wave[0]))
	time.Sleep(3 * time.Second) // at least one round of the controller
	if p := f.get().Status.Rollout; p.Percent != 50 || p.Halted == nil {
		t.Fatalf("the rollout continues without resume: %+v", p)
	}

	if out, code := f.kubectl("rollout", "resume", f.name); code != 0 {
		t.Fatal(out)
	}
	f.Eventually("the status is counted", func() bool { return f.get().Status.Rollout.Halted == nil })
	f.runs()
	f.percent(100)
	f.runs()
	f.condition("True", "Complete")
	if cells := f.api.Table(modulesPath); len(cells) != 9 || cells[7] != "Complete" {
		t.Errorf("kubectl get shows %v", cells)
	}
	if n := f.get().Metadata.Generation; n != 2 {
		t.Errorf("generation %d: controller or resume have changed the spec", n)
	}

	f.module(f.name, firewallRollout("deny, egress: allow", waves))
	f.checks()
	f.Eventually("the canary runs another version", func() bool { return strings.Contains(f.config(), "egress") })
	if out, code := f.kubectl("rollout", "undo", f.name); code != 0 {
		t.Fatal(out)
	}
	f.Eventually("the node runs the previous version", func() bool { return strings.Contains(f.config(), "allow") })
	f.Eventually("the status of the rollout has gone", func() bool {
		m := f.get()
		return m.Status.Rollout.Version == "" && m.Status.Conditions[0].Type == "Ready"
	})
}

// A version that one node cannot run is started on no node: the node reports it before the canaries start.
func TestPreflight(t *testing.T) {
	f := newFleet(t, "guard")
	f.module(f.name, "{package: {name: firewall}, config: {defaultPolicy: {ingress: allow}}, attach: {pods: {}}}")
	f.Eventually("the first version runs", func() bool { return strings.Contains(f.config(), "allow") })
	changes := f.changes()
	f.module(f.name, "{package: {name: firewall}, config: {defaultPolicy: {ingress: allow}, rules: [{services: wrong}]}, "+
		"attach: {pods: {}}, rollout: {soakSeconds: 0, previous: {package: {name: firewall}, config: {defaultPolicy: "+
		"{ingress: allow}}}}}")
	f.checks()
	if text := f.condition("False", api.CheckFailed); !strings.Contains(text, "1 of 9 nodes") ||
		!strings.Contains(text, "n1 ") || !strings.Contains(text, "rules") {
		t.Errorf("the condition says %s", text)
	}
	if has := f.runs(); len(has) != 0 || f.changes() != changes {
		t.Errorf("nodes %v have begun, and the real one has made %d changes", has, f.changes()-changes)
	}
	out, code := f.kubectl("rollout", "status", f.name)
	if code != 3 || !strings.Contains(out, "1 more could not run it") {
		t.Errorf("status: %d %s", code, out)
	}
}

// A version that exceeds its memory budget, or the limit maxCost on this node's kernel, is started on no node. With a
// higher limit the node checks it again.
func TestPreflightOfLimits(t *testing.T) {
	f := newFleet(t, "watch")
	spec := func(limit, rollout string) string {
		return "{package: {name: firewall}, config: {defaultPolicy: {egress: deny}}, attach: {pods: {}}, " + limit +
			"rollout: {" + rollout + "previous: {package: {name: counter}}}}"
	}
	f.module(f.name, "{package: {name: counter}, attach: {pods: {}}}")
	f.Eventually("the first version runs", func() bool { return f.packageOf(f.name) == "counter" })
	for _, c := range []struct{ limit, rollout, want string }{
		{"budget: {memory: 1Mi}, ", "", "spec.budget.memory"},
		{"", "maxCost: 1, ", "spec.rollout.maxCost allows 1 more"},
	} {
		f.module(f.name, spec(c.limit, c.rollout))
		f.checks()
		if text := f.condition("False", api.CheckFailed); !strings.Contains(text, "1 of 9 nodes") ||
			!strings.Contains(text, "n1 ") || !strings.Contains(text, c.want) {
			t.Errorf("the condition says %s, want %s", text, c.want)
		}
		runs := f.packageOf(f.name)
		if p := f.get().Status.Rollout; p.Begun() || p.Halted == nil || len(f.runs()) > 0 || runs != "counter" {
			t.Errorf("%s: %+v, and this node runs %s", c.want, p, runs)
		}
		// Undo: the next case starts over.
		f.module(f.name, "{package: {name: counter}, attach: {pods: {}}}")
		f.Eventually("the rollout is undone", func() bool { return f.get().Status.Rollout.Version == "" })
	}
	f.module(f.name, spec("", "maxCost: 1, "))
	f.checks()
	f.condition("False", api.CheckFailed)
	f.module(f.name, spec("", "maxCost: 1000000, "))
	f.Eventually("the node could run it with a higher limit", func() bool { return len(f.status().Status.Checked) == 1 })
}
