// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// All on one node, whose agent takes longer to start than most of the tests.
func TestPlugin(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	t.Run("NotReady", func(t *testing.T) { c.testNotReady(t) })
	c.applyAs(names.Owner, names.PendingModule(), node.Module("policy", "firewall", "app=web", denyAll()))
	for _, primary := range []string{"bridge", "ptp"} {
		t.Run("Verbs/"+primary, func(t *testing.T) { c.testVerbs(t, primary) })
	}
	t.Run("Version", func(t *testing.T) { c.testVersion(t) })
	t.Run("Add", func(t *testing.T) { c.testAdd(t) })
	t.Run("Sandboxes", func(t *testing.T) { c.testSandboxes(t) })
	t.Run("GC", func(t *testing.T) { c.testGC(t) })
	t.Run("Refusals", func(t *testing.T) { c.testRefusals(t) })
	t.Run("Killed", func(t *testing.T) { c.testKilled(t) })
	t.Run("AgentAway", func(t *testing.T) { c.testAgentAway(t) })
	r := c.receiver()
	for _, primary := range []string{"bridge", "ptp"} {
		t.Run("Leak/"+primary, func(t *testing.T) { c.testLeak(t, r, primary) })
	}
}

// Before the first sync of kerb-kube-node no pod starts, the runtime learns why, and nothing is left.
func (c *cluster) testNotReady(t *testing.T) {
	c = c.in(t)
	p := c.sandbox("early")
	c.veth(p)
	for command, code := range map[string]uint{"STATUS": 50, "ADD": 100} {
		got := c.call(p, execution{command: command, conf: c.conf(c.Socket())})
		if got.Code != code || !strings.Contains(got.Msg, "kerb-kube-node applies it at its first sync") {
			t.Errorf("%s: %+v", command, got)
		}
	}
	if s := c.service(p); s != nil {
		t.Errorf("an ADD that failed has left %+v", s)
	}
}

// versions of CNI that kerb-cni speaks.
var versions = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// ADD makes a pod a service whose chains deny, prints what the plugins before have printed, and may be repeated.
func (c *cluster) testAdd(t *testing.T) {
	c = c.in(t)
	for _, version := range versions {
		p := c.sandbox("v" + strings.ReplaceAll(version, ".", ""))
		c.veth(p)
		conf := strings.Replace(c.conf(c.Socket()), "1.1.0", version, 1)
		for range 2 { // a runtime may repeat what it did not see end
			if got := c.call(p, execution{command: "ADD", conf: conf}); got.status != 0 || got.stdout != prevResult+"\n" {
				t.Fatalf("ADD of version %s: %+v", version, got)
			}
		}
		s := c.service(p)
		want := map[string]string{names.LabelNamespace: "shop", names.LabelPod: p.Name, names.LabelPending: "true",
			names.LabelAttachment: names.Attachment{Network: "pods", ContainerID: p.container, Interface: "eth0"}.String()}
		d := cmp.Diff(want, s.Metadata.Labels)
		if d != "" || s.Metadata.Owner != names.OwnerPods || s.Spec.Netns != p.netns {
			t.Errorf("%+v\n%s", s, d)
		}
		c.admit(p, map[string]string{"app": "web"})
		// Labels that are known stay: else nothing would replace those of a pending pod.
		got := c.call(p, execution{command: "ADD", conf: conf})
		if got.status != 0 || names.IsPending(c.service(p).Metadata.Labels) {
			t.Errorf("ADD of an admitted pod: %+v", got)
		}
	}
}

// A later sandbox of a pod replaces the service of the earlier one, whose DEL comes late, and denies until the labels
// are known again. A second interface of a sandbox shares the service, which is that of the first.
func (c *cluster) testSandboxes(t *testing.T) {
	c = c.in(t)
	first, second := c.sandbox("first"), c.sandbox("second")
	second.Pod = first.Pod
	c.veth(first)
	c.veth(&pod{Pod: names.Pod{Name: "second"}, netns: second.netns})
	must := func(p *pod, command, ifname string) {
		t.Helper()
		e := execution{command: command, conf: c.conf(c.Socket()), env: map[string]string{"CNI_IFNAME": ifname}}
		if got := c.call(p, e); got.status != 0 || got.stderr != "" {
			t.Fatalf("%s: %+v", command, got)
		}
	}
	must(first, "ADD", "eth0")
	c.admit(first, map[string]string{"app": "web"})
	must(second, "ADD", "eth0")
	must(first, "DEL", "eth0")
	if s := c.service(second); s == nil || s.Spec.Netns != second.netns || !names.IsPending(s.Metadata.Labels) {
		t.Fatalf("after ADD of the second and DEL of the first sandbox: %+v", s)
	}
	run(t, "ip", "-n", filepath.Base(second.netns), "link", "set", "eth0", "name", "net1")
	must(second, "ADD", "net1")
	must(second, "DEL", "net1")
	if s := c.service(second); s == nil {
		t.Error("DEL of the second interface has removed the service of the first")
	}
	must(second, "DEL", "eth0")
	if s := c.service(second); s != nil {
		t.Errorf("DEL has left %+v", s)
	}

	// one that kerb-kube-node has adopted: CHECK and DEL know it, and no ADD of another interface changes it
	adopted := names.Admit(names.PodLabels(second.Pod, names.Adopted(second.container)), map[string]string{"app": "web"})
	service := v1.Service{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindService},
		Metadata: v1.ObjectMeta{Name: second.Service(), Labels: adopted}, Spec: v1.ServiceSpec{Netns: second.netns}}
	c.applyAs(names.OwnerPods, service)
	must(second, "ADD", "net1")
	must(second, "CHECK", "net1")
	must(second, "DEL", "net1")
	must(first, "DEL", "eth0")
	if s := c.service(second); s == nil || !maps.Equal(s.Metadata.Labels, adopted) {
		t.Errorf("ADD and DEL of other interfaces, and of another sandbox, have left %+v", s)
	}
	must(second, "DEL", "eth0")
	if s := c.service(second); s != nil {
		t.Errorf("DEL has left an adopted service: %+v", s)
	}
}

// GC deletes services of its own network that the runtime does not know, and no others.
func (c *cluster) testGC(t *testing.T) {
	c = c.in(t)
	kept, stale, other := c.sandbox("kept"), c.sandbox("stale"), c.sandbox("other")
	for p, network := range map[*pod]string{kept: "pods", stale: "pods", other: "storage"} {
		c.veth(p)
		conf := strings.Replace(c.conf(c.Socket()), `"pods"`, fmt.Sprintf("%q", network), 1)
		if got := c.call(p, execution{command: "ADD", conf: conf}); got.status != 0 {
			t.Fatalf("ADD: %+v", got)
		}
	}
	adopted := c.sandbox("adopted")
	c.applyAs(names.OwnerPods, v1.Service{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindService},
		Metadata: v1.ObjectMeta{Name: adopted.Service(), Labels: names.PodLabels(adopted.Pod,
			names.Adopted(adopted.container))}, Spec: v1.ServiceSpec{Netns: adopted.netns}})
	user := c.Host("user")
	c.Apply(map[string]any{"apiVersion": "kerb.dev/v1alpha1", "kind": "Service", "metadata": map[string]any{"name": "user",
		"labels": c.service(stale).Metadata.Labels}, "spec": map[string]any{"netns": user.Path()}})
	valid, _ := json.Marshal([]map[string]string{{"containerID": kept.container, "ifname": "eth0"}})
	conf := strings.Replace(c.conf(c.Socket()), `"prevResult"`,
		fmt.Sprintf(`"cni.dev/valid-attachments": %s, "x"`, valid), 1)
	if got := c.call(kept, execution{command: "GC", conf: conf}); got.status != 0 {
		t.Fatalf("GC: %+v", got)
	}
	if c.service(kept) == nil || c.service(stale) != nil || c.service(other) == nil || c.service(adopted) == nil {
		t.Errorf("kept %v, stale %v, other network %v, adopted %v", c.service(kept), c.service(stale), c.service(other),
			c.service(adopted))
	}
	c.Must(http.MethodGet, "/v1/services/user", nil, nil)
}
