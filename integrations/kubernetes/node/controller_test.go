// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/internal/control/sandbox"
)

// controller starts kerb-kube-controller with the rights of its service account.
func (b *bed) controller(kubeconfig string) *exec.Cmd {
	b.T.Helper()
	cmd := b.Lab.Node().Command(context.Background(), controllerProgram, "--kubeconfig", kubeconfig)
	cmd.Stderr = b.log
	if err := sandbox.Start(cmd); err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// holder returns the holder of the Lease.
func (b *bed) holder() string {
	b.T.Helper()
	var lease struct {
		Spec struct {
			Holder string `json:"holderIdentity"`
		} `json:"spec"`
	}
	_ = b.api.Call(http.MethodGet, "/apis/coordination.k8s.io/v1/namespaces/kerb-system/leases/kerb-kube-controller", nil,
		&lease)
	return lease.Spec.Holder
}

// controllerConfig returns a kubeconfig with the rights of kerb-kube-controller.
func (b *bed) controllerConfig() string {
	b.T.Helper()
	b.applyManifests("kerb-kube-node.yaml")
	b.applyManifests("kerb-kube-controller.yaml")
	var answer struct{ Status struct{ Token string } }
	b.api.Must(http.MethodPost, "/api/v1/namespaces/kerb-system/serviceaccounts/kerb-kube-controller/token",
		map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": map[string]any{}}, &answer)
	file := filepath.Join(b.T.TempDir(), "token")
	if err := os.WriteFile(file, []byte(answer.Status.Token), 0o600); err != nil {
		b.T.Fatal(err)
	}
	return b.api.Kubeconfig(file)
}

// says replaces the KerbNode status of a simulated node.
func (b *bed) says(node, status string) {
	b.T.Helper()
	text := "apiVersion: kerb.dev/v1alpha1\nkind: KerbNode\nmetadata: {name: " + node + "}\nstatus: {" + status + "}\n"
	for _, path := range []string{"", "/status"} {
		if err := b.api.Apply(nodesPath+node+path, text); err != nil {
			b.T.Fatal(err)
		}
	}
}

// kerb-kube-controller counts the reports of nodes with only the rights of its service account. When it is killed,
// another one takes over.
func TestController(t *testing.T) {
	b := newBed(t)
	kubeconfig := b.controllerConfig()
	const name = "web"
	counted := func(what string, want api.ClusterModuleStatus) {
		t.Helper()
		b.Eventually(what, func() bool {
			var m api.ClusterModule
			b.api.Must(http.MethodGet, modulesPath+name, nil, &m)
			want.Generation = m.Metadata.Generation
			if m.Status == nil || len(m.Status.Conditions) != 1 {
				return false
			}
			ready, status := m.Status.Conditions[0], "True"
			if want.Failed > 0 {
				status = "False"
			}
			m.Status.Conditions = nil
			return reflect.DeepEqual(*m.Status, want) && ready.Type == "Ready" && !ready.Transition.IsZero() &&
				ready.Generation == m.Metadata.Generation && ready.Status == status
		})
	}
	b.says("n2", "")
	b.says("n3", "")
	b.module(name, counter("app: web"))
	b.Eventually("the node reports", func() bool { return b.status().Status.Conditions[0].Status == "True" })
	first := b.controller(kubeconfig)
	counted("three nodes", api.ClusterModuleStatus{Desired: 3, Ready: 3})
	leader := b.holder()
	second := b.controller(kubeconfig)
	b.says("n2", "modules: [{name: web, generation: 1, reason: Refused}]")
	counted("one of them refuses", api.ClusterModuleStatus{Desired: 3, Ready: 2, Failed: 1,
		Problems: []api.Problem{{Reason: "Refused", Nodes: 1, Node: "n2"}}})
	if now := b.holder(); leader == "" || now != leader {
		t.Errorf("the Lease went from %q to %q", leader, now)
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	b.module(name, "{package: {name: counter}, attach: {pods: {podSelector: {matchLabels: {app: web}}}}, config: {}, "+
		"rollout: {percent: 0, nodes: [n1, n2, n3], previous: {package: {name: counter}}}}")
	b.Eventually("another one holds the Lease", func() bool { now := b.holder(); return now != "" && now != leader })
	b.says("n2", "modules: [{name: web, generation: 2, reason: RolledBack}]")
	counted("a rollout", api.ClusterModuleStatus{Desired: 3, Ready: 1, Failed: 1, RolledBack: 1,
		Problems: []api.Problem{{Reason: api.RolledBack, Nodes: 1, Node: "n2"}}})
	if cells := b.api.Table(modulesPath); len(cells) < 7 || cells[4] != int64(3) && cells[4] != float64(3) {
		t.Errorf("kubectl get shows %v", cells)
	}
	if err := second.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	b.Eventually("the Lease is given back", func() bool { return b.holder() == "" })
	if text, _ := os.ReadFile(b.log.Name()); strings.Contains(string(text), "answers 403") {
		t.Errorf("rights are missing:\n%s", text)
	}
}
