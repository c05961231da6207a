// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

// ready sets the condition Ready of a pod, as the kubelet does.
func (p *pod) ready(status string) {
	p.bed.T.Helper()
	if err := p.bed.api.Apply(podsPath+"/"+p.Name+"/status", fmt.Sprintf("apiVersion: v1\nkind: Pod\nstatus: "+
		"{phase: Running, conditions: [{type: Ready, status: %q}]}\n", status)); err != nil {
		p.bed.T.Fatal(err)
	}
}

// A node rolls back a version with which pods that it selects are no longer Ready, but not because of other pods. The
// report names the pod. With another limit the node retries.
func TestReadiness(t *testing.T) {
	b := newBed(t)
	const name, previous = "guard", "package: {name: firewall}, config: {defaultPolicy: {ingress: allow}}"
	const selects = "attach: {pods: {podSelector: {matchLabels: {app: web}}}}"
	rollout := func(limits string) {
		t.Helper()
		b.module(name, "{package: {name: firewall}, config: {defaultPolicy: {ingress: deny}}, "+selects+
			", rollout: {percent: 0, nodes: [n1], soakSeconds: 3600, "+limits+", previous: {"+previous+"}}}")
	}
	runs := func(policy string) bool {
		var m v1.Module
		err := b.Get("/v1/modules/"+name, &m)
		of, _ := m.Spec.Config["defaultPolicy"].(map[string]any)
		return err == nil && of["ingress"] == policy
	}
	b.module(name, "{"+previous+", "+selects+"}")
	web, never, gone := b.pod("web", map[string]string{"app": "web"}), b.pod("never", map[string]string{"app": "web"}),
		b.pod("gone", map[string]string{"app": "web"})
	other := b.pod("other", map[string]string{"app": "db"})
	for _, p := range []*pod{web, gone, other} {
		p.ready("True")
	}
	never.ready("False")
	web.await(name)

	rollout("maxUnready: 0")
	b.Eventually("the new version runs", func() bool { return runs("deny") })
	gone.delete()
	other.ready("False")
	const later = "later"
	b.module(later, counter("app: cache"))
	b.Eventually("what comes later is applied", func() bool { return b.Get("/v1/modules/"+later, &v1.Module{}) == nil })
	if !runs("deny") {
		t.Fatal("the node rolled back because of unrelated pods")
	}
	web.ready("False")
	b.Eventually("the node goes back", func() bool { return runs("allow") })
	b.Eventually("it says why", func() bool {
		r := b.reportOf(name)
		return r.Reason == api.RolledBack && strings.Contains(r.Message, "of the 2 pods") &&
			strings.Contains(r.Message, "1 are not, among them default/web")
	})
	web.ready("True")
	rollout("maxUnready: 1")
	b.Eventually("with another limit, the version is tried again", func() bool { return runs("deny") })
}

// A node rolls back a version that costs much more time per packet, and keeps one within the limit.
func TestCost(t *testing.T) {
	b := newBed(t)
	const name, attach = "watch", "attach: {pods: {podSelector: {matchLabels: {app: web}}}}"
	runs := func(is string) bool {
		var m v1.Module
		return b.Get("/v1/modules/"+name, &m) == nil && m.Spec.Package == is
	}
	cost := func() bool {
		var m v1.Module
		return b.Get("/v1/modules/"+name, &m) == nil && m.Status.Cost != nil && len(m.Status.Cost.Latency) > 0
	}
	rollout := func(limit int) {
		t.Helper()
		b.module(name, fmt.Sprintf("{package: {name: firewall}, config: {defaultPolicy: {egress: deny}}, %s, rollout: "+
			"{percent: 0, nodes: [n1], maxCost: %d, previous: {package: {name: counter}}}}", attach, limit))
	}
	b.module(name, "{package: {name: counter}, "+attach+"}")
	b.pod("web", map[string]string{"app": "web"}).await(name)
	b.Eventually("the agent has measured the counter", cost)
	rollout(1)
	b.Eventually("the node goes back", func() bool {
		return b.reportOf(name).Reason == api.RolledBack && runs("counter")
	})
	if text := b.reportOf(name).Message; !strings.Contains(text, "to the slowest kind of packet") {
		t.Errorf("it says %s", text)
	}
	rollout(1_000_000)
	b.Eventually("with another limit, the firewall runs and is measured", func() bool {
		return runs("firewall") && cost()
	})
	b.Eventually("the report has gone", func() bool { return b.status().Status.Conditions[0].Status == "True" })
	if !runs("firewall") {
		t.Error("the node rolls back a version within the limit")
	}
}
