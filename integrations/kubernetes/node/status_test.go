// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

// A node writes its status only if it has changed: not when pods are created and deleted, and not after a start.
func TestStatusIsWrittenOnChange(t *testing.T) {
	b := newBed(t)
	b.module(count, counter("app: web"))
	b.Eventually("the node is ready", func() bool { return b.status().Status.Conditions[0].Status == "True" })
	b.Eventually("its write is counted", func() bool { return b.writes() > 0 }) // the server responds before it counts
	writes := b.writes()
	web := b.pod("web", map[string]string{"app": "web"})
	web.await(count)
	web.label("app: db")
	web.await("")
	applied := b.changes()
	b.stop(syscall.SIGTERM)
	b.start()
	web.label("app: web")
	web.await(count)
	if now := b.changes(); now != applied+1 {
		t.Errorf("%d changes of the agent after a start, want that of the pod's labels alone", now-applied)
	}
	// Writes are sequential: with the write that is due next, all earlier ones have been counted.
	b.module("none", `{failurePolicy: open, package: {name: nothing}, attach: {pods: {}}}`)
	b.Eventually("the node reports", func() bool { return len(b.status().Status.Modules) == 1 })
	b.Eventually("its write is counted", func() bool { return b.writes() > writes })
	if now := b.writes(); now != writes+1 {
		t.Errorf("the status was written %d times, want once", now-writes)
	}
}

// writes returns the API server's count of writes of KerbNode statuses, including those that change nothing.
func (b *bed) writes() int {
	b.T.Helper()
	return b.counted(`resource="kerbnodes"`, `subresource="status"`, `code="200"`)
}

// counted returns the API server's count of requests with these labels.
func (b *bed) counted(labels ...string) (n int) {
	b.T.Helper()
	answer, err := b.api.Admin.Get(b.api.URL + "/metrics")
	if err != nil {
		b.T.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		b.T.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		other := func(label string) bool { return !strings.Contains(line, label) }
		if !strings.HasPrefix(line, "apiserver_request_total{") || slices.ContainsFunc(labels, other) {
			continue
		}
		count, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
		if err != nil {
			b.T.Fatal(line)
		}
		n += int(count)
	}
	return n
}

// changes counts the changes of the agent.
func (b *bed) changes() int {
	b.T.Helper()
	var all []v1.ChangeRecord
	b.Must(http.MethodGet, "/v1/changes?limit=1000", nil, &all)
	return len(all)
}

// Objects that an API server without our definitions would accept do no harm: the node rejects them, and runs the
// others.
func TestHostileObjects(t *testing.T) {
	b := newBed(t)
	b.loosen()
	hostile := map[string]string{
		pending:      counter("app: web"),
		"dots.in.it": counter("app: web"),
		"path":       `{package: {name: /etc}, attach: {pods: {}}}`,
		"tag":        `{package: {image: "example.org/a/b:latest"}, attach: {pods: {}}}`,
		"injection":  `{package: {name: counter}, attach: {pods: {podSelector: {matchLabels: {app: "web,kerb.dev/x"}}}}}`,
		"own":        `{package: {name: counter}, attach: {pods: {podSelector: {matchLabels: {kerb.dev/pending: "true"}}}}}`,
		"operator": `{package: {name: counter}, attach: {pods: {podSelector: {matchExpressions: ` +
			`[{key: a, operator: Is}]}}}}`,
		"empty":        `{}`,
		"wrong-type":   `{config: [1, 2], package: {name: counter}, attach: {pods: {}}}`,
		"many-labels":  counter(manyLabels(2000)),
		"null-package": `{package: null, attach: null}`,
	}
	for name, spec := range hostile { // open: otherwise pods that they may select are held
		b.module(name, strings.Replace(spec, "{", "{failurePolicy: open, ", 1))
	}
	b.module(count, counter("app: web"))
	labels := map[string]string{"app": "web", "kerb.dev/pending": "true", "kerb.dev/namespace": "kube-system",
		"kerb.dev/attachment": "x"}
	web := b.pod("web", labels)
	web.await(count)
	var service v1.Service
	b.Must(http.MethodGet, "/v1/services/"+web.Service(), nil, &service)
	if got := service.Metadata.Labels["kerb.dev/namespace"]; got != "default" {
		t.Errorf("the pod claims to be in namespace %s", got)
	}
	b.Eventually("the node reports what it refuses", func() bool {
		s := b.status().Status
		return s.Conditions[0].Reason == "ModulesNotReady" && len(s.Modules) == 10 && len(s.Conditions[0].Message) <= 1024
	})
	want := "count " + pending + " many-labels"
	if got := b.agentModules(); got != want {
		t.Errorf("the agent has modules %s, want %s", got, want)
	}
	if got := rolloutReport(b.status().Status, pending); !strings.Contains(got, "choose another name") {
		t.Errorf("of %s it is reported: %s", pending, got)
	}
}

// loosen replaces the definition of ClusterModule by one that accepts everything.
func (b *bed) loosen() {
	b.T.Helper()
	const crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clustermodules.kerb.dev"
	loose := `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: clustermodules.kerb.dev},
  spec: {group: kerb.dev, scope: Cluster, names: {kind: ClusterModule, listKind: ClusterModuleList, plural: clustermodules,
  singular: clustermodule}, versions: [{name: v1alpha1, served: true, storage: true,
  schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}`
	if err := b.api.Apply(crd, loose); err != nil {
		b.T.Fatal(err)
	}
	b.Eventually("the loose definition is served", func() bool {
		return b.api.Call(http.MethodPatch, modulesPath+"empty?fieldManager=test&force=true&dryRun=All",
			"{apiVersion: kerb.dev/v1alpha1, kind: ClusterModule, metadata: {name: empty}, spec: {}}", nil) == nil
	})
}

// A ClusterModule that the node cannot decode, for example one of a later version, keeps running unchanged, also after
// a complete list. If the node never had it, the pods that it selects stay pending. The node reports both.
func TestUndecodableModules(t *testing.T) {
	b := newBed(t)
	b.module(count, counter("app: web"))
	b.module("other", counter("app: other"))
	web := b.pod("web", map[string]string{"app": "web"})
	web.await(count)
	b.loosen()
	later := func(app string) string {
		return strings.Replace(counter("app: "+app), "{", `{order: {priority: "highest"}, `, 1)
	}
	b.module(count, later("web"))
	b.module("new", later("db"))
	await := func(when string) {
		b.Eventually(when+" the node reports both", func() bool {
			s := b.status().Status
			return len(s.Modules) == 2 && s.Modules[0].Reason == "Undecodable" && s.Modules[1].Name == "new" &&
				strings.Contains(s.Modules[0].Message, "spec.order.priority")
		})
		if got := b.agentModules(); !strings.HasPrefix(got, "count "+pending) {
			t.Errorf("%s the agent has modules %s", when, got)
		}
		web.await(count)
	}
	await("after the change")
	b.stop(syscall.SIGKILL)
	b.start()
	b.api.Must(http.MethodDelete, modulesPath+"other", nil, nil)
	b.Eventually("the complete list has come: other is pruned", func() bool {
		return b.agentModules() == "count "+pending
	})
	await("after a start")
	db := b.pod("db", map[string]string{"app": "db"})
	free := b.pod("free", map[string]string{"app": "free"})
	free.await("")
	db.await(pending)
	b.module("new", counter("app: db"))
	db.await("new")
}

func rolloutReport(s *api.KerbNodeStatus, name string) string {
	for _, r := range s.Modules {
		if r.Name == name {
			return r.Message
		}
	}
	return ""
}

func manyLabels(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s%d: v, ", strings.Repeat("x", i%50), i)
	}
	return strings.TrimSuffix(b.String(), ", ")
}
