// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"strings"
	"testing"
)

const kerb = "github.com/kerb-edge/kerb/"

// kerb links no Kubernetes packages, and kerb-kube-node no client library that takes more memory than the rest.
func TestImports(t *testing.T) {
	for program, banned := range map[string][]string{
		"cmd/kerb": {kerb + "integrations/kubernetes", "k8s.io/client-go", kerb + "integrations/oakestra",
			"github.com/eclipse/"},
		// this package runs a thousand nodes in one process
		"cmd/kerb-bench": {kerb + "integrations/kubernetes/controller", kerb + "integrations/kubernetes/cni",
			"k8s.io/client-go"},
		"cmd/kerb-kube-node": {"k8s.io/", "sigs.k8s.io/", "github.com/cilium/", "github.com/danielgtaylor/",
			kerb + "internal/agent", "github.com/containerd/"}, // linked by kerb-nri
		"cmd/kerb-nri":             {"k8s.io/", "github.com/cilium/", kerb + "integrations/kubernetes/node", "net/http"},
		"cmd/kubectl-kerb":         {"k8s.io/", "sigs.k8s.io/", "github.com/cilium/", "github.com/danielgtaylor/"},
		"cmd/kerb-kube-controller": {"k8s.io/", "sigs.k8s.io/", "github.com/cilium/", "github.com/danielgtaylor/"},
	} {
		out, err := exec.Command("go", "list", "-deps", kerb+program).Output()
		if err != nil {
			t.Fatal(err)
		}
		deps := strings.Fields(string(out))
		if len(deps) < 50 {
			t.Errorf("%s has only %d packages", program, len(deps))
		}
		for _, dep := range deps {
			for _, no := range banned {
				if strings.HasPrefix(dep, no) {
					t.Errorf("%s links %s", program, dep)
				}
			}
		}
	}
}
