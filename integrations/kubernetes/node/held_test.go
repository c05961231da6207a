// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// refusing is the part of an agent that a round calls. It has the service of one pod, and rejects some modules.
type refusing struct {
	modules map[string]v1.Module
	answers map[string]int // status codes, by modules
	labels  int            // status code of changes of services, if any
	applied int            // requests for modules
	before  func([]v1.Module)
	costs   func() []v1.CostChange // results of dry runs
	earlier bool                   // an older agent, which always measures
	service v1.Service
	more    []v1.Service // further services
	// change returns the status code of a change of services, or 0; may be nil.
	change  func([]v1.Service) int
	deleted bool
}

func (a *refusing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var answer any = struct{}{}
	switch {
	case r.URL.Path == "/v1/apply" && r.URL.Query().Get("owner") == names.Owner:
		var all []v1.Module
		_ = json.NewDecoder(r.Body).Decode(&all)
		a.applied++
		if a.before != nil {
			a.before(all)
		}
		for _, m := range all {
			if status := a.answers[m.Metadata.Name]; status != 0 {
				w.WriteHeader(status)
				return
			}
		}
		if r.URL.Query().Has("dryRun") {
			measure := r.URL.Query().Has("measure")
			if measure && a.earlier {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			if a.costs != nil && (measure || a.earlier) {
				answer = v1.ApplyResult{DryRun: true, Costs: a.costs()}
			}
			break
		}
		for _, m := range all {
			m.Metadata.Owner = names.Owner
			a.modules[m.Metadata.Name] = m
		}
	case r.URL.Path == "/v1/apply" && a.labels != 0:
		w.WriteHeader(a.labels)
		return
	case r.URL.Path == "/v1/apply":
		var all []v1.Service
		_ = json.NewDecoder(r.Body).Decode(&all)
		if a.change != nil {
			if status := a.change(all); status != 0 {
				w.WriteHeader(status)
				return
			}
		}
		a.service = all[0]
	case r.URL.Path == "/v1/modules":
		all := []v1.Module{}
		for _, m := range a.modules {
			all = append(all, m)
		}
		answer = all
	case r.URL.Path == "/v1/services":
		answer = append([]v1.Service{a.service}, a.more...)
	case r.URL.Path == "/v1/delete":
		var refs []ref
		_ = json.NewDecoder(r.Body).Decode(&refs)
		for _, of := range refs {
			delete(a.modules, of.Name)
		}
		a.deleted = true
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// heldPod returns an agent with a pending service of a pod, and a syncer whose state has that pod.
func heldPod(t *testing.T) (*refusing, *syncer) {
	t.Helper()
	p := names.Pod{Namespace: "shop", Name: "web", UID: "u1"}
	a := &refusing{modules: map[string]v1.Module{}, answers: map[string]int{"deny": http.StatusBadRequest}}
	a.service.Metadata = v1.ObjectMeta{Name: p.Service(), Owner: names.OwnerPods,
		Labels: names.PodLabels(p, names.Attachment{Network: "n", ContainerID: "c", Interface: "eth0"})}
	socket, err := net.Listen("unix", filepath.Join(t.TempDir(), "agent"))
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: socket, Config: &http.Server{Handler: a}}
	server.Start()
	t.Cleanup(server.Close)
	return a, &syncer{state: newState("n1"), agent: agent{client.New(socket.Addr().String())},
		log: slog.New(slog.DiscardHandler), applied: -1, await: map[string]time.Time{}}
}

func object(uid, namespace, name string, labels map[string]string) api.Object {
	return api.Object{Metadata: api.ObjectMeta{UID: uid, Namespace: namespace, Name: name, Labels: labels}}
}

// A pod that a rejected module would select stays pending. A pod that it would not select is admitted, and so are all
// pods if the module has failurePolicy open.
func TestPodsOfRefusedModules(t *testing.T) {
	for _, c := range []struct {
		app    string
		policy v1.FailurePolicy
		held   bool
	}{{"web", v1.FailClosed, true}, {"web", "", true}, {"web", v1.FailOpen, false}, {"db", v1.FailClosed, false}} {
		a, s := heldPod(t)
		s.state.moduleHandler(ofModules).Replace(nil)
		s.state.moduleHandler(ofClusterModules).Replace([]api.Module{{Metadata: api.ObjectMeta{Name: "deny"},
			Spec: api.ModuleSpec{Package: api.Package{Name: "firewall"},
				CommonModuleSpec: v1.CommonModuleSpec{FailurePolicy: c.policy},
				Attach: api.Attach{Pods: api.PodSelector{Pods: &api.LabelSelector{
					MatchLabels: map[string]string{"app": "web"}}}}}}})
		s.state.namespaceHandler().Replace([]api.Object{object("n", "", "shop", nil)})
		s.state.podHandler().Replace([]api.Object{object("u1", "shop", "web", map[string]string{"app": c.app})})
		if _, err := s.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := names.IsPending(a.service.Metadata.Labels); got != c.held {
			t.Errorf("app=%s, failurePolicy %q: held %v, labels %v", c.app, c.policy, got, a.service.Metadata.Labels)
		}
	}
}

// A module with which the agent fails blocks neither other modules, nor pods that it does not select. It is retried.
func TestModuleThatFails(t *testing.T) {
	for _, c := range []struct {
		app  string
		held bool
	}{{"web", true}, {"db", false}} {
		a, s := heldPod(t)
		a.answers = map[string]int{"broken": http.StatusInternalServerError}
		selects := func(name, app string) api.Module {
			return api.Module{Metadata: api.ObjectMeta{Name: name}, Spec: api.ModuleSpec{
				Package: api.Package{Name: "firewall"}, Attach: api.Attach{Pods: api.PodSelector{Pods: &api.LabelSelector{
					MatchLabels: map[string]string{"app": app}}}}}}
		}
		s.state.moduleHandler(ofModules).Replace(nil)
		s.state.moduleHandler(ofClusterModules).Replace([]api.Module{selects("broken", "web"), selects("other", "db")})
		s.state.namespaceHandler().Replace([]api.Object{object("n", "", "shop", nil)})
		s.state.podHandler().Replace([]api.Object{object("u1", "shop", "web", map[string]string{"app": c.app})})
		_, err := s.round(t.Context())
		if err == nil || !strings.Contains(err.Error(), "broken") {
			t.Errorf("the round ended with %v", err)
		}
		_, other := a.modules["other"]
		_, pending := a.modules[names.Pending]
		if got := names.IsPending(a.service.Metadata.Labels); got != c.held || !other || !pending {
			t.Errorf("app=%s: held %v, modules %v", c.app, got, a.modules)
		}
		if r := s.reports; len(r) != 1 || r[0].Name != "broken" || r[0].Reason != "AgentError" {
			t.Errorf("reports %+v", r)
		}
		a.answers = nil
		if _, err := s.round(t.Context()); err != nil || names.IsPending(a.service.Metadata.Labels) || len(s.reports) > 0 {
			t.Errorf("when the agent does not fail any more: %v, labels %v", err, a.service.Metadata.Labels)
		}
	}
	a, s := heldPod(t) // without the module that protects pending pods nothing is admitted
	a.answers = map[string]int{names.Pending: http.StatusInternalServerError}
	s.state.moduleHandler(ofModules).Replace(nil)
	s.state.moduleHandler(ofClusterModules).Replace(nil)
	s.state.namespaceHandler().Replace([]api.Object{object("n", "", "shop", nil)})
	s.state.podHandler().Replace([]api.Object{object("u1", "shop", "web", nil)})
	if _, err := s.round(t.Context()); err == nil || !names.IsPending(a.service.Metadata.Labels) {
		t.Errorf("without the module for pending pods: %v, labels %v", err, a.service.Metadata.Labels)
	}
}

// The runtime knows a static pod by the UID in the annotation of its mirror pod. No other pod can claim that UID,
// although its author can write the annotation.
func TestStaticPods(t *testing.T) {
	for _, c := range []struct {
		namespace, name, static string
		admitted                bool
	}{{"shop", "web", "u1", true}, {"shop", "web", "u2", false}, {"evil", "web", "u1", false},
		{"shop", "web2", "u1", false}} {
		a, s := heldPod(t)
		s.state.moduleHandler(ofModules).Replace(nil)
		s.state.moduleHandler(ofClusterModules).Replace(nil)
		s.state.namespaceHandler().Replace([]api.Object{object("n", "", "shop", nil), object("e", "", "evil", nil)})
		mirror := object("m1", c.namespace, c.name, map[string]string{"app": "web"})
		mirror.Metadata.Annotations = &api.Annotations{Static: c.static}
		s.state.podHandler().Replace([]api.Object{mirror})
		if _, err := s.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := !names.IsPending(a.service.Metadata.Labels); got != c.admitted {
			t.Errorf("%+v: admitted %v, labels %v", c, got, a.service.Metadata.Labels)
		}
		// a pod with this UID has precedence
		s.state.podHandler().Set(object("u1", "shop", "web", map[string]string{"app": "true"}))
		if _, err := s.round(t.Context()); err != nil || a.service.Metadata.Labels["app"] != "true" {
			t.Errorf("%+v: labels %v, %v", c, a.service.Metadata.Labels, err)
		}
	}
}

// Modules are persisted before the agent gets them: a start without the API server would otherwise revert to older
// ones.
func TestSnapshotComesFirst(t *testing.T) {
	a, s := heldPod(t)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.before = func(all []v1.Module) {
		if len(all) < 2 {
			return // only the module for pending pods
		}
		if text, err := os.ReadFile(filepath.Join(dir, snapshotFile)); err != nil || !bytes.Contains(text, []byte(`"fw"`)) {
			t.Errorf("when the agent gets the module the snapshot is %s, %v", text, err)
		}
		cancel()
	}
	s.state.namespaceHandler().Replace(nil)
	s.state.podHandler().Replace(nil)
	s.state.moduleHandler(ofModules).Replace(nil)
	s.state.moduleHandler(ofClusterModules).Replace(nil)
	done := make(chan struct{})
	go func() { defer close(done); s.run(ctx, dir, newReporter(nil, "n1", s.log)) }()
	s.state.moduleHandler(ofClusterModules).Set(api.Module{Metadata: api.ObjectMeta{Name: "fw", Generation: 1},
		Spec: api.ModuleSpec{Package: api.Package{Name: "firewall"}}})
	<-done
}

// Events without relevant changes do not cause an apply of all modules. Otherwise a stream of events would prevent that
// pods are admitted.
func TestEventsWithoutChange(t *testing.T) {
	a, s := heldPod(t)
	module := api.Module{Metadata: api.ObjectMeta{Name: "fw", Generation: 1},
		Spec: api.ModuleSpec{Package: api.Package{Name: "firewall"}}}
	s.state.moduleHandler(ofModules).Replace(nil)
	s.state.moduleHandler(ofClusterModules).Replace([]api.Module{module})
	namespace := object("n", "", "shop", map[string]string{"team": "a"})
	s.state.namespaceHandler().Replace([]api.Object{namespace})
	pod := object("u1", "shop", "web", map[string]string{"app": "web"})
	s.state.podHandler().Replace([]api.Object{pod})
	if _, err := s.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	before, applied := s.state.view(), a.applied
	<-s.state.changed
	namespace.Metadata.ResourceVersion, module.Metadata.ResourceVersion, pod.Metadata.ResourceVersion = "8", "9", "10"
	s.state.namespaceHandler().Set(namespace)
	s.state.moduleHandler(ofClusterModules).Set(module)
	s.state.podHandler().Set(pod)
	if now := s.state.view(); now.rules != before.rules || now.version != before.version || len(s.state.changed) != 0 {
		t.Errorf("events without a change: rules %d, version %d; were %d, %d", now.rules, now.version, before.rules,
			before.version)
	}
	if _, err := s.round(t.Context()); err != nil || a.applied != applied {
		t.Errorf("%d requests for modules, %v", a.applied-applied, err)
	}
	namespace.Metadata.Labels = map[string]string{"team": "b"}
	s.state.namespaceHandler().Set(namespace)
	module.Metadata.Generation, module.Spec.Package.Name = 2, "counter"
	s.state.moduleHandler(ofClusterModules).Set(module)
	if now := s.state.view(); now.rules != before.rules+2 {
		t.Errorf("two changes: rules %d, were %d", now.rules, before.rules)
	}
}

// Until all lists are complete, a snapshot does not admit pods that are newer than it.
func TestPodsNewerThanTheSnapshot(t *testing.T) {
	for _, earlier := range []bool{true, false} {
		a, s := heldPod(t)
		s.state.update(ofAll, func() bool {
			s.state.restored, s.state.inSnapshot = true, map[string]bool{"u1": earlier}
			s.state.namespaces["shop"] = labelsOf(nil)
			return true
		})
		s.state.podHandler().Replace([]api.Object{object("u1", "shop", "web", nil)})
		if _, err := s.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := names.IsPending(a.service.Metadata.Labels); got == earlier {
			t.Errorf("in the snapshot %v: held %v", earlier, got)
		}
		s.state.moduleHandler(ofModules).Replace(nil)
		s.state.moduleHandler(ofClusterModules).Replace(nil)
		s.state.namespaceHandler().Replace([]api.Object{object("n", "", "shop", nil)})
		if _, err := s.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if names.IsPending(a.service.Metadata.Labels) {
			t.Errorf("in the snapshot %v: held after all lists", earlier)
		}
	}
}

// A service whose pod was deleted is deleted when its network namespace is gone, too, but not while an agent that has
// just started has not observed interfaces yet.
func TestServicesOfDeletedPods(t *testing.T) {
	for reason, want := range map[string]bool{"NotFound": true, "NoInterface": false} {
		a, s := heldPod(t)
		a.service.Status = &v1.ServiceStatus{Conditions: []v1.Condition{{Type: "Ready", Status: "False", Reason: reason}}}
		s.state.moduleHandler(ofModules).Replace(nil)
		s.state.moduleHandler(ofClusterModules).Replace(nil)
		s.state.namespaceHandler().Replace(nil)
		s.state.podHandler().Replace(nil)
		if _, err := s.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if a.deleted != want {
			t.Errorf("%s: deleted %v", reason, a.deleted)
		}
	}
}

// A pod with too many labels is not admitted, since a truncated set could evade modules, and the node reports it. It is
// admitted when it has fewer.
func TestTooManyLabels(t *testing.T) {
	many := func(n, size int) map[string]string {
		out := map[string]string{"app": "web"}
		for i := 1; i < n; i++ {
			out[fmt.Sprint("l", i)] = strings.Repeat("v", size)
		}
		return out
	}
	for _, c := range []struct {
		labels map[string]string
		held   bool
	}{{many(maxLabels, 1), false}, {many(maxLabels+1, 1), true}, {many(63, 63), false}, {many(64, 63), true}} {
		a, s := heldPod(t)
		s.state.moduleHandler(ofModules).Replace(nil)
		s.state.moduleHandler(ofClusterModules).Replace(nil)
		s.state.namespaceHandler().Replace([]api.Object{object("n", "", "shop", nil)})
		s.state.podHandler().Replace([]api.Object{object("u1", "shop", "web", c.labels)})
		if _, err := s.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		conditions := statusOf(s, nil).Conditions
		if got := names.IsPending(a.service.Metadata.Labels); got != c.held || (len(conditions) == 2) != c.held {
			t.Errorf("%d labels: held %v, conditions %+v", len(c.labels), got, conditions)
		}
		if c.held && (conditions[1].Reason != "TooManyLabels" || !strings.Contains(conditions[1].Message, "shop/web")) {
			t.Errorf("the node reports %+v", conditions[1])
		}
		s.state.podHandler().Set(object("u1", "shop", "web", many(3, 1)))
		if _, err := s.round(t.Context()); err != nil || names.IsPending(a.service.Metadata.Labels) {
			t.Errorf("with fewer labels: %v, %v", a.service.Metadata.Labels, err)
		}
	}
}

// A new pod whose event arrives before that of an older module, or of older labels of its namespace, is not admitted
// without them: watches of different resources are not ordered.
func TestPodsAreConfirmed(t *testing.T) {
	var asked atomic.Int32
	stored := map[string][]any{
		"/apis/kerb.dev/v1alpha1/clustermodules": {meta("fw", "m1", nil)},
		"/api/v1/namespaces":                     {meta("shop", "n", map[string]string{"tier": "edge"})},
	}
	kube := kubeServer(t, &asked, stored)
	a, s := heldPod(t)
	s.confirm = &confirmer{client: kube, log: s.log}
	s.state.moduleHandler(ofModules).Replace(nil)
	s.state.moduleHandler(ofClusterModules).Replace(nil)
	s.state.namespaceHandler().Replace([]api.Object{object("n", "", "shop", nil)})
	pod := object("u1", "shop", "web", map[string]string{"app": "web"})
	pod.Metadata.ResourceVersion = "50"
	s.state.podHandler().Set(pod)
	s.state.podHandler().Replace([]api.Object{pod})
	pending := func(what string, want bool) {
		t.Helper()
		for range 2 { // the first round starts the comparison, the second uses its result
			if _, err := s.round(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.confirm.running.Wait()
		}
		if got := names.IsPending(a.service.Metadata.Labels); got != want {
			t.Errorf("%s: pending %v, labels %v", what, got, a.service.Metadata.Labels)
		}
	}
	pending("neither the module nor the namespace's labels have come", true)
	module := api.Module{Metadata: api.ObjectMeta{Name: "fw", UID: "m1", Generation: 1},
		Spec: api.ModuleSpec{Package: api.Package{Name: "firewall"}}}
	s.state.moduleHandler(ofClusterModules).Set(module)
	pending("the module has come", true)
	s.state.namespaceHandler().Set(object("n", "", "shop", map[string]string{"tier": "edge"}))
	pending("both have come", false)
	if a.modules["fw"].Metadata.Name == "" {
		t.Error("the pod was admitted before the module")
	}
	before := asked.Load()
	pod.Metadata.ResourceVersion = "80" // the kubelet writes its status
	s.state.podHandler().Set(pod)
	if pending("later", false); asked.Load() != before {
		t.Errorf("%d requests for a pod that was admitted", asked.Load()-before)
	}
}

// round runs one round with the current state.
func (s *syncer) round(ctx context.Context) (time.Duration, error) {
	return s.reconcile(ctx, s.state.view())
}
