// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// sigNetwork is the number of conformance tests of networks in Kubernetes 1.35.4, all of which pass without Kerb.
const sigNetwork = 47

// Kubernetes' conformance tests of networks pass with modules of Kerb on all pods: counter, firewall and flows, which
// process each packet, and then also the proxy, which serves cluster addresses instead of kube-proxy.
func TestConformance(t *testing.T) {
	if os.Getenv("KERB_TEST_CONFORMANCE") == "" {
		t.Skip("needs a Kubernetes cluster and Kubernetes' own tests: make test-conformance")
	}
	c := up(t)
	onEachNode(func(node string) {
		for _, image := range []string{"agnhost", "coredns", "pause"} {
			c.do("on", node, "ctr", "-n", "k8s.io", "images", "import", "out/cluster/bin/"+image+".tar")
		}
		// Tests run tools in the first image, and do not check the content that the second serves.
		for _, other := range []string{"jessie-dnsutils:1.7", "nginx:1.14-4"} {
			c.do("on", node, "ctr", "-n", "k8s.io", "images", "tag", "kerb.test/agnhost:2.59", "kerb.test/"+other)
		}
	})
	c.apply(everyPod("count", "counter", `{}`) + everyPod("judge", "firewall",
		`{"defaultPolicy": {"ingress": "allow", "egress": "allow"}, "rules": [{"action": "deny", "src": "203.0.113.0/24"}]}`) +
		everyPod("record", "flows", `{}`))
	c.do("kubectl", "apply", "-f", "coredns.yaml")
	c.do("kubectl", "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=300s")
	t.Run("Chained", func(t *testing.T) { cluster{t}.runConformance("count", "judge", "record") })
	c.apply(everyPod("serve", "proxy", `{}`))
	t.Run("Proxy", func(t *testing.T) { cluster{t}.runConformance("count", "judge", "record", "serve") })
}

// everyPod returns a ClusterModule on the pods of all namespaces.
func everyPod(name, pkg, config string) string {
	return `{"apiVersion": "kerb.dev/v1alpha1", "kind": "ClusterModule", "metadata": {"name": "` + name + `"}, "spec": {
  "package": {"name": "` + pkg + `"}, "config": ` + config + `, "attach": {"pods": {}}}}
`
}

// runConformance runs the tests, and checks that the modules have processed packets in the meantime.
func (c cluster) runConformance(modules ...string) {
	before := c.packets()
	results := c.conformance(`\[sig-network\].*\[Conformance\]`)
	var passed, failed []string
	for _, r := range results {
		switch r.Status {
		case "passed":
			passed = append(passed, r.Name)
		case "skipped", "pending":
		default:
			failed = append(failed, r.Status+" "+r.Name)
		}
	}
	c.Logf("%d passed", len(passed))
	if len(passed) < sigNetwork || len(failed) > 0 {
		c.Errorf("%d passed, of %d; not passed:\n%s", len(passed), sigNetwork, strings.Join(failed, "\n"))
	}
	after := c.packets()
	for _, m := range modules {
		if seen := after[m] - before[m]; seen < 1000 {
			c.Errorf("module %s has seen %d packets while the tests ran", m, seen)
		} else {
			c.Logf("module %s has seen %d packets", m, seen)
		}
	}
}

// packets returns the packets that each module has processed on all nodes.
func (c cluster) packets() map[string]uint64 {
	c.Helper()
	all := map[string]uint64{}
	onEachNode(func(node string) {
		for _, m := range decode[[]v1.ModuleCount](c, "on", node, "kerb", "module", "counts", "-o", "json") {
			all[m.Module] += m.Packets
		}
	})
	return all
}

// result is the result of one of Kubernetes' tests.
type result struct {
	Name   string `xml:"name,attr"`
	Status string `xml:"status,attr"`
}

// conformance runs Kubernetes' tests whose names match.
func (c cluster) conformance(match string) []result {
	c.Helper()
	dir, err := filepath.Abs(runDir)
	if err != nil {
		c.Fatal(err)
	}
	kubectl, repositories := filepath.Join(dir, "kubectl"), filepath.Join(dir, "repositories.yaml")
	bin := filepath.Join(dir, "../bin")
	for file, text := range map[string]string{kubectl: "#!/bin/sh\nexec " + bin + "/kube kubectl \"$@\"\n",
		repositories: "promoterE2eRegistry: kerb.test\ngcRegistry: kerb.test\n"} {
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			c.Fatal(err)
		}
	}
	report := c.T.TempDir()
	cmd := exec.Command("ip", "netns", "exec", "kerb-kube", bin+"/conformance", "-kubeconfig", dir+"/admin.kubeconfig",
		"-provider", "skeleton", "-kubectl-path", kubectl, "-num-nodes", "3", "-node-os-distro", "custom",
		"-dump-logs-on-failure=false", "-ginkgo.no-color", "-ginkgo.v", "-ginkgo.timeout=50m", "-ginkgo.focus="+match,
		"-report-dir", report)
	cmd.Env = append(os.Environ(), "KUBE_TEST_REPO_LIST="+repositories)
	out, err := cmd.CombinedOutput() // fails with the first test that does
	if err != nil {
		c.Logf("%s", out[max(0, len(out)-20000):])
	}
	var all struct {
		Suites []struct {
			Cases []result `xml:"testcase"`
		} `xml:"testsuite"`
	}
	files, _ := filepath.Glob(report + "/junit*.xml")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			c.Fatal(err)
		}
		if err := xml.Unmarshal(text, &all); err != nil {
			c.Fatal(file, ": ", err)
		}
	}
	var results []result
	for _, s := range all.Suites {
		results = append(results, slices.DeleteFunc(s.Cases, func(r result) bool {
			return !strings.HasPrefix(r.Name, "[It]")
		})...)
	}
	return results
}
