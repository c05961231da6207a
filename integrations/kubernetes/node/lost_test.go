// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

// ready sets the condition Ready of a Node, as its kubelet does, or Kubernetes when the kubelet stops reporting.
func (b *bed) ready(node, status string) {
	b.T.Helper()
	if b.api.Call(http.MethodGet, api.NodesPath+"/"+node, nil, nil) != nil {
		b.api.Must(http.MethodPost, api.NodesPath, map[string]any{"apiVersion": "v1", "kind": "Node",
			"metadata": map[string]any{"name": node}}, nil)
	}
	if err := b.api.Apply(api.NodesPath+"/"+node+"/status", "apiVersion: v1\nkind: Node\nmetadata: {name: "+node+
		"}\nstatus: {conditions: [{type: Ready, status: \""+status+"\", reason: Test, message: test}]}\n"); err != nil {
		b.T.Fatal(err)
	}
}

// A canary that is lost after it has reported the version halts the rollout at its deadline: its KerbNode stays
// unchanged, but its Node becomes not Ready. resume continues without it only if another canary runs the version.
func TestLostCanary(t *testing.T) {
	f := newFleet(t, "guard")
	f.module(f.name, "{package: {name: firewall}, config: {defaultPolicy: {ingress: allow}}, attach: {pods: {}}}")
	f.Eventually("the first version runs", func() bool { return strings.Contains(f.config(), "allow") })
	f.module(f.name, firewallRollout("deny", "nodes: [n1], waves: [50, 100], soakSeconds: 3600, deadlineSeconds: 3"))
	f.Eventually("the real node has checked it", func() bool { return len(f.status().Status.Checked) == 1 })
	f.checks()
	f.Eventually("the canary runs the new version", func() bool { return strings.Contains(f.config(), "deny") })
	canaries := append(f.runs(), "n1")
	for _, name := range canaries {
		f.ready(name, "True")
	}
	f.Eventually("all canaries run it", func() bool {
		return strings.Contains(f.get().Status.Conditions[0].Message, "of 3 nodes, 3 run it")
	})

	f.ready(canaries[0], "Unknown")
	if text := f.condition("False", "NodesSilent"); !strings.Contains(text, canaries[0]+" has not answered") {
		t.Errorf("the condition says %s", text)
	}
	out, code := f.kubectl("rollout", "status", f.name)
	if !strings.Contains(out, "3 of 9 nodes, 2 run it") || !strings.Contains(out, "1 have not said yet") {
		t.Errorf("status: %d %s", code, out)
	}
	for _, name := range canaries[1:] {
		f.ready(name, "False")
	}
	out, code = f.kubectl("rollout", "resume", f.name)
	halted := f.get().Status.Rollout.Halted != nil
	if code != 1 || !strings.Contains(out, "no node runs the new version") || !halted {
		t.Errorf("resume without a node that runs the version: %d %s", code, out)
	}
	f.ready("n1", "True")
	f.ready(canaries[1], "True")
	if out, code := f.kubectl("rollout", "resume", f.name); code != 0 {
		t.Fatal(out)
	}
	f.condition("False", "Canaries")
	if p := f.get().Status.Rollout; p.Accepted != 1 {
		t.Errorf("resumed: %+v", p)
	}
}
