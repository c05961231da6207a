// SPDX-License-Identifier: Apache-2.0

// Package cluster tests Kerb on a real Kubernetes cluster: API server, controllers, kubelets and containerd, in
// namespaces of this machine. `make test-kube` runs it.
package cluster

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// cluster is the only test cluster of this machine.
type cluster struct{ *testing.T }

// All tests use one cluster, whose start takes longer than most of them. Each subtest but the last begins with Kerb on
// the nodes.
func TestCluster(t *testing.T) {
	if os.Getenv("KERB_TEST_KUBE") == "" {
		t.Skip("needs a Kubernetes cluster: make test-kube")
	}
	c := up(t)
	c.count()
	c.apply(modules)
	for _, step := range []struct {
		name string
		test func(cluster)
	}{
		{"Pod", cluster.testPod}, {"Status", cluster.testStatus}, {"GC", cluster.testGC}, {"Runtime", cluster.testRuntime},
		{"Leak", cluster.testLeak}, {"AgentKilled", cluster.testAgentKilled}, {"Accelerator", cluster.testAccelerator},
		{"Autonomy", cluster.testAutonomy}, {"Link", cluster.testLink}, {"Reboot", cluster.testReboot},
		{"RebootAlone", cluster.testRebootAlone}, {"Uninstall", cluster.testUninstall}, {"Chart", cluster.testChart},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.test(cluster{t}) }) {
			return // the cluster is not in the state that the next one expects
		}
	}
}

// up starts the cluster, which ends with the test.
func up(t *testing.T) cluster {
	c := cluster{t}
	if layout.conf == "" {
		t.Fatalf("LAYOUT=%s is none of %q", os.Getenv("LAYOUT"), slices.Sorted(maps.Keys(layouts)))
	}
	if _, err := os.Stat(runDir); err == nil {
		t.Fatal("a cluster is up, or an earlier one has left " + runDir + ": make kube-down")
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.logs()
		}
		if os.Getenv("KEEP") == "" {
			c.do("down")
		}
	})
	nodes = c.number("NODES", 3)
	c.do("up", strconv.Itoa(nodes))
	return c
}

// nodes is the number of nodes: n1, n2, ...
var nodes int

// layouts are the directories of networks and plugins in distributions of Kubernetes: LAYOUT=k3s or kubeadm.
var layouts = map[string]struct{ conf, bin string }{
	"":        {"/var/lib/cni/net.d", "/var/lib/cni/bin"},
	"k3s":     {"/var/lib/rancher/k3s/agent/etc/cni/net.d", "/var/lib/rancher/k3s/data/cni"},
	"kubeadm": {"/etc/cni/net.d", "/opt/cni/bin"},
}

var layout = layouts[os.Getenv("LAYOUT")]

// onEachNode calls f for each node.
func onEachNode(f func(node string)) {
	for i := range nodes {
		f(fmt.Sprint("n", i+1))
	}
}

const modules = `{"apiVersion": "kerb.dev/v1alpha1", "kind": "ClusterModule", "metadata": {"name": "deny"}, "spec": {
  "package": {"name": "firewall"}, "config": {"defaultPolicy": {"ingress": "deny", "egress": "deny"}},
  "attach": {"pods": {"podSelector": {"matchLabels": {"app": "denied"}}}}}}
{"apiVersion": "kerb.dev/v1alpha1", "kind": "ClusterModule", "metadata": {"name": "count"}, "spec": {
  "package": {"name": "counter"}, "attach": {"pods": {"podSelector": {"matchLabels": {"app": "flow"}}}}}}`

// try executes test/cluster/cluster.
func (c cluster) try(input string, args ...string) (string, error) {
	cmd := exec.Command("./cluster", args...)
	cmd.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("cluster %q: %w: %s%s", args, err, &stdout, &stderr)
	}
	return stdout.String(), nil
}

func (c cluster) do(args ...string) string {
	c.Helper()
	out, err := c.try("", args...)
	if err != nil {
		c.Fatal(err)
	}
	return out
}

// decode is do, with output in JSON.
func decode[T any](c cluster, args ...string) (out T) {
	c.Helper()
	if err := json.Unmarshal([]byte(c.do(args...)), &out); err != nil {
		c.Fatalf("%q: %v", args, err)
	}
	return out
}

func (c cluster) apply(text string) {
	c.Helper()
	if _, err := c.try(text, "kubectl", "apply", "-f", "-"); err != nil {
		c.Fatal(err)
	}
}

// program starts or kills a program on all nodes.
func (c cluster) program(verb, name string) {
	c.Helper()
	onEachNode(func(node string) { c.do("on", node, "test/cluster/node", verb, name) })
}

const runDir = "../../out/cluster/run"

// logs prints the ends of all logs.
func (c cluster) logs() {
	files, _ := filepath.Glob(runDir + "/*.log")
	more, _ := filepath.Glob(runDir + "/*/log/*.log")
	for _, file := range append(files, more...) {
		text, _ := os.ReadFile(file)
		c.Logf("%s:\n%s", file, text[max(0, len(text)-3000):])
	}
	events, _ := c.try("", "kubectl", "get", "events", "-A")
	c.Log(events[max(0, len(events)-6000):])
}

// pods returns how many denied pods the tests start.
func (c cluster) pods() int { return c.number("PODS", 20) }

// number returns the value of an environment variable, or a default.
func (c cluster) number(variable string, otherwise int) int {
	n, err := strconv.Atoi(cmp.Or(os.Getenv(variable), strconv.Itoa(otherwise)))
	if err != nil {
		c.Fatal(variable, ": ", err)
	}
	return n
}

// pod is a pod that floods the sink.
type pod struct {
	name, uid, node string
	denied          bool // by its label: app=denied or app=open
}

// start creates pods that flood the sink from their first instruction on, n denied ones and on each node an open one,
// and returns them when all have sent.
func (c cluster) start(n int) []pod {
	c.Helper()
	all := c.create(n)
	c.await(all, 0)
	return all
}

func (c cluster) create(n int) (all []pod) {
	c.Helper()
	var list strings.Builder
	for i := range n {
		list.WriteString(c.manifest(fmt.Sprint("denied-", i), "denied", fmt.Sprint("n", i%nodes+1), "flood", floodPort))
	}
	onEachNode(func(node string) { list.WriteString(c.manifest("open-"+node, "open", node, "flood", floodPort)) })
	if _, err := c.try(list.String(), "kubectl", "create", "-f", "-"); err != nil {
		c.Fatal(err)
	}
	for _, p := range c.get() {
		all = append(all, pod{p.Metadata.Name, p.Metadata.UID, p.Spec.Selector["kubernetes.io/hostname"],
			p.Metadata.Labels["app"] == "denied"})
	}
	return all
}

// manifest returns a pod of a node that sends to a port of the sink, at a rate that two CPUs can handle for twenty
// pods.
func (c cluster) manifest(name, app, node, how, port string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "%s-%s", "labels": {"app": %q, "test": %q}},
  "spec": {"nodeSelector": {"kubernetes.io/hostname": %q}, "automountServiceAccountToken": false, "dnsPolicy": "Default",
  "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "kerb.test/pod:1", "imagePullPolicy": "Never",
  "args": [%q, "172.30.0.99:%s", %q]}]}}`, c.test(), name, app, c.test(), node, how, port, c.pace())
}

// pace returns the interval between packets of a pod.
func (c cluster) pace() string { return fmt.Sprintf("%dms", max(5, c.pods()/4)) }

// test returns the name of the subtest, for objects of the cluster.
func (c cluster) test() string {
	_, name, _ := strings.Cut(c.Name(), "/")
	return strings.ToLower(name)
}

// object is a pod in the API server.
type object struct {
	Metadata struct {
		Name, UID string
		Labels    map[string]string
	}
	Spec struct {
		Selector map[string]string `json:"nodeSelector"`
	}
	Status struct{ Phase, PodIP string }
}

// get returns the pods of the test.
func (c cluster) get() []object {
	c.Helper()
	return decode[struct{ Items []object }](c, "kubectl", "get", "pods", "-l", "test="+c.test(), "-o", "json").Items
}

// flood is the last output of a container.
type flood struct {
	address         string
	datagrams, syns int
}

// flood returns what the container of a pod has sent; that of the first sandbox has number 0.
func (c cluster) flood(p pod, container int) (f flood) {
	text, _ := os.ReadFile(fmt.Sprintf(runDir+"/%s/log/pods/default_%s_%s/c/%d.log", p.node, p.name, p.uid, container))
	for line := range strings.Lines(string(text)) {
		var now flood
		if n, _ := fmt.Sscanf(line, "%s stdout F %s %d %d", new(string), &now.address, &now.datagrams, &now.syns); n == 4 {
			f = now
		}
	}
	return f
}

// await waits until a container of each pod has sent, and the module is attached to the selected ones. It needs no API
// server.
func (c cluster) await(all []pod, container int) {
	c.Helper()
	waiting := func() (names []string) {
		for _, p := range all {
			if c.flood(p, container).syns == 0 {
				names = append(names, p.name)
			}
		}
		return names
	}
	eventually(c, "all pods have sent", func() bool { return len(waiting()) == 0 }, func() any { return waiting() })
	eventually(c, "the module is attached", func() bool { return c.attached() == denied(all) }, func() any {
		out, err := c.try("", "on", "n1", "kerb", "get", "services", "-o", "yaml")
		return fmt.Sprint(out, err)
	})
}

// denied returns how many pods are denied.
func denied(all []pod) (n int) {
	for _, p := range all {
		if p.denied {
			n++
		}
	}
	return n
}

// eventually is wait.Until for operations that kubelets retry with backoff.
func eventually(c cluster, what string, ok func() bool, seen func() any) {
	c.Helper()
	for end := time.Now().Add(5 * time.Minute); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			c.Fatalf("waited in vain: %s\nlast seen: %+v", what, seen())
		}
	}
}

// attached returns how many services of the test's pods are denied.
func (c cluster) attached() int { return c.servicesWithModule("deny") }

// servicesWithModule returns how many services of the test's pods have a module in chains of both directions, on nodes
// whose agent responds.
func (c cluster) servicesWithModule(module string) (n int) {
	c.Helper()
	var services []v1.Service
	onEachNode(func(node string) {
		var some []v1.Service
		out, err := c.try("", "on", node, "kerb", "get", "services", "-o", "json")
		if err == nil && json.Unmarshal([]byte(out), &some) == nil {
			services = append(services, some...)
		}
	})
	for _, s := range services {
		hooks := 0
		for _, l := range s.Status.Links {
			for _, h := range l.Hooks {
				if slices.Contains(h.Modules, module) {
					hooks++
				}
			}
		}
		if s.Metadata.Labels["test"] == c.test() && hooks == 2 {
			n++
		}
	}
	return n
}

// delete deletes the pods of the test. As their grace period is zero, the API server removes them before they end: it
// waits until DEL was called for each, after which its network namespace is removed.
func (c cluster) delete() {
	c.Helper()
	c.do("kubectl", "delete", "pods", "-l", "test="+c.test())
	onEachNode(func(node string) {
		namespaces := func() string { return c.do("on", node, "ls", "/run/netns") }
		eventually(c, "the pods of "+node+" end", func() bool { return !strings.Contains(namespaces(), "cni-") },
			func() any { return namespaces() })
	})
}
