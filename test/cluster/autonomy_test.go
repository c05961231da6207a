// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// away returns the minimum time for which the API server is stopped: AUTONOMY=10m.
func (c cluster) away() time.Duration {
	d, err := time.ParseDuration(cmp.Or(os.Getenv("AUTONOMY"), "0s"))
	if err != nil {
		c.Fatal("AUTONOMY: ", err)
	}
	return d
}

// Without the API server all pods keep their modules, regardless of which programs of the node are killed and started.
// If the runtime reports labels, a new pod is denied from its first packet, and the service of a deleted pod is
// removed. A pod whose sandbox has ended gets another one, denied from its first packet. When the API server returns,
// everything is unchanged.
func (c cluster) testAutonomy() {
	c.reset()
	all := c.start(c.number("PODS", 3))
	flow := c.flow("n1")
	c.saved(all)
	c.do("api", "stop")
	began := time.Now()
	reported := min(nodes, 2) // by NRI
	more := append(slices.Clone(all), c.static("denied", reported)...)
	c.await(more, 0)
	c.onlyOpen(more, 0)
	c.endStatic("denied", reported)
	rounds := 0
	for ; rounds == 0 || time.Since(began) < c.away(); rounds++ {
		for _, name := range []string{"agent", "kube-node", "containerd", "kube-proxy", "cni"} {
			c.program("stop", name)
			c.program("start", name)
			c.await(all, 0)
			c.onlyOpen(all, 0)
		}
		if time.Since(began) < c.away() {
			time.Sleep(10 * time.Second) // in which kerb-kube-node saves its state
		}
	}
	flow.checkComplete(c)
	onEachNode(c.endSandboxes)
	c.await(all, 1)
	c.onlyOpen(all, 1)
	lasted := time.Since(began).Round(time.Second)
	c.Logf("without the API server for %v; each program of a node was killed %d times", lasted, rounds)
	c.do("api", "start")
	c.nodesReady()
	if n := c.running(); n != len(all)+1 {
		c.Errorf("%d of %d pods run", n, len(all)+1)
	}
	c.await(all, 1)
	c.onlyOpen(all, 1)
	c.delete()
}

// saved waits until a start without the API server would know the pods.
func (c cluster) saved(all []pod) {
	c.Helper()
	wait.Until(c, "kerb-kube-node has saved the pods, which it does every 10 s", func() bool {
		return !slices.ContainsFunc(all, func(p pod) bool {
			saved, _ := os.ReadFile(runDir + "/" + p.node + "/lib/kerb-kube/kubernetes.json")
			return !bytes.Contains(saved, []byte(p.uid))
		})
	})
}

func (c cluster) nodesReady() {
	c.Helper()
	eventually(c, "the nodes are ready", func() bool {
		_, err := c.try("", "kubectl", "wait", "--for=condition=Ready", "node", "--all", "--timeout=1s")
		return err == nil
	}, func() any { return c.do("kubectl", "get", "nodes") })
}

// static starts a static pod on each of the first n nodes, which the kubelet reads from a file, and returns them when
// all have sent for the first time.
func (c cluster) static(app string, n int) (all []pod) {
	c.Helper()
	for i := range n {
		node := fmt.Sprint("n", i+1)
		// Written elsewhere and renamed, since the kubelet might read an incomplete file.
		err := os.WriteFile(runDir+"/static", []byte(c.manifest("static-"+app, app, node, "flood", floodPort)), 0o600)
		if err == nil {
			err = os.Rename(runDir+"/static", c.staticFile(node, app))
		}
		if err != nil {
			c.Fatal(err)
		}
	}
	eventually(c, "the kubelets start pods", func() bool {
		all = nil
		for i := range n {
			node := fmt.Sprint("n", i+1)
			dirs, _ := filepath.Glob(fmt.Sprintf(runDir+"/%s/log/pods/default_%s-static-%s-%[1]s_*", node, c.test(), app))
			for _, dir := range dirs {
				name, uid, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), "default_"), "_")
				all = append(all, pod{name, uid, node, app == "denied"})
			}
		}
		return len(all) == n
	}, func() any { return all })
	return all
}

func (c cluster) staticFile(node, app string) string {
	return runDir + "/" + node + "/lib/kubelet/manifests/" + app + ".json"
}

// endStatic ends static pods.
func (c cluster) endStatic(app string, n int) {
	c.Helper()
	before := c.attached()
	for i := range n {
		if err := os.Remove(c.staticFile(fmt.Sprint("n", i+1), app)); err != nil {
			c.Fatal(err)
		}
	}
	if app == "denied" {
		eventually(c, "the pods end", func() bool { return c.attached() == before-n }, func() any { return c.attached() })
	}
}

// Nodes that start without an API server start static pods, denied from their first packet.
func (c cluster) testRebootAlone() {
	c.reset()
	all := append(c.static("denied", nodes), c.static("open", nodes)...)
	c.await(all, 0)
	c.onlyOpen(all, 0)
	wait.Until(c, "kerb-kube-node has saved the pods, which it does every 10 s", func() bool {
		return !slices.ContainsFunc(all, func(p pod) bool {
			saved, _ := os.ReadFile(runDir + "/" + p.node + "/lib/kerb-kube/kubernetes.json")
			return !bytes.Contains(saved, []byte(p.name))
		})
	})
	c.do("api", "stop")
	onEachNode(func(node string) { c.do("node", node, "stop") })
	c.reset()
	onEachNode(func(node string) { c.do("node", node, "start") })
	c.await(all, 1)
	c.onlyOpen(all, 1)
	c.do("api", "start")
	c.nodesReady()
	c.await(all, 1)
	c.onlyOpen(all, 1)
	c.endStatic("denied", nodes)
	c.endStatic("open", nodes)
	c.delete()
}

// A node whose link to the API server loses a third of the packets receives changes and pods. A node without a link
// keeps its state, whichever program on it ends, and gets the changes when the link is back. The flow does not use the
// link.
func (c cluster) testLink() {
	c.reset()
	all := c.start(3)
	flow := c.flow("n1")
	c.saved(all)
	c.link("numgen random mod 100 < 30 drop")
	c.apply(linkCount)
	c.awaitServicesWithModule("link", nodes)
	for i := range nodes {
		c.create1(c.manifest(fmt.Sprint("late-", i), "denied", fmt.Sprint("n", i+1), "flood", floodPort))
	}
	for _, o := range c.get() {
		if strings.Contains(o.Metadata.Name, "-late-") {
			all = append(all, pod{o.Metadata.Name, o.Metadata.UID, o.Spec.Selector["kubernetes.io/hostname"], true})
		}
	}
	c.await(all, 0)
	c.onlyOpen(all, 0)
	c.saved(all)

	c.link("drop")
	began := time.Now()
	c.do("kubectl", "delete", "clustermodule", "link")
	for _, name := range []string{"agent", "kube-node", "containerd"} {
		c.program("stop", name)
		c.program("start", name)
		c.await(all, 0)
		c.onlyOpen(all, 0)
	}
	c.awaitServicesWithModule("link", nodes)
	time.Sleep(time.Until(began.Add(min(c.away(), 4*time.Minute)))) // after five the API server deletes the pods
	c.link("accept")
	lasted, back := time.Since(began), time.Now()
	c.awaitServicesWithModule("link", 0)
	c.Logf("after %v without a link, all nodes had the change within %v", lasted.Round(time.Second),
		time.Since(back).Round(100*time.Millisecond))
	c.nodesReady()
	c.await(all, 0)
	c.onlyOpen(all, 0)
	flow.checkComplete(c)
	onEachNode(func(node string) { c.nft("kerb-"+node, "", "delete", "table", "inet", "link") })
	c.delete()
}

const linkCount = `{"apiVersion": "kerb.dev/v1alpha1", "kind": "ClusterModule", "metadata": {"name": "link"}, "spec": {
  "package": {"name": "counter"}, "attach": {"pods": {"podSelector": {"matchLabels": {"app": "open"}}}}}}`

// link sets the verdict on packets between the nodes and the API server, in both directions.
func (c cluster) link(verdict string) {
	c.Helper()
	onEachNode(func(node string) {
		c.nft("kerb-"+node, fmt.Sprintf(`add table inet link
delete table inet link
table inet link {
	chain in { type filter hook input priority filter; tcp sport 6443 %[1]s; }
	chain out { type filter hook output priority filter; tcp dport 6443 %[1]s; }
}`, verdict), "-f", "-")
	})
}

// awaitServicesWithModule waits until this many services have a module.
func (c cluster) awaitServicesWithModule(module string, services int) {
	c.Helper()
	eventually(c, fmt.Sprintf("%d services have module %s", services, module), func() bool {
		return c.servicesWithModule(module) == services
	}, func() any { return c.servicesWithModule(module) })
}

// endSandboxes kills the sandboxes of all pods of a node. The kubelet replaces them.
func (c cluster) endSandboxes(node string) {
	ctr := func(args ...string) []string {
		return strings.Fields(c.do(append([]string{"on", node, "ctr", "-n", "k8s.io"}, args...)...))
	}
	running := ctr("tasks", "ls", "-q")
	for _, id := range ctr("containers", "ls", "-q", `labels."io.cri-containerd.kind"==sandbox`) {
		if slices.Contains(running, id) {
			ctr("tasks", "kill", "-s", "SIGKILL", id)
		}
	}
}
