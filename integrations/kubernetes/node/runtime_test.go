// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"

	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/integrations/kubernetes/nri"
	"github.com/kerb-edge/kerb/integrations/kubernetes/nri/plugin"
	"github.com/kerb-edge/kerb/internal/lab/nritest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// withRuntime runs a syncer as kerb-kube-node does, connected to a container runtime.
func withRuntime(t *testing.T, s *syncer) *nritest.Runtime {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "nri.sock")
	r := nritest.Start(t, socket)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	s.state.runtime.enabled = true
	running.Go(func() { s.run(ctx, t.TempDir(), newReporter(nil, "n1", s.log)) })
	running.Go(func() {
		if err := plugin.Run(ctx, socket, runtimePods{s.state, s.log}, s.log); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	wait.Until(t, "the runtime is connected", func() bool {
		c := s.state.runtimeCondition()
		return c != nil && c.Status == "True" && strings.Contains(c.Message, "nritest v1")
	})
	return r
}

// synced passes complete lists without pods to a state.
func synced(s *state, modules ...api.Module) {
	s.moduleHandler(ofModules).Replace(nil)
	s.moduleHandler(ofClusterModules).Replace(modules)
	s.namespaceHandler().Replace([]api.Object{object("n", "", "shop", nil)})
	s.podHandler().Replace(nil)
}

// A pod that only the container runtime has reported gets its modules before the runtime continues, without a request
// to the API server. If that is not possible, the sandbox fails with the reason.
func TestRuntimeReportsPods(t *testing.T) {
	module := func(name string) api.Module {
		return api.Module{Metadata: api.ObjectMeta{Name: name}, Spec: api.ModuleSpec{Package: api.Package{Name: "firewall"}}}
	}
	shown := object("u1", "shop", "web", map[string]string{"app": "shown"})
	shown.Metadata.ResourceVersion = "50"
	many := map[string]string{}
	for i := range maxLabels + 1 {
		many[fmt.Sprint("l", i)] = "v"
	}
	for name, c := range map[string]struct {
		set    func(*state)
		agent  func(*refusing)
		labels map[string]string
		app    string // of the service afterwards
		fails  string
		waits  bool
	}{
		"new": {set: func(s *state) { synced(s, module("fw")) }, app: "web"},
		"shown": {app: "shown", set: func(s *state) { // its labels have changed since
			synced(s)
			s.podHandler().Set(shown)
		}},
		"refused module": {set: func(s *state) { synced(s, module("deny")) },
			fails: "module deny, which selects it, does not run on this node: see the KerbNode n1"},
		"many labels": {set: func(s *state) { synced(s) }, labels: many, fails: "over 64 labels"},
		"namespace": {waits: true, fails: "the labels of its namespace are not known yet", set: func(s *state) {
			synced(s)
			s.namespaceHandler().Replace(nil)
		}},
		"not synchronized": {set: func(*state) {}, waits: true, fails: "kerb-kube-node has not synchronized yet"},
		"newer than the snapshot": {fails: "has not reached the API server since its start", set: func(s *state) {
			s.update(ofAll, func() bool { s.restored, s.namespaces["shop"] = true, labelsOf(nil); return true })
		}},
		"no service": {set: func(s *state) { synced(s) }, agent: func(a *refusing) { a.service.Metadata.Name = "p-other" },
			fails: "kerb-cni has to be a plugin"},
		"later sandbox": {set: func(s *state) { synced(s) }, app: "web", fails: "a later sandbox of the pod has replaced it",
			agent: func(a *refusing) {
				a.service.Metadata.Labels[names.LabelAttachment] = names.Attachment{ContainerID: "d"}.String()
			}},
		"labels": {set: func(s *state) { synced(s) }, agent: func(a *refusing) { a.labels = http.StatusBadRequest },
			fails: "the agent refuses its labels"},
		"agent fails": {set: func(s *state) { synced(s) }, waits: true, fails: "500",
			agent: func(a *refusing) { a.labels = http.StatusInternalServerError }},
	} {
		t.Run(name, func(t *testing.T) {
			if !c.waits { // waiting would take most of the test's time
				adaptation.SetPluginRequestTimeout(time.Minute)
				t.Cleanup(func() { adaptation.SetPluginRequestTimeout(adaptation.DefaultPluginRequestTimeout) })
			}
			var asked atomic.Int32
			a, s := heldPod(t)
			s.confirm = &confirmer{client: kubeServer(t, &asked, nil), log: s.log}
			if c.agent != nil {
				c.agent(a)
			}
			c.set(s.state)
			labels := c.labels
			if labels == nil {
				labels = map[string]string{"app": "web"}
			}
			r := withRuntime(t, s)
			began := time.Now()
			err := r.Run(nritest.Pod("c", "shop", "web", "u1", labels))
			if took := time.Since(began); !c.waits && took > time.Minute/2 {
				t.Errorf("the runtime waited for %v, as do all other pods", took)
			}
			if c.fails == "" && err != nil || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
				t.Errorf("the sandbox ended with %v", err)
			}
			got := a.service.Metadata.Labels
			if got["app"] != c.app || names.IsPending(got) != (c.app == "") {
				t.Errorf("labels %v", got)
			}
			if n := asked.Load(); n > 0 && name != "shown" { // only its event is compared with the API server
				t.Errorf("%d requests to the API server", n)
			}
		})
	}
}

// A pod waits a moment for conditions that are expected soon, such as the labels of a new namespace.
func TestRuntimeWaits(t *testing.T) {
	a, s := heldPod(t)
	synced(s.state)
	s.state.namespaceHandler().Replace(nil)
	r := withRuntime(t, s)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(nritest.Pod("c", "shop", "web", "u1", map[string]string{"app": "web"})) }()
	wait.Until(t, "the pod is held", func() bool {
		s.state.mu.Lock()
		defer s.state.mu.Unlock()
		return len(s.state.runtime.starts) == 1 && s.state.runtime.starts[0].reason == error(noNamespace)
	})
	s.state.namespaceHandler().Set(object("n", "", "shop", nil))
	if err := <-ended; err != nil || a.service.Metadata.Labels["app"] != "web" {
		t.Errorf("%v, labels %v", err, a.service.Metadata.Labels)
	}
	if n := len(s.state.runtime.starts); n != 0 {
		t.Errorf("%d starts are left", n)
	}
}

// Pods that started while kerb-kube-node was not running get their modules when it connects. After the runtime
// disconnects, everything stays unchanged, and the node reports the source of labels.
func TestRuntimeRestarts(t *testing.T) {
	a, s := heldPod(t)
	synced(s.state)
	r := withRuntime(t, s)
	r.Stop()
	condition := func() (c api.Condition) {
		for _, c = range statusOf(s, nil).Conditions {
			if c.Type == "RuntimeLabels" {
				return c
			}
		}
		return api.Condition{}
	}
	wait.Until(t, "the node reports that the runtime is away", func() bool {
		c := s.state.runtimeCondition()
		return c.Status == "False" && c.Reason == "NotConnected" && strings.Contains(c.Message, "API server only")
	})
	r.Add(nritest.Pod("c", "shop", "web", "u1", map[string]string{"app": "web"}))
	r.Restart()
	wait.Until(t, "the runtime is connected again", func() bool { return condition().Status == "True" })
	wait.Until(t, "the pod is admitted, and forgotten", func() bool {
		s.state.mu.Lock()
		defer s.state.mu.Unlock()
		return len(s.state.runtime.pods) == 0
	})
	if err := r.Run(nritest.Pod("c", "shop", "web", "u1", map[string]string{"app": "web"})); err != nil {
		t.Error(err)
	}
	if got := a.service.Metadata.Labels["app"]; got != "web" || condition().Status != "True" {
		t.Errorf("label %q, condition %+v", got, condition())
	}
	r.Stop()
	wait.Until(t, "the runtime is away", func() bool { return condition().Status == "False" })
	if _, err := s.round(t.Context()); err != nil || a.service.Metadata.Labels["app"] != "web" || a.deleted {
		t.Errorf("%v, labels %v, deleted %v", err, a.service.Metadata.Labels, a.deleted)
	}
}

// begin reports a new sandbox in the background.
func begin(t *testing.T, s *state, p nri.Pod) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (runtimePods{s, nil}).Start(ctx, p); err == nil {
		t.Error("the sandbox has started")
	}
}

var web = nri.Pod{ID: "c", Namespace: "shop", Name: "web", UID: "u1", Labels: map[string]string{"app": "web"}}

// Labels that have changed since the pod was admitted stay when the API server no longer has the pod while its sandbox
// still exists.
func TestRuntimeKeepsLabels(t *testing.T) {
	a, s := heldPod(t)
	synced(s.state)
	begin(t, s.state, web)
	for _, step := range []struct {
		what, want string
		change     func()
	}{
		{"reported by the runtime", "web", func() {}},
		{"relabelled", "cut-off", func() {
			s.state.podHandler().Set(object("u1", "shop", "web", map[string]string{"app": "cut-off"}))
		}},
		{"deleted", "cut-off", func() { s.state.podHandler().Delete(object("u1", "shop", "web", nil)) }},
	} {
		step.change()
		if _, err := s.round(t.Context()); err != nil || a.service.Metadata.Labels["app"] != step.want {
			t.Errorf("%s: %v, labels %v", step.what, err, a.service.Metadata.Labels)
		}
	}
}

// Labels come from the API server as soon as it has delivered the pod, and the end of a sandbox removes only its own
// reports.
func TestRuntimeAndAPIServer(t *testing.T) {
	s := newState("n1")
	synced(s)
	r, p := runtimePods{s, nil}, web
	label := func() string {
		pods, ok := s.podServices(s.view().rules)
		if !ok {
			t.Fatal("the rules have changed")
		}
		of, ok := pods.of(serviceOf(p), true)
		if !ok {
			return ""
		}
		return of.labels.set()["app"]
	}
	begin(t, s, p)
	if got := label(); got != "web" {
		t.Errorf("of the runtime: %q", got)
	}
	s.podHandler().Set(object("u1", "shop", "web", map[string]string{"app": "new"}))
	if got := label(); got != "new" {
		t.Errorf("of the API server: %q", got)
	}
	s.podHandler().Delete(object("u1", "shop", "web", nil))
	again := p
	again.ID = "c2"
	begin(t, s, again)
	if r.Stop(p); label() != "web" {
		t.Error("the end of the first sandbox has taken the second with it")
	}
	if r.Stop(again); label() != "" || len(s.runtime.pods) > 0 {
		t.Error("the sandbox has ended, and still exists")
	}
	// a static pod, which the runtime knows by the UID that its mirror names
	mirror := object("m1", "shop", "web", map[string]string{"app": "mirror"})
	mirror.Metadata.Annotations, mirror.Metadata.ResourceVersion = &api.Annotations{Static: "u1"}, "50"
	begin(t, s, again)
	s.podHandler().Set(mirror)
	pods, _ := s.podServices(s.view().rules)
	if of, _ := pods.of(serviceOf(p), true); of.labels.set()["app"] != "mirror" || of.unconfirmed || of.sandbox != "c2" {
		t.Errorf("a static pod: %+v", of)
	}
}

// The container runtime is connected also if no modules are known, or if the agent stays unreachable: if the runtime
// creates no containers without the plugin, the API server or the agent may be waiting for one.
func TestRuntimeIsConnectedAtLast(t *testing.T) {
	before := connectAfter
	t.Cleanup(func() { connectAfter = before })
	for name, c := range map[string]struct {
		known    bool
		after    time.Duration
		connects bool
	}{
		"nothing is known":        {after: time.Hour, connects: true},
		"the agent is away":       {known: true, after: time.Hour},
		"the agent has been away": {known: true, connects: true},
	} {
		t.Run(name, func(t *testing.T) {
			connectAfter = c.after
			connected, failed, requests := make(chan struct{}), make(chan struct{}), 0
			_, s := heldPod(t)
			socket, err := net.Listen("unix", filepath.Join(t.TempDir(), "agent"))
			if err != nil {
				t.Fatal(err)
			}
			server := &httptest.Server{Listener: socket, Config: &http.Server{
				Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if requests++; requests == 3 { // rounds
						close(failed)
					}
					w.WriteHeader(http.StatusInternalServerError)
				})}}
			server.Start()
			s.agent = agent{client.New(socket.Addr().String())}
			s.connect = func() { close(connected) }
			if c.known {
				synced(s.state)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { s.run(ctx, t.TempDir(), newReporter(nil, "n1", s.log)) })
			t.Cleanup(func() { cancel(); running.Wait(); server.Close() })
			select {
			case <-connected:
				if !c.connects {
					t.Error("connected")
				}
			case <-failed:
				if c.connects {
					t.Error("not connected")
				}
			case <-time.After(20 * time.Second):
				t.Error("neither connected nor failed")
			}
		})
	}
}
