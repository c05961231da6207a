// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

const count, pending = "count", names.Pending

// kubectl apply of a ClusterModule attaches it to the pods that it selects, and label changes of pods and namespaces
// change the selection. Modules and services of the operator stay unchanged.
func TestSelection(t *testing.T) {
	b := newBed(t)
	b.Apply(node.Module("own", "counter", "app=own", nil), node.Service(b.Host("plain"), "app=web"))
	b.Eventually("the pending module is there", func() bool { return strings.Contains(b.agentModules(), pending) })
	b.module(count, counter("app: web"))
	web := b.pod("web", map[string]string{"app": "web"})
	other := b.pod("other", map[string]string{"app": "db"})
	web.await(count)
	other.await("")
	other.label("app: web")
	other.await(count)
	web.label("app: own")
	web.await("own")

	// By namespaces: the pod selector stays, and namespaces are created and deleted.
	b.module("ns", "{package: {name: counter}, attach: {pods: {namespaceSelector: {matchLabels: {tier: edge}}}}}")
	label := func(text string) {
		if err := b.api.Apply("/api/v1/namespaces/default",
			"apiVersion: v1\nkind: Namespace\nmetadata: {name: default, labels: {"+text+"}}\n"); err != nil {
			t.Fatal(err)
		}
	}
	b.Eventually("ns is there", func() bool { return strings.Contains(b.agentModules(), "ns") })
	other.await(count)
	label("tier: edge")
	other.await("count ns")
	label("tier: core")
	other.await(count)

	b.api.Must(http.MethodDelete, modulesPath+count, nil, nil)
	other.await("")
	b.Eventually("count is pruned", func() bool { return b.agentModules() == pending+" ns own" })
	var plain v1.Service
	b.Must(http.MethodGet, "/v1/services/plain", nil, &plain)
	if len(plain.Metadata.Labels) != 1 || plain.Metadata.Owner != "" {
		t.Errorf("the operator's service became %+v", plain.Metadata)
	}
}

// While the API server hangs, agent and kerb-kube-node are killed and restarted. All modules stay in force, nothing is
// deleted, and a pod whose sandbox is replaced gets its modules. Missed changes are applied afterwards.
func TestOutage(t *testing.T) {
	b := newBed(t)
	b.module(count, counter("app: web"))
	b.module("second", counter("app: db"))
	web := b.pod("web", map[string]string{"app": "web"})
	web.await(count)
	b.Eventually("the node reports", func() bool { return b.status().Status.Conditions[0].Status == "True" })
	b.stop(syscall.SIGTERM) // writes its snapshot
	snapshot := b.Dir + "/kube/kubernetes.json"
	old, err := os.ReadFile(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	b.start()
	b.module("third", counter("app: db"))
	b.Eventually("the third is applied", func() bool { return b.agentModules() == "count "+pending+" second third" })
	b.stop(syscall.SIGKILL)
	if err := os.WriteFile(snapshot, old, 0o600); err != nil { // as after a power failure before the next snapshot
		t.Fatal(err)
	}

	b.api.Hang()
	b.Kill()
	b.Start()
	b.start()
	web.await(count)
	web.add() // the sandbox is replaced
	web.await(count)
	b.Must(http.MethodDelete, "/v1/modules/second?owner="+names.Owner, nil, nil)
	b.stop(syscall.SIGKILL)
	b.start()
	b.Eventually("it is applied again", func() bool { return b.agentModules() == "count "+pending+" second third" })
	unknown := &pod{names.Pod{Namespace: "default", Name: "new", UID: "5e1f"}, b.Host("new"), b, ""}
	unknown.add()
	unknown.await(pending)

	b.api.Resume()
	b.api.Must(http.MethodDelete, modulesPath+"second", nil, nil)
	b.Eventually("second is pruned", func() bool { return b.agentModules() == "count "+pending+" third" })
	web.await(count)
	unknown.await(pending) // its network namespace exists: it may run
}

// If an API server loses its connections and its watch history, the node loses nothing.
func TestRestartOfAPIServer(t *testing.T) {
	b := newBed(t)
	b.module(count, counter("app: web"))
	web := b.pod("web", map[string]string{"app": "web"})
	web.await(count)
	b.api.Kill()
	b.stop(syscall.SIGTERM)
	b.start()
	web.add()
	web.await(count)
	b.api.Run()
	web.label("app: db")
	web.await("")
}

// The service of a pod is deleted after both the pod and its network namespace are gone, and not as long as it can
// send.
func TestDeletedPods(t *testing.T) {
	b := newBed(t)
	b.module(count, counter("app: web"))
	web, stays := b.pod("web", map[string]string{"app": "web"}), b.pod("stays", map[string]string{"app": "web"})
	web.await(count)
	stays.await(count)
	web.delete()
	stays.delete()
	if err := web.host.Remove(); err != nil {
		t.Fatal(err)
	}
	b.Eventually("the service is deleted", func() bool { return strings.Contains(web.modules(), "404") })
	stays.await(count)
}

// An invalid ClusterModule does not block others, and the node reports the reason.
func TestRefusedModules(t *testing.T) {
	b := newBed(t)
	b.module("bad", `{failurePolicy: open, package: {name: counter}, config: {no: such}, attach: {pods: {}}}`)
	b.module("none", `{failurePolicy: open, package: {name: nothing}, attach: {pods: {}}}`)
	b.module(count, counter("app: web"))
	web := b.pod("web", map[string]string{"app": "web"})
	web.await(count)
	b.Eventually("the node reports both", func() bool {
		s := b.status().Status
		return len(s.Modules) == 2 && s.Modules[0].Name == "bad" && s.Modules[0].Reason == "Refused" &&
			strings.Contains(s.Modules[1].Message, "nothing") && s.Conditions[0].Reason == "ModulesNotReady"
	})
	b.module(count, counter("app: db")) // a change of a valid one while others are invalid
	web.await("")
	b.api.Must(http.MethodDelete, modulesPath+count, nil, nil)
	b.Eventually("count is pruned", func() bool { return b.agentModules() == pending })
	b.api.Must(http.MethodDelete, modulesPath+"bad", nil, nil)
	b.api.Must(http.MethodDelete, modulesPath+"none", nil, nil)
	b.Eventually("the node is ready", func() bool {
		s := b.status().Status
		return s.Conditions[0].Status == "True" && len(s.Modules) == 0 && s.Kernel != "" && s.Agent != ""
	})
}
