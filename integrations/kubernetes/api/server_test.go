// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/internal/lab/kubeapi"
	"github.com/kerb-edge/kerb/internal/lab/kubeapi/kubeapitest"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

const (
	modulesPath = "/apis/kerb.dev/v1alpha1/clustermodules/"
	nodesPath   = "/apis/kerb.dev/v1alpha1/kerbnodes/"
)

// startServer runs an API server with the definitions of this tree.
func startServer(t *testing.T) *kubeapitest.Server {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	lab, err := netlab.Open("ka"+strconv.FormatInt(int64(os.Getpid()), 36)+"a", netlab.Options{OwnNode: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	server := kubeapitest.Start(t, lab.Node(), netip.MustParseAddr("127.0.0.1"))
	for _, d := range definitions {
		server.Install(crds + "/" + d.plural + ".yaml")
	}
	return server
}

func clusterModule(name, spec string) string {
	return fmt.Sprintf("apiVersion: kerb.dev/v1alpha1\nkind: ClusterModule\nmetadata: {name: %q}\nspec: %s\n", name, spec)
}

var image = "registry.example.org/acme/limiter@sha256:" + strings.Repeat("0123", 16)

// wrong objects, with the field and the remedy that the message must name.
var wrongModules = []struct{ name, spec, field, remedy string }{
	{"none", `{attach: {pods: {}}}`, "spec.package", "Required"},
	{"both", `{package: {name: counter, image: "` + image + `"}, attach: {pods: {}}}`, "spec.package", "exactly one: name"},
	{"neither", `{package: {}, attach: {pods: {}}}`, "spec.package", "exactly one: name"},
	{"tag", `{package: {image: "registry.example.org/acme/limiter:v1"}, attach: {pods: {}}}`, "spec.package.image",
		"registry/repository@sha256:"},
	{"both-tag", `{package: {image: "registry.example.org/acme/limiter:v1@sha256:` + strings.Repeat("a", 64) +
		`"}, attach: {pods: {}}}`, "spec.package.image", "registry/repository@sha256:"},
	{"path", `{package: {name: /etc/passwd}, attach: {pods: {}}}`, "spec.package.name", "should match"},
	{"long-name", `{package: {name: ` + strings.Repeat("a", 64) + `}, attach: {pods: {}}}`, "spec.package.name", "63"},
	{"attach", `{package: {name: counter}}`, "spec.attach", "Required"},
	{"nothing", `{package: {name: counter}, attach: {}}`, "spec.attach.pods", "Required"},
	{"services", `{package: {name: counter}, attach: {services: "*", pods: {}}}`, "attach.services",
		"field not declared in schema"},
	{"with.dots", `{package: {name: counter}, attach: {pods: {}}}`, "metadata.name", "lower-case letters, digits and dashes"},
	{strings.Repeat("a", 64), `{package: {name: counter}, attach: {pods: {}}}`, "metadata.name", "at most 63"},
	{"kubernetes-pending", `{package: {name: counter}, attach: {pods: {}}}`, "metadata.name", "choose another name"},
	{"policy", `{package: {name: counter}, failurePolicy: never, attach: {pods: {}}}`, "spec.failurePolicy",
		`"open", "closed"`},
	{"operator", `{package: {name: counter}, attach: {pods: {podSelector: {matchExpressions: [{key: a, operator: Like}]}}}}`,
		"spec.attach.pods.podSelector.matchExpressions[0].operator", `"In", "NotIn"`},
	{"values", `{package: {name: counter}, attach: {pods: {podSelector: {matchExpressions: [{key: a, operator: In}]}}}}`,
		"spec.attach.pods.podSelector.matchExpressions[0]", "at least one value"},
	{"no-values", `{package: {name: counter}, attach: {pods: {namespaceSelector: {matchExpressions: ` +
		`[{key: a, operator: Exists, values: [b]}]}}}}`, "spec.attach.pods.namespaceSelector.matchExpressions[0]", "take none"},
	{"key", `{package: {name: counter}, attach: {pods: {podSelector: {matchExpressions: [{key: "a b", operator: Exists}]}}}}`,
		"spec.attach.pods.podSelector.matchExpressions[0]", "NAME or PREFIX/NAME"},
	{"label-key", `{package: {name: counter}, attach: {pods: {podSelector: {matchLabels: {"a,b": c}}}}}`,
		"spec.attach.pods.podSelector", "NAME or PREFIX/NAME"},
	{"value", `{package: {name: counter}, attach: {pods: {podSelector: {matchLabels: {a: "b,c=d"}}}}}`,
		"spec.attach.pods.podSelector.matchLabels.a", "should match"},
	{"long-value", `{package: {name: counter}, attach: {pods: {podSelector: {matchLabels: {a: ` + strings.Repeat("b", 64) +
		`}}}}}`, "spec.attach.pods.podSelector.matchLabels.a", "63"},
	{"own-label", `{package: {name: counter}, attach: {pods: {podSelector: {matchLabels: {kerb.dev/pending: "true"}}}}}`,
		"spec.attach.pods.podSelector", "Kerb's own"},
	{"own-key", `{package: {name: counter}, attach: {pods: {podSelector: {matchExpressions: ` +
		`[{key: kerb.dev/namespace, operator: DoesNotExist}]}}}}`, "matchExpressions[0]", "Kerb's own"},
	{"percent", `{package: {name: counter}, rollout: {percent: 101, previous: {package: {name: counter}}}, ` +
		`attach: {pods: {}}}`, "spec.rollout.percent", "less than or equal to 100"},
	{"max-drops", `{package: {name: counter}, rollout: {percent: 1, maxDrops: 1001, previous: {package: {name: counter}}}, ` +
		`attach: {pods: {}}}`, "spec.rollout.maxDrops", "less than or equal to 1000"},
	{"waves", `{package: {name: counter}, rollout: {waves: [50, 5], previous: {package: {name: counter}}}, ` +
		`attach: {pods: {}}}`, "spec.rollout.waves", "growing percentages"},
	{"last-wave", `{package: {name: counter}, rollout: {waves: [5, 50], previous: {package: {name: counter}}}, ` +
		`attach: {pods: {}}}`, "spec.rollout.waves", "the last is 100"},
	{"no-waves", `{package: {name: counter}, rollout: {waves: [], previous: {package: {name: counter}}}, ` +
		`attach: {pods: {}}}`, "spec.rollout.waves", "at least 1"},
	{"soak", `{package: {name: counter}, rollout: {soakSeconds: -1, previous: {package: {name: counter}}}, ` +
		`attach: {pods: {}}}`, "spec.rollout.soakSeconds", "greater than or equal to 0"},
	{"max-failed", `{package: {name: counter}, rollout: {maxFailed: -1, previous: {package: {name: counter}}}, ` +
		`attach: {pods: {}}}`, "spec.rollout.maxFailed", "greater than or equal to 0"},
	{"no-previous", `{package: {name: counter}, rollout: {percent: 1}, attach: {pods: {}}}`, "spec.rollout.previous",
		"Required"},
	{"previous", `{package: {name: counter}, rollout: {percent: 1, previous: {package: {}}}, attach: {pods: {}}}`,
		"spec.rollout.previous.package", "exactly one: name"},
	{"previous-tag", `{package: {name: counter}, rollout: {percent: 1, previous: {package: {image: "a.example/b:v1"}}}, ` +
		`attach: {pods: {}}}`, "spec.rollout.previous.package.image", "registry/repository@sha256:"},
	{"typo", `{package: {name: counter}, atach: {}, attach: {pods: {}}}`, "spec.atach", "field not declared in schema"},
}

// wrongOfNamespaces are wrong as Modules of a namespace, and right or wrong otherwise as ClusterModules.
var wrongOfNamespaces = []struct{ name, spec, field, remedy string }{
	{"select-others", `{package: {name: counter}, attach: {pods: {namespaceSelector: {}}}}`, "spec.attach.pods",
		"namespaceSelector: a Module selects pods of its own namespace only, by podSelector: remove it"},
	{"interfaces", `{package: {name: counter}, attach: {interfaces: [eth0], pods: {}}}`, "spec.attach.interfaces",
		"remove it"},
	{"services", `{package: {name: counter}, attach: {services: "*", pods: {}}}`, "spec.attach.services", "remove it"},
	{"cgroups", `{package: {name: counter}, attach: {cgroups: [/a], pods: {}}}`, "spec.attach.cgroups", "remove it"},
	{"proxy", `{package: {name: proxy}, attach: {pods: {}}}`, "spec.package.name", "use a ClusterModule"},
	{"nat", `{package: {name: nat}, attach: {pods: {}}}`, "spec.package.name", "counter, firewall, responder"},
	{"near", `{package: {name: counter}, order: {priority: -1}, attach: {pods: {}}}`, "spec.order.priority",
		"greater than or equal to 0"},
	{"far", `{package: {name: counter}, order: {priority: 2000000}, attach: {pods: {}}}`, "spec.order.priority",
		"less than or equal to 1000"},
	{"same", `{package: {name: counter}, order: {direction: same}, attach: {pods: {}}}`, "spec.order", "remove it"},
	{"rollout", `{package: {name: counter}, rollout: {percent: 1, previous: {package: {name: proxy}}}, attach: {pods: {}}}`,
		"spec.rollout", "use a ClusterModule"},
	{"memory", `{package: {name: counter}, budget: {memory: 10Gi}, attach: {pods: {}}}`, "spec.budget", "remove it"},
	{"dots.in", `{package: {name: counter}, attach: {pods: {}}}`, "metadata.name", "lower-case letters"},
	{"neither", `{package: {}, attach: {pods: {}}}`, "spec.package", "exactly one: name"},
	{"own-label", `{package: {name: counter}, attach: {pods: {podSelector: {matchLabels: {kerb.dev/namespace: other}}}}}`,
		"spec.attach.pods.podSelector", "Kerb's own"},
}

// What only ClusterModules may do is refused in Modules, with the field and the remedy, also by a server that is not
// asked to validate strictly.
func TestValidationOfModules(t *testing.T) {
	server := startServer(t)
	const path = "/apis/kerb.dev/v1alpha1/namespaces/default/modules/"
	module := func(name, spec string) string {
		return strings.Replace(clusterModule(name, spec), "ClusterModule", "Module", 1)
	}
	for _, wrong := range wrongOfNamespaces {
		err := server.Call(http.MethodPatch, path+wrong.name+"?fieldManager=test&fieldValidation=Ignore",
			module(wrong.name, wrong.spec), nil)
		var no *kubeapi.Refusal
		if !errors.As(err, &no) || !strings.Contains(no.Message, wrong.field) || !strings.Contains(no.Message, wrong.remedy) {
			t.Errorf("%s: %v, want a refusal that names %s and %q", wrong.name, err, wrong.field, wrong.remedy)
		}
	}
	for name, spec := range map[string]string{
		"least": `{package: {name: firewall}, attach: {pods: {}}}`,
		"most": `{package: {image: "` + image + `"}, config: {a: 1}, order: {priority: 1000, before: [a], after: [b]},
  failurePolicy: closed, budget: {latency: 1us}, attach: {pods: {podSelector: {matchLabels: {app: web}}}}}`,
	} {
		if err := server.Apply(path+name, module(name, spec)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if cells := server.Table(path); len(cells) < 4 || cells[0] != "least" || cells[1] != "firewall" {
		t.Errorf("kubectl get shows %v", cells)
	}
	name := names.Module("default", "least")
	err := server.Apply(modulesPath+name, clusterModule(name, `{package: {name: counter}, attach: {pods: {}}}`))
	if err == nil || !strings.Contains(err.Error(), "choose another name") {
		t.Errorf("a ClusterModule with the name of a Module on nodes: %v", err)
	}
	checkExamples(t, server, "Module", path)
}

// Wrong objects are refused with the field that is wrong and what to write; right ones are accepted with their
// defaults.
func TestValidation(t *testing.T) {
	server := startServer(t)
	for _, wrong := range wrongModules {
		err := server.Apply(modulesPath+wrong.name, clusterModule(wrong.name, wrong.spec))
		var no *kubeapi.Refusal
		if !errors.As(err, &no) {
			t.Errorf("%s: %v, want a refusal", wrong.name, err)
			continue
		}
		if !strings.Contains(no.Message, wrong.field) || !strings.Contains(no.Message, wrong.remedy) {
			t.Errorf("%s: the message names not both %s and %q: %s", wrong.name, wrong.field, wrong.remedy, no.Message)
		}
	}
	for name, spec := range map[string]string{
		"least": `{package: {name: counter}, attach: {pods: {}}}`,
		"most": `{package: {image: "` + image + `"}, config: {rules: [{from: [1, 2]}]}, order: {before: [a], after: [b]},
  failurePolicy: closed, budget: {memory: 1Mi}, attach: {pods: {podSelector: {matchLabels: {app: web, empty: ""},
  matchExpressions: [{key: example.org/tier, operator: NotIn, values: [edge, core]}, {key: a, operator: Exists}]},
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}}}}`,
	} {
		if err := server.Apply(modulesPath+name, clusterModule(name, spec)); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got api.Module
		server.Must(http.MethodGet, modulesPath+name, nil, &got)
		if got.Spec.Order.Priority != 100 {
			t.Errorf("%s: priority %d, want the default", name, got.Spec.Order.Priority)
		}
		if name == "most" && (len(got.Spec.Config) != 1 || len(got.Spec.Attach.Pods.Pods.Expressions) != 2) {
			t.Errorf("%s was stored as %+v", name, got.Spec)
		}
	}
	checkExamples(t, server, "ClusterModule", modulesPath)
	checkColumns(t, server)
}

var example = regexp.MustCompile("(?s)```yaml\n([^`]*?kind: ([A-Za-z]+)\nmetadata:\n  name: ([a-z-]+)\n.*?)```")

// checkExamples applies what docs/kubernetes.md shows, and deploy/examples/kubernetes.
func checkExamples(t *testing.T, server *kubeapitest.Server, kind, path string) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range exampleFiles(t) {
		text = fmt.Appendf(text, "```yaml\n%s```\n", readFile(t, file))
	}
	shown := 0
	for _, e := range example.FindAllStringSubmatch(string(text), -1) {
		if e[2] != kind {
			continue
		}
		shown++
		if err := server.Apply(path+e[3], e[1]); err != nil {
			t.Errorf("%s of docs/kubernetes.md or deploy/examples: %v", e[3], err)
		}
		server.Must(http.MethodDelete, path+e[3], nil, nil)
	}
	if shown == 0 {
		t.Errorf("docs/kubernetes.md shows no %s", kind)
	}
}

// kubectl get shows what the definitions say, and a status is only written as one.
func checkColumns(t *testing.T, server *kubeapitest.Server) {
	t.Helper()
	const node = `{apiVersion: kerb.dev/v1alpha1, kind: KerbNode, metadata: {name: n1}, status: {kernel: "6.1",
  conditions: [{type: Ready, status: "True", reason: Synced, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}}`
	if err := server.Apply(nodesPath+"n1", node); err != nil {
		t.Fatal(err)
	}
	var got api.KerbNode
	server.Must(http.MethodGet, nodesPath+"n1", nil, &got)
	if got.Status != nil && got.Status.Kernel != "" {
		t.Error("a status was written without its subresource")
	}
	if err := server.Apply(nodesPath+"n1/status", node); err != nil {
		t.Fatal(err)
	}
	for _, reason := range []string{"two words", "lower", "", "A" + strings.Repeat("a", 64)} {
		err := server.Apply(nodesPath+"n1/status", strings.Replace(node, "conditions:",
			fmt.Sprintf("modules: [{name: web, generation: 1, reason: %q}],\n  conditions:", reason), 1))
		if err == nil || !strings.Contains(err.Error(), "status.modules[0].reason") {
			t.Errorf("a report with reason %q: %v", reason, err)
		}
	}
	for path, want := range map[string][]any{
		nodesPath: {"n1", "True", "Synced", "6.1"}, modulesPath: {"least", "counter"}} {
		cells := server.Table(path)
		for i, cell := range want {
			if len(cells) <= i || cells[i] != cell {
				t.Errorf("%s lists %v, want %v", path, cells, want)
				break
			}
		}
	}
}
