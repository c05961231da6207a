// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// second is the first node with containerd 2. The third node has Debian's containerd, without NRI and CNI 1.1.
const second, third = "n1", "n3"

// condition returns a condition of a Node or KerbNode.
func (c cluster) condition(kind, node, name string) (out api.Condition) {
	c.Helper()
	for _, of := range decode[struct {
		Status struct{ Conditions []api.Condition }
	}](c, "kubectl", "get", kind, node, "-o", "json").Status.Conditions {
		if of.Type == name {
			out = of
		}
	}
	return out
}

// awaitNodeReady waits until the condition Ready of a Node has this status and message.
func (c cluster) awaitNodeReady(node, status, message string) {
	c.Helper()
	eventually(c, node+" has Ready: "+status, func() bool {
		got := c.condition("node", node, "Ready")
		return got.Status == status && strings.Contains(got.Message, message)
	}, func() any { return c.condition("node", node, "Ready") })
}

// containerd 2 calls STATUS of CNI 1.1: a Node is not Ready while no pod could be protected on it, because the agent
// does not run or has no module for pending pods.
func (c cluster) testStatus() {
	c.do("on", second, "test/cluster/node", "stop", "agent")
	if nodes >= 3 {
		c.do("on", third, "test/cluster/node", "stop", "agent")
	}
	c.awaitNodeReady(second, "False", "the agent does not answer on /run/kerb/kerb.sock")
	if nodes >= 3 {
		if got := c.condition("node", third, "Ready"); got.Status != "True" {
			c.Errorf("containerd of Debian calls no STATUS, and its node is %+v", got)
		}
		c.do("on", third, "test/cluster/node", "start", "agent")
	}
	c.do("on", second, "test/cluster/node", "start", "agent")
	c.awaitNodeReady(second, "True", "")

	c.do("on", second, "test/cluster/node", "stop", "kube-node")
	c.do("on", second, "sh", "-c", "kerb get module kubernetes-pending -o yaml | kerb delete --owner kubernetes -f -")
	c.awaitNodeReady(second, "False", "kerb-kube-node applies it at its first sync")
	c.do("on", second, "test/cluster/node", "start", "kube-node")
	c.awaitNodeReady(second, "True", "")
}

// GC of CNI 1.1 removes the state of pods whose DEL the agent has missed. No version of containerd calls it: cnitool
// does, without valid attachments.
func (c cluster) testGC() {
	c.start(1)
	services := func() string { return c.do("on", second, "kerb", "get", "services", "-o", "name") }
	c.do("on", second, "test/cluster/node", "stop", "kube-node") // which would remove them, too
	c.do("on", second, "test/cluster/node", "stop", "agent")
	c.delete()
	c.do("on", second, "test/cluster/node", "start", "agent")
	wait.Until(c, "the agent answers", func() bool {
		_, err := c.try("", "on", second, "kerb", "get", "services", "-o", "name")
		return err == nil
	})
	if n := strings.Count(services(), "\n"); n != 2 {
		c.Errorf("%d services are left of two pods", n)
	}
	c.do("on", second, "env", "NETCONFPATH="+layout.conf, "CNI_PATH="+layout.bin, "cnitool", "gc", "pods", "/")
	if left := services(); left != "" {
		c.Errorf("GC has left %s", left)
	}
	c.do("on", second, "test/cluster/node", "start", "kube-node")
	c.awaitNodeReady(second, "True", "")
}

// With NRI no container starts before its pod has its modules, which process its first packet. If a pod cannot have
// them, its sandbox fails with the reason. A pod that requires the plugin starts only while the plugin is connected.
func (c cluster) testRuntime() {
	wait.Until(c, "the node reports its runtime", func() bool {
		got := c.condition("kerbnode", second, "RuntimeLabels")
		return got.Status == "True" && strings.Contains(got.Message, "containerd")
	}, func() any { return c.condition("kerbnode", second, "RuntimeLabels") })
	f := c.flow(second)
	f.checkComplete(c)
	if f.first != 0 {
		c.Errorf("the first datagram that arrived is number %d", f.first)
	}
	c.delete()

	c.apply(`{"apiVersion": "kerb.dev/v1alpha1", "kind": "ClusterModule", "metadata": {"name": "wrong"}, "spec": {
  "package": {"name": "counter"}, "config": {"no": "such"}, "attach": {"pods": {"podSelector": {"matchLabels": {
  "app": "wrong"}}}}}}`)
	wait.Until(c, "the node refuses the module", func() bool {
		return strings.Contains(c.do("kubectl", "get", "kerbnode", second, "-o", "yaml"), "name: wrong")
	})
	c.create1(c.manifest("wrong", "wrong", second, "flood", floodPort))
	c.event("wrong", "module wrong, which selects it, does not run on this node")
	c.do("kubectl", "delete", "clustermodule", "wrong")
	eventually(c, "the pod runs", func() bool { return c.running() == 1 }, func() any { return c.get() })
	c.delete()

	c.do("on", second, "test/cluster/node", "stop", "kube-node")
	c.create1(strings.Replace(c.manifest("required", "open", second, "flood", floodPort), `"metadata": {`,
		`"metadata": {"annotations": {"required-plugins.noderesource.dev": "[kerb]"}, `, 1))
	c.event("required", `required plugin \"kerb\" not present`)
	c.do("on", second, "test/cluster/node", "start", "kube-node")
	eventually(c, "the pod runs", func() bool { return c.running() == 1 }, func() any { return c.get() })
	c.delete()
}

func (c cluster) create1(manifest string) {
	c.Helper()
	if _, err := c.try(manifest, "kubectl", "create", "-f", "-"); err != nil {
		c.Fatal(err)
	}
}

// event waits for an event of the kubelet about a pod.
func (c cluster) event(name, message string) {
	c.Helper()
	events := func() string {
		return c.do("kubectl", "get", "events", "-o", `jsonpath={range .items[*]}{.message}{"\n"}{end}`, "--field-selector",
			fmt.Sprintf("involvedObject.name=%s-%s", c.test(), name))
	}
	eventually(c, "an event of "+name+" says "+message, func() bool {
		return strings.Contains(strings.ReplaceAll(events(), `\`, ""), strings.ReplaceAll(message, `\`, ""))
	}, func() any { return events() })
}
