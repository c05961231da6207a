// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// readiness is the condition Ready of an object, with the object's generation.
type readiness struct {
	api.Condition
	generation, observed int64
}

// isReady waits until the condition Ready of an object has this status and reason for the current generation.
func (b *bed) isReady(path, status, reason string, parts ...string) (is readiness) {
	b.T.Helper()
	wait.Until(b.T, path+" has Ready "+status+" "+reason, func() bool {
		var o struct {
			Metadata api.ObjectMeta
			Status   struct {
				ObservedGeneration int64
				Conditions         []api.Condition
			}
		}
		b.api.Must(http.MethodGet, path, nil, &o)
		is = readiness{generation: o.Metadata.Generation, observed: o.Status.ObservedGeneration}
		for _, c := range o.Status.Conditions {
			if c.Type == "Ready" {
				is.Condition = c
			}
		}
		for _, part := range parts {
			if !strings.Contains(is.Message, part) {
				return false
			}
		}
		return is.Status == status && is.Reason == reason && is.Generation == is.generation && is.observed == is.generation
	}, func() any { return is })
	return is
}

// ClusterModules without a rollout and namespaced Modules have a condition Ready, with observedGeneration, a remedy,
// and the time of the transition.
func TestReadyConditions(t *testing.T) {
	const path = "/apis/kerb.dev/v1alpha1/namespaces/default/modules/"
	b := newBed(t)
	module := func(config string) {
		t.Helper()
		if err := b.api.Apply(path+"web", "apiVersion: kerb.dev/v1alpha1\nkind: Module\n"+
			"metadata: {name: web, namespace: default}\nspec: "+firewallOf(config)+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	module("{defaultPolicy: {ingress: allow}}")
	b.module("all", firewallOf("{defaultPolicy: {ingress: allow}}"))
	b.Eventually("the node reports", func() bool { return b.status().Status.Conditions[0].Status == "True" })
	b.controller(b.controllerConfig())
	good := b.isReady(path+"web", "True", "NoProblem")
	b.isReady(modulesPath+"all", "True", "NoProblem", "none of 1 nodes")

	module("{rules: [{direction: ingress, action: allow, src: {set: blocked}}]}")
	b.module("all", firewallOf("{rulez: []}"))
	bad := b.isReady(path+"web", "False", "NodesFailed", "n1: ", "use a ClusterModule", "ask an administrator")
	b.isReady(modulesPath+"all", "False", "NodesFailed", "1 of 1 nodes", "n1: ", "rulez", "kubectl get kerbnode n1")
	if bad.generation != good.generation+1 || bad.Transition.Before(good.Transition) {
		t.Errorf("before %+v, then %+v", good, bad)
	}
	b.hasEvent("Module", "web", "kerb-kube-controller Warning", "use a ClusterModule")
	cells := fmt.Sprint(b.api.Table(path))
	if !strings.Contains(cells, "web firewall") || !strings.Contains(cells, "False 1") {
		t.Errorf("kubectl get shows %s", cells)
	}

	module("{defaultPolicy: {ingress: allow}}")
	b.module("all", firewallOf("{defaultPolicy: {ingress: allow}}"))
	b.isReady(path+"web", "True", "NoProblem")
	b.isReady(modulesPath+"all", "True", "NoProblem")
	written := func() int { return b.counted(`resource="modules"`, `subresource="status"`, `verb="PATCH"`) }
	b.says("n2", "") // a new node changes no Module
	before := written()
	b.Eventually("it is counted", func() bool {
		var m api.ClusterModule
		b.api.Must(http.MethodGet, modulesPath+"all", nil, &m)
		return m.Status.Desired == 2
	})
	if now := written(); now != before || before == 0 {
		t.Errorf("the status of a Module was written %d times before a node was new, and %d times then", before, now-before)
	}
	if text, _ := os.ReadFile(b.log.Name()); strings.Contains(string(text), "answers 403") {
		t.Errorf("rights are missing:\n%s", text)
	}
}

func firewallOf(config string) string {
	return "{package: {name: firewall}, config: " + config + ", attach: {pods: {}}}"
}
