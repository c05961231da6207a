// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"net/http"
	"syscall"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// A node runs the version of its side of a rollout: as a canary, when a wave includes it, and after undo. Waves without
// it change nothing on the node, and without the API server it keeps its version.
func TestRollout(t *testing.T) {
	b := newBed(t)
	const name = "guard"
	first := 0 // percentage from which n1 is in the rollout
	for m := (api.Module{Metadata: api.ObjectMeta{Name: name}}); ; first++ {
		m.Spec.Rollout = &api.Rollout{Percent: &first}
		if m.Updated("n1") {
			break
		}
	}
	config := func(policy string) string {
		return "package: {name: firewall}, config: {defaultPolicy: {ingress: " + policy + "}}"
	}
	rollout := func(percent int, nodes string) {
		b.module(name, fmt.Sprintf("{%s, attach: {pods: {}}, rollout: {percent: %d, nodes: [%s], previous: {%s}}}",
			config("deny"), percent, nodes, config("allow")))
	}
	await := func(what, policy string) {
		t.Helper()
		b.Eventually(what, func() bool {
			var m v1.Module
			err := b.Get("/v1/modules/"+name, &m)
			of, _ := m.Spec.Config["defaultPolicy"].(map[string]any)
			return err == nil && of["ingress"] == policy
		})
	}

	b.module(name, "{"+config("allow")+", attach: {pods: {}}}")
	await("the first version runs", "allow")
	changes := b.changes()
	rollout(0, "n2, n3")
	rollout(first-1, "n2")
	b.module("after", counter("app: db"))
	b.Eventually("what came after the waves is applied", func() bool {
		return b.Get("/v1/modules/after", &v1.Module{}) == nil
	})
	await("a wave that does not reach the node", "allow")
	if now := b.changes(); now != changes+1 {
		t.Errorf("%d changes of the agent, want that of the other module alone", now-changes)
	}

	rollout(0, "n2, n1")
	await("the node is a canary", "deny")
	rollout(0, "")
	await("the rollout is undone", "allow")
	rollout(first, "")
	await("a wave reaches the node", "deny")
	rollout(0, "")
	await("the rollout is undone again", "allow")

	b.stop(syscall.SIGTERM) // writes its snapshot
	b.api.Hang()
	b.Must(http.MethodDelete, "/v1/modules/"+name+"?owner="+names.Owner, nil, nil)
	b.start()
	await("a start without the API server", "allow")
	b.api.Resume()
	rollout(100, "")
	await("the node catches up", "deny")
}
