// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os/exec"
	"strings"
)

// render returns the objects of the chart for the directories of the nodes.
func (c cluster) render(args ...string) string {
	c.Helper()
	out, err := exec.Command("../../out/helm", append([]string{"template", "kerb", "../../deploy/helm/kerb",
		"--include-crds", "--kube-version", "1.35.4", "--set", "image.repository=kerb.test/kerb,image.tag=kerb," +
			"image.pullPolicy=Never,cni.confDir=/var/lib/cni/net.d,cni.binDir=/var/lib/cni/bin," +
			"nri.enabled=true"}, args...)...).Output()
	if err != nil {
		c.Fatal(err)
	}
	return string(out)
}

// Nodes without Kerb get it by one apply: containers without privileges. Pods are denied from their first packet, also
// while the containers are replaced one node after the other, as in an update. Uninstalling leaves no pins, links and
// configurations, and pods keep running.
func (c cluster) testChart() {
	c.reset()
	everywhere(func(node string) {
		c.do("on", node, "ctr", "-n", "k8s.io", "images", "import", "--base-name", "kerb.test/kerb", "dist/kerb-image.tar")
	})
	c.apply(c.render())
	ready := func() {
		c.Helper()
		for _, workload := range []string{"daemonset/kerb", "deployment/kerb-kube-controller"} {
			c.do("kubectl", "-n", "kerb-system", "rollout", "status", workload, "--timeout=300s")
		}
	}
	ready()
	c.apply(modules)
	all := c.start(c.pods())
	c.onlyOpen(all, 0)
	c.do("kubectl", "-n", "kerb-system", "rollout", "restart", "daemonset/kerb")
	ready()
	c.await(all, 0)
	c.onlyOpen(all, 0)

	c.apply(c.render("--set", "uninstall=true"))
	patiently(c, "Kerb is removed from all nodes", func() bool {
		return c.initialized() == nodes
	}, func() any { return c.do("kubectl", "-n", "kerb-system", "get", "pods", "-o", "wide") })
	everywhere(func(node string) {
		left := c.do("on", node, "sh", "-c", "find /sys/fs/bpf /var/lib/kerb /var/lib/cni -name '*kerb*' ! -path "+
			"/var/lib/kerb 2>/dev/null; true")
		if left != "" {
			c.Errorf("left on node %s:\n%s", node, left)
		}
	})
	for _, p := range all {
		c.passes(c.flood(p, 0).address)
	}
	if n := c.running(); n != len(all) {
		c.Errorf("%d of %d pods run", n, len(all))
	}
	c.delete()
}

// initialized returns how many pods have removed Kerb from their nodes: no other container of them is there any more.
func (c cluster) initialized() (n int) {
	out := c.do("kubectl", "-n", "kerb-system", "get", "pods", "-l", "app.kubernetes.io/name=kerb", "-o",
		`jsonpath={range .items[*]}{.spec.initContainers[*].name} {.status.conditions[?(@.type=="Initialized")].status}`+
			`{"\n"}{end}`)
	for line := range strings.Lines(out) {
		if line == "cni purge True\n" {
			n++
		}
	}
	return n
}
