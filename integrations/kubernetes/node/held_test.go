// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// refusing is the part of an agent that a round calls. It has the service of one pod, and refuses module deny.
type refusing struct {
	modules map[string]v1.Module
	service v1.Service
	deleted bool
}

func (a *refusing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var answer any = struct{}{}
	switch {
	case r.URL.Path == "/v1/apply" && r.URL.Query().Get("owner") == names.Owner:
		var all []v1.Module
		_ = json.NewDecoder(r.Body).Decode(&all)
		for _, m := range all {
			if m.Metadata.Name == "deny" {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
		}
		for _, m := range all {
			m.Metadata.Owner = names.Owner
			a.modules[m.Metadata.Name] = m
		}
	case r.URL.Path == "/v1/apply":
		var all []v1.Service
		_ = json.NewDecoder(r.Body).Decode(&all)
		a.service = all[0]
	case r.URL.Path == "/v1/modules":
		all := []v1.Module{}
		for _, m := range a.modules {
			all = append(all, m)
		}
		answer = all
	case r.URL.Path == "/v1/services":
		answer = []v1.Service{a.service}
	case r.URL.Path == "/v1/delete":
		a.deleted = true
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// heldPod returns an agent that has a pending service of a pod, and what makes it run a state with that pod.
func heldPod(t *testing.T) (*refusing, *syncer) {
	t.Helper()
	p := names.Pod{Namespace: "shop", Name: "web", UID: "u1"}
	a := &refusing{modules: map[string]v1.Module{}}
	a.service.Metadata = v1.ObjectMeta{Name: p.Service(), Owner: names.OwnerPods,
		Labels: names.PodLabels(p, names.Attachment{Network: "n", ContainerID: "c", Interface: "eth0"})}
	socket, err := net.Listen("unix", filepath.Join(t.TempDir(), "agent"))
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: socket, Config: &http.Server{Handler: a}}
	server.Start()
	t.Cleanup(server.Close)
	return a, &syncer{state: newState(), agent: agent{client.New(socket.Addr().String())},
		log: slog.New(slog.DiscardHandler), applied: -1, await: map[string]time.Time{}}
}

func object(uid, namespace, name string, labels map[string]string) api.Object {
	return api.Object{Metadata: api.ObjectMeta{UID: uid, Namespace: namespace, Name: name, Labels: labels}}
}

// A pod that a refused module would select keeps dropping everything. One that it would not select is admitted, and so
// are all if the module is one that may be absent.
func TestPodsOfRefusedModules(t *testing.T) {
	for _, c := range []struct {
		app    string
		policy v1.FailurePolicy
		held   bool
	}{{"web", v1.FailClosed, true}, {"web", "", true}, {"web", v1.FailOpen, false}, {"db", v1.FailClosed, false}} {
		a, s := heldPod(t)
		s.state.moduleHandler().Replace([]api.ClusterModule{{Metadata: api.ObjectMeta{Name: "deny"},
			Spec: api.ClusterModuleSpec{Package: api.Package{Name: "firewall"}, FailurePolicy: c.policy,
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

// Until all lists have come, a snapshot does not decide about pods that are newer than it.
func TestPodsNewerThanTheSnapshot(t *testing.T) {
	for _, earlier := range []bool{true, false} {
		a, s := heldPod(t)
		s.state.update(ofAll, func() {
			s.state.restored, s.state.earlier = true, map[string]bool{"u1": earlier}
			s.state.namespaces["shop"] = labelsOf(nil)
		})
		s.state.podHandler().Replace([]api.Object{object("u1", "shop", "web", nil)})
		if _, err := s.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := names.IsPending(a.service.Metadata.Labels); got == earlier {
			t.Errorf("in the snapshot %v: held %v", earlier, got)
		}
		s.state.moduleHandler().Replace(nil)
		s.state.namespaceHandler().Replace([]api.Object{object("n", "", "shop", nil)})
		if _, err := s.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if names.IsPending(a.service.Metadata.Labels) {
			t.Errorf("in the snapshot %v: held after all lists", earlier)
		}
	}
}

// A service whose pod is gone is deleted when its network namespace is gone, too, and not while an agent that has just
// started knows no interfaces yet.
func TestServicesOfDeletedPods(t *testing.T) {
	for reason, want := range map[string]bool{"NotFound": true, "NoInterface": false} {
		a, s := heldPod(t)
		a.service.Status = &v1.ServiceStatus{Conditions: []v1.Condition{{Type: "Ready", Status: "False", Reason: reason}}}
		s.state.moduleHandler().Replace(nil)
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
