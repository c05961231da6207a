// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// A running pod is a service with its labels, which `kerb get services` shows; after its end the service is removed.
func (c cluster) testPod() {
	c.start(1)
	services := func() int { return strings.Count(c.do("on", "n1", "kerb", "get", "services", "-o", "name"), "\n") }
	if n := services(); n != 2 {
		c.Errorf("%d services for two pods of node n1", n)
	}
	c.delete()
	wait.Until(c, "services of pods that have ended are gone", func() bool { return services() == 0 })
}

// Pods whose first instruction sends are denied from their first packet.
func (c cluster) testLeak() {
	c.reset()
	began := time.Now()
	all := c.start(c.pods())
	c.Logf("%d pods after %v", len(all), time.Since(began).Round(100*time.Millisecond))
	c.onlyOpen(all, 0)
	c.delete()
}

// They are also denied if the agent is killed while they start: before the first, and twice later. Pods that start
// without an agent wait for it.
func (c cluster) testAgentKilled() {
	c.reset()
	all := c.create(c.pods())
	for third := range 3 {
		eventually(c, "pods start", func() bool { return c.running() >= len(all)*third/3 }, func() any { return c.get() })
		c.program("stop", "agent")
		c.Logf("the agent was killed when %d of %d pods ran", c.running(), len(all))
		c.program("start", "agent")
	}
	c.await(all, 0)
	c.onlyOpen(all, 0)
	c.delete()
}

func (c cluster) running() (n int) {
	c.Helper()
	for _, p := range c.get() {
		if p.Status.Phase == "Running" {
			n++
		}
	}
	return n
}

// After a reboot of all nodes the pods start again, and are denied from their first packet.
func (c cluster) testReboot() {
	all := c.start(c.pods())
	onEachNode(func(node string) { c.do("node", node, "stop") })
	c.reset()
	onEachNode(func(node string) { c.do("node", node, "start") })
	c.await(all, 1)
	c.onlyOpen(all, 1)
	c.delete()
}

// Uninstalling leaves nothing of Kerb on the nodes, and pods keep running. Denied packets then pass, which shows that
// they were sent all along. On the network without Kerb, packets of new pods pass before a policy that is applied as
// soon as the API server has the addresses of the pods.
func (c cluster) testUninstall() {
	c.reset()
	all := c.start(3)
	c.onlyOpen(all, 0)
	c.program("stop", "cni")
	onEachNode(func(node string) {
		c.do("on", node, "kerb-cni", "uninstall", "--conf", layout.conf, "--bin", layout.bin)
	})
	c.program("stop", "kube-node")
	c.program("stop", "agent")
	onEachNode(func(node string) {
		c.do("on", node, "kerb", "purge", "--all")
		c.do("on", node, "kerb-kube-node", "--purge")
		if left := c.left(node); left != "" {
			c.Errorf("left on node %s:\n%s", node, left)
		}
	})
	for _, p := range all {
		c.awaitPackets(c.flood(p, 0).address)
	}
	if n := c.running(); n != len(all) {
		c.Errorf("%d of %d pods run", n, len(all))
	}
	c.delete()
	c.reset()
	c.policyAfterwards()
	c.do("kubectl", "delete", "-f", "../../deploy/kubernetes/crds", "-f", "../../deploy/kubernetes/kerb-kube-node.yaml")
	c.delete()
	c.nothingLeft()
}

// policyAfterwards starts pods, drops the packets of each as soon as its address is known, and expects packets from
// before.
func (c cluster) policyAfterwards() {
	c.Helper()
	onEachNode(func(node string) {
		c.nft("kerb-"+node, `table inet afterwards {
	set denied { type ipv4_addr; }
	chain forward { type filter hook forward priority filter; ip saddr @denied counter drop; }
}`, "-f", "-")
	})
	all := c.create(c.pods())
	known := map[string]bool{}
	eventually(c, "all pods have addresses", func() bool {
		for _, p := range c.get() {
			if ip := p.Status.PodIP; ip != "" && !known[ip] && p.Metadata.Labels["app"] == "denied" {
				node := p.Spec.Selector["kubernetes.io/hostname"]
				c.nft("kerb-"+node, "", "add", "element", "inet", "afterwards", "denied", "{"+ip+"}")
				known[ip] = true
			}
		}
		return len(known) == len(all)-nodes
	}, func() any { return known })
	pods, packets := 0, 0
	for address, got := range c.arrived() {
		if known[address] {
			pods++
			packets += got["udp"] + got["tcp"]
		}
	}
	c.Logf("without Kerb, %d packets of %d of %d pods passed before the policy", packets, pods, len(known))
	if pods == 0 {
		c.Error("no packet passed before the policy: the test of leaks shows nothing")
	}
}
