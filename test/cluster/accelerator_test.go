// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

const accelerator = `{"apiVersion": "kerb.dev/v1alpha1", "kind": "ClusterModule", "metadata": {"name": "accel"}, "spec": {
  "package": {"name": "accelerator"}, "config": {"programs": {"allow": ["/pod"]}},
  "attach": {"pods": {"podSelector": {"matchLabels": {"accelerate": "yes"}}}}}}`

// The agent runs in namespaces of the node, as in a node that is a container. The cluster address is translated by
// kube-proxy, and then by the proxy of the pods.
func (c cluster) testAccelerator() {
	c.checkAccelerator(second)
	c.apply(`{"apiVersion": "kerb.dev/v1alpha1", "kind": "ClusterModule", "metadata": {"name": "services"}, "spec": {
  "package": {"name": "proxy"}, "attach": {"pods": {"podSelector": {"matchLabels": {"app": "client"}}}}}}`)
	eventually(c, "the Services are served", func() bool {
		return c.condition("kerbnode", second, "ServicesProxied").Status == "True"
	}, func() any { return c.condition("kerbnode", second, "ServicesProxied") })
	c.checkAccelerator(second, "services")
	c.do("kubectl", "delete", "clustermodule", "services")
}

// checkAccelerator starts two pods on a node that communicate through the address of a Service. Their data is
// redirected while both have the label, and uses TCP while one has not. The client has more modules.
func (c cluster) checkAccelerator(node string, more ...string) {
	c.Helper()
	c.apply(accelerator)
	const service = "10.96.0.80:80"
	labels := func(value string) string { return fmt.Sprintf(`"labels": {"accelerate": %q, `, value) }
	c.create1(strings.NewReplacer(`"labels": {`, labels("yes"), "172.30.0.99:", "0.0.0.0:").Replace(
		c.manifest("server", "server", node, "answer", "8080")))
	c.create1(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "%s-server", %s"test": %q}},
  "spec": {"clusterIP": "10.96.0.80", "selector": {"app": "server", "test": %q}, "ports": [{"port": 80, "targetPort": 8080}]}}`,
		c.test(), labels("yes"), c.test(), c.test()))
	c.create1(strings.NewReplacer(`"labels": {`, labels("no"), "172.30.0.99:80", service).Replace(
		c.manifest("client", "client", node, "ask", "80")))
	eventually(c, "both pods run", func() bool {
		return c.podService(node, "client") != nil && c.podService(node, "server") != nil
	}, func() any { return c.get() })
	for _, module := range more {
		c.awaitServicesWithModule(module, 1)
	}
	var with, without []time.Duration
	for range 5 { // alternately: the machine is not idle
		without = append(without, c.ask(node, "no"))
		with = append(with, c.ask(node, "yes"))
	}
	c.Logf("half of the turns through a cluster address took at most, of five rounds: %v with the module, %v without",
		with, without)
	c.Logf("connections: %s", c.do("on", node, "kerb", "module", "query", "accel", "pairs", "-o", "yaml"))
	c.do("kubectl", "delete", "pods,services", "-l", "accelerate")
	c.do("kubectl", "delete", "clustermodule", "accel")
}

// podService returns the service of a pod of the test once the labels of the pod are known, or nil.
func (c cluster) podService(node, app string) *v1.Service {
	c.Helper()
	for _, s := range decode[[]v1.Service](c, "on", node, "kerb", "get", "services", "-o", "json") {
		if s.Metadata.Labels["app"] == app && s.Metadata.Labels["test"] == c.test() {
			return &s
		}
	}
	return nil
}

// ask sets the label of the client, and returns the median over ten later connections of their median round trips. They
// are redirected if the label is yes, and none is if it is no.
func (c cluster) ask(node, label string) time.Duration {
	c.Helper()
	c.do("kubectl", "label", "--overwrite", "pod", c.test()+"-client", "accelerate="+label)
	wait.Until(c, "the agent knows the label", func() bool {
		s := c.podService(node, "client") // none while the pod gets another sandbox
		return s != nil && s.Metadata.Labels["accelerate"] == label
	})
	client := c.clientLog(node)
	const settle, count = 3, 10 // connections: open ones stay with TCP or redirection
	first := len(asked(client)) + settle
	eventually(c, "the client is answered", func() bool { return len(asked(client)) >= first }, func() any {
		return asked(client)
	})
	before := c.redirected(node)
	eventually(c, "the client is answered", func() bool { return len(asked(client)) >= first+count }, func() any {
		return asked(client)
	})
	redirected := c.redirected(node) - before
	if (redirected > 0) != (label == "yes") {
		c.Errorf("with accelerate=%s, %d messages were redirected; refused: %s", label, redirected,
			c.do("on", node, "kerb", "module", "query", "accel", "refused"))
	}
	took := slices.Sorted(slices.Values(asked(client)[first : first+count]))
	c.Logf("accelerate=%s: %v, %d messages redirected", label, took[count/2], redirected)
	return took[count/2]
}

// clientLog returns the file with the output of the client. Directories of earlier pods of this name may exist.
func (c cluster) clientLog(node string) string {
	c.Helper()
	for _, o := range c.get() {
		if o.Metadata.Name == c.test()+"-client" {
			return fmt.Sprintf(runDir+"/%s/log/pods/default_%s_%s/c/0.log", node, o.Metadata.Name, o.Metadata.UID)
		}
	}
	c.Fatal("there is no client")
	return ""
}

// asked returns the output of a client for each connection.
func asked(file string) (took []time.Duration) {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		var half, turns int
		if n, _ := fmt.Sscanf(line, "%s stdout F turns %d %d", new(string), &half, &turns); n == 3 {
			took = append(took, time.Duration(half))
		}
	}
	return took
}

// redirected returns how many messages from and to the client were redirected.
func (c cluster) redirected(node string) (messages int) {
	c.Helper()
	client := c.podService(node, "client").Metadata.Name
	for _, pair := range decode[[]struct {
		Client   string
		Messages int
	}](c, "on", node, "kerb", "module", "query", "accel", "pairs", "-o", "json") {
		if pair.Client == client {
			messages += pair.Messages
		}
	}
	return messages
}
