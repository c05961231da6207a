// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"os/exec"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// render returns the objects of the chart for the directories of the nodes.
func (c cluster) render(args ...string) string {
	c.Helper()
	out, err := exec.Command("../../out/helm", append([]string{"template", "kerb", "../../deploy/helm/kerb",
		"--include-crds", "--kube-version", "1.35.4", "--set", "image.repository=kerb.test/kerb,image.tag=kerb," +
			"image.pullPolicy=Never,cni.confDir=" + layout.conf + ",cni.binDir=" + layout.bin + "," +
			"nri.enabled=true,metrics.secret=kerb-metrics"}, args...)...).Output()
	if err != nil {
		c.Fatal(err)
	}
	return string(out)
}

// One apply installs Kerb on nodes, with containers without privileges. Pods are denied from their first packet, also
// those that start during a rolling upgrade of the containers. Pods that ran before get their modules. Uninstalling
// leaves no pins, links, configurations and state on nodes, and nothing in the API server, and pods keep running.
func (c cluster) testChart() {
	c.reset()
	onEachNode(func(node string) {
		for name, file := range map[string]string{"kerb.test/kerb": archive, "kerb.test/earlier": earlier()} {
			c.do("on", node, "ctr", "-n", "k8s.io", "images", "import", "--base-name", name, file)
		}
	})
	const token = "token-of-a-scraper"
	c.do("kubectl", "create", "namespace", "kerb-system")
	c.do("kubectl", "-n", "kerb-system", "create", "secret", "generic", "kerb-metrics", "--from-literal=token="+token,
		"--from-file=tls.crt="+runDir+"/n1-server.crt", "--from-file=tls.key="+runDir+"/n1-server.key")
	old := c.ran(second)
	c.apply(c.render("--set", "image.repository=kerb.test/earlier"))
	c.ready()
	c.scrape(token)
	c.apply(modules)
	if earlier() == archive {
		old.awaitAdopted(c)
	}
	c.checkAccelerator(second)
	all := c.start(c.pods())
	c.onlyOpen(all, 0)
	all = append(all, c.upgrade()...)
	old.awaitAdopted(c)
	c.await(all, 0)
	c.onlyOpen(all, 0)

	c.apply(c.render("--set", "uninstall=true"))
	eventually(c, "Kerb is removed from all nodes", func() bool {
		return c.initialized() == nodes
	}, func() any { return c.do("kubectl", "-n", "kerb-system", "get", "pods", "-o", "wide") })
	onEachNode(func(node string) {
		if left := c.left(node); left != "" {
			c.Errorf("left on node %s:\n%s", node, left)
		}
	})
	for _, p := range all {
		c.awaitPackets(c.flood(p, 0).address)
	}
	old.denied.awaitMore(c)
	old.counted.checkComplete(c)
	c.do("kubectl", "delete", "pods", "-l", "test="+ranBefore)
	if n := c.running(); n != len(all)+nodes { // and the flows
		c.Errorf("%d of %d pods run", n, len(all)+nodes)
	}
	if _, err := c.try(c.render("--set", "uninstall=true"), "kubectl", "delete", "-f", "-"); err != nil { // as helm does
		c.Error(err)
	}
	c.delete()
	c.nothingLeft()
}

// ranBefore is the label of the pods of ran, which other parts of the test do not count.
const ranBefore = "before"

// ran are pods of a node that have been running since before Kerb was installed on it.
type ran struct {
	node            string
	denied, counted *flow
}

func (c cluster) ran(node string) ran {
	c.Helper()
	start := func(app, port string) *flow {
		manifest := c.manifest(ranBefore+"-"+app, app, node, "flow", port)
		return c.flowOf(port, strings.Replace(manifest, fmt.Sprintf(`"test": %q`, c.test()),
			fmt.Sprintf(`"test": %q`, ranBefore), 1))
	}
	return ran{node, start("denied", "9981"), start("flow", "9982")}
}

// awaitAdopted waits until the pods have the modules that select them. From then on no packet of the denied pod
// arrives, and all of the other one do.
func (r ran) awaitAdopted(c cluster) {
	c.Helper()
	hooks := func() map[string]string {
		all := map[string]string{}
		for _, s := range decode[[]v1.Service](c, "on", r.node, "kerb", "get", "services", "-o", "json") {
			if s.Metadata.Labels["test"] != ranBefore {
				continue
			}
			for _, l := range s.Status.Links {
				for _, h := range l.Hooks {
					all[s.Metadata.Labels["app"]+" "+h.Hook] = strings.Join(h.Modules, " ")
				}
			}
		}
		return all
	}
	want := map[string]string{"denied tc-ingress": "deny", "denied tc-egress": "deny", "flow tc-ingress": "count",
		"flow tc-egress": "count"}
	eventually(c, "pods that ran before have their modules", func() bool { return maps.Equal(hooks(), want) },
		func() any { return hooks() })
	wait.Until(c, "nothing of the denied pod that ran before arrives", func() bool {
		before := r.denied.arrived()
		r.counted.awaitMore(c)
		return r.denied.arrived() == before
	})
	r.counted.checkComplete(c)
}

// left returns remains of Kerb on a node. Files of the kubelet and containerd about its pods are below their
// directories.
func (c cluster) left(node string) string {
	c.Helper()
	return c.do("on", node, "sh", "-c", "{ find /run /var/lib -maxdepth 1 -name '*kerb*'; find /sys/fs/bpf "+layout.conf+
		" "+layout.bin+" -name '*kerb*'; } 2>/dev/null; true")
}

// nothingLeft checks that the API server has no object of Kerb, definitions included. Events expire after an hour.
func (c cluster) nothingLeft() {
	c.Helper()
	left := func() (all []string) {
		var kinds []string
		for kind := range strings.FieldsSeq(c.do("kubectl", "api-resources", "--verbs=list", "-o", "name")) {
			if !strings.HasPrefix(kind, "events") {
				kinds = append(kinds, kind)
			}
		}
		out, err := c.try("", "kubectl", "get", "--ignore-not-found", "-A", "-o", "name", strings.Join(kinds, ","))
		if err != nil {
			return []string{err.Error()} // a definition that is being deleted
		}
		for name := range strings.FieldsSeq(out) {
			if strings.Contains(name, "kerb") {
				all = append(all, name)
			}
		}
		return all
	}
	eventually(c, "nothing of Kerb is left in the API server", func() bool { return len(left()) == 0 }, func() any {
		return left()
	})
}

// scrape reads metrics of an agent through TLS, and checks that nothing else is served.
func (c cluster) scrape(token string) {
	c.Helper()
	for path, want := range map[string]string{"/metrics": "200", "/v1/status": "403"} {
		out, err := exec.Command("ip", "netns", "exec", "kerb-kube", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}",
			"--cacert", runDir+"/ca.crt", "-H", "Authorization: Bearer "+token, "https://172.30.0.11:4600"+path).Output()
		if err != nil || string(out) != want {
			c.Errorf("%s of an agent: status %s, %v; want %s", path, out, err, want)
		}
	}
}

// initialized returns how many pods have removed Kerb from their nodes: their other containers have ended.
func (c cluster) initialized() (n int) {
	out := c.do("kubectl", "-n", "kerb-system", "get", "pods", "-l", "app.kubernetes.io/name=kerb", "-o",
		`jsonpath={range .items[*]}{.spec.initContainers[*].name} {.status.conditions[?(@.type=="Initialized")].status}`+
			`{"\n"}{end}`)
	for line := range strings.Lines(out) {
		if line == "cni purge kube-node True\n" {
			n++
		}
	}
	return n
}
