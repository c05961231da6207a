// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// happened lists Kerb's new Events about an object in namespace default.
func (b *bed) happened(kind, name string) (all []string) {
	b.T.Helper()
	var list struct {
		Items []struct {
			Type, Reason, Message string
			Count                 int
			Source                struct{ Component, Host string }
			InvolvedObject        struct{ Kind, Name, UID string }
		}
	}
	b.api.Must(http.MethodGet, "/api/v1/namespaces/default/events", nil, &list)
	for _, e := range list.Items {
		if o := e.InvolvedObject; o.Kind == kind && o.Name == name && o.UID != "" && e.Source.Host != "" {
			all = append(all, fmt.Sprintf("%s %s %s x%d %s", e.Source.Component, e.Type, e.Reason, e.Count, e.Message))
		}
	}
	return all
}

// hasEvent waits for an Event that contains all parts.
func (b *bed) hasEvent(kind, name string, parts ...string) {
	b.T.Helper()
	wait.Until(b.T, fmt.Sprintf("an Event of %s %s with %q", kind, name, parts), func() bool {
		return slices.ContainsFunc(b.happened(kind, name), func(e string) bool {
			return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(e, p) })
		})
	}, func() any { return b.happened(kind, name) })
}

// With only the rights of deploy/kubernetes, users of pods read why all packets of a pod are dropped or a module is
// missing, and administrators how a rollout proceeds. A node can write Events of pods only in its own name.
func TestEvents(t *testing.T) {
	b := newBed(t)
	b.stop(syscall.SIGKILL)
	asController := b.controllerConfig()
	token := b.token()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	b.kubeconfig = b.api.Kubeconfig(file)
	b.ready("n1", "True")
	b.forgery(token)
	b.flags = scraping(t, metricsOfNode)
	b.start()
	b.controller(asController)

	const missing = "package: {name: nothing}, attach: {pods: {podSelector: {matchLabels: "
	b.module("open", "{failurePolicy: open, "+missing+"{app: web}}}}}")
	b.module("shut", "{"+missing+"{app: db}}}}}")
	b.hasEvent("ClusterModule", "shut", "kerb-kube-controller Warning Refused x1 n1: ", "nothing")
	b.pod("db", map[string]string{"app": "db"})
	b.hasEvent("Pod", "db", "kerb-kube-node Warning NotAdmitted x1", "module shut", "see the KerbNode n1")
	web := b.pod("web", map[string]string{"app": "web"})
	web.await("")
	b.hasEvent("Pod", "web", "kerb-kube-node Warning NotProtected x1", "module open")
	many := map[string]string{}
	for i := range 70 {
		many[fmt.Sprint("l", i)] = ""
	}
	b.pod("labels", many)
	b.hasEvent("Pod", "labels", "NotAdmitted", "over 64 labels")

	b.module("web-guard", `{package: {name: firewall}, attach: {pods: {}}, config: {defaultPolicy: {ingress: deny}},
  rollout: {soakSeconds: 0, nodes: [edge-7], deadlineSeconds: 5, previous: {package: {name: firewall}}}}`)
	b.hasEvent("ClusterModule", "web-guard", "Normal RolloutCanaries", "edge-7")
	b.hasEvent("ClusterModule", "web-guard", "Warning RolloutHalted", "NodesSilent", "edge-7 has not answered",
		"kubectl kerb rollout undo web-guard")

	before := b.eventWrites()
	for _, later := range []string{"later", "last"} { // two rounds without other changes
		b.module(later, counter("app: cache"))
		b.isReady(modulesPath+later, "True", "NoProblem")
		b.Eventually("the node runs "+later, func() bool { return b.Get("/v1/modules/"+later, nil) == nil })
	}
	for range 2 { // and two rounds without changes
		last := b.lastSync()
		b.Eventually("the node compares again", func() bool { return b.lastSync() != last })
	}
	if now := b.eventWrites(); now != before {
		t.Errorf("%d Events were written while nothing changed", now-before)
	}
	if text, _ := os.ReadFile(b.log.Name()); strings.Contains(string(text), "answers 403") {
		t.Errorf("rights are missing:\n%s", text)
	}
}

// lastSync returns the line of the metric with the time of the last successful synchronisation.
func (b *bed) lastSync() string {
	b.T.Helper()
	for line := range strings.Lines(b.scrape(metricsOfNode, "/metrics", scraper)) {
		if strings.HasPrefix(line, "kerb_kube_last_sync_timestamp_seconds ") {
			return line
		}
	}
	b.T.Fatal("no metric has the time of the last synchronisation")
	return ""
}

const metricsOfNode = "127.0.0.1:4601"

// eventWrites returns the API server's count of requests that change Events.
func (b *bed) eventWrites() int {
	return b.counted(`resource="events"`, `verb="POST"`) + b.counted(`resource="events"`, `verb="PATCH"`)
}

// forgery tries to write Events that the policy rejects.
func (b *bed) forgery(token string) {
	b.T.Helper()
	const path = "/api/v1/namespaces/default/events"
	event := func(name string, more map[string]any) map[string]any {
		out := map[string]any{"apiVersion": "v1", "kind": "Event", "metadata": map[string]any{"name": name},
			"involvedObject": map[string]any{"kind": "Pod", "namespace": "default", "name": "web"},
			"reason":         "NotAdmitted", "message": "all packets of the pod are dropped: m", "type": "Warning",
			"source":             map[string]any{"component": "kerb-kube-node", "host": "n1"},
			"reportingComponent": "kerb-kube-node", "reportingInstance": "n1"}
		maps.Copy(out, more)
		return out
	}
	const dry = "?dryRun=All"
	wrong := map[string]map[string]any{
		"source": {"source": map[string]any{"component": "kubelet", "host": "n1"}},
		"host":   {"source": map[string]any{"component": "kerb-kube-node", "host": "n2"}},
		"none":   {"source": map[string]any{}},
		"about":  {"involvedObject": map[string]any{"kind": "Node", "name": "n2"}},
		"as":     {"reportingComponent": "kubelet"},
		"reason": {"reason": "Evicted"},
		"type":   {"type": "Normal"},
		"words":  {"message": "run this command"},
		"empty":  {"message": ""},
		"pair":   {"reason": "NotProtected"},
		"other":  {"message": "the pod, which ran before Kerb, has no modules: m"},
	}
	refused := func(method, path string, in any) bool {
		err := b.api.CallAs(token, method, path, in, nil)
		return err != nil && strings.Contains(err.Error(), "Events of pods only")
	}
	b.Eventually("the policy is in force", func() bool {
		return refused(http.MethodPost, path+dry, event("a", wrong["source"]))
	})
	for name, more := range wrong {
		if !refused(http.MethodPost, path+dry, event(name, more)) {
			b.T.Errorf("an Event with a wrong %s is accepted", name)
		}
	}
	for _, right := range []map[string]any{nil, {"reason": "NotProtected",
		"message": "the pod, which ran before Kerb, has no modules: m"}} {
		if err := b.api.CallAs(token, http.MethodPost, path+dry, event("right", right), nil); err != nil {
			b.T.Error(err)
		}
	}
	b.api.Must(http.MethodPost, path, event("kubelets", wrong["source"]), nil)
	if !refused(http.MethodPatch, path+"/kubelets"+dry+"&fieldManager=test&force=true", event("kubelets", nil)) {
		b.T.Error("a node changes an Event of the kubelet")
	}
	var answer struct{ Status struct{ Token string } }
	b.api.Must(http.MethodPost, "/api/v1/namespaces/kerb-system/serviceaccounts/kerb-kube-controller/token",
		map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": map[string]any{}}, &answer)
	b.Eventually("the controller writes no Events of pods", func() bool {
		err := b.api.CallAs(answer.Status.Token, http.MethodPost, path+dry, event("pod", nil), nil)
		return err != nil && strings.Contains(err.Error(), "Events of ClusterModules and Modules only")
	})
}
