// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/integrations/kubernetes/nri"
)

// ran is a sandbox that was there before kerb-cni was in its network.
func ran(id string) nri.Pod {
	return nri.Pod{ID: id, Namespace: "shop", Name: "web", UID: "u1", Netns: "/run/netns/cni-" + id,
		Labels: map[string]string{"app": "web", names.LabelPending: "true"}}
}

// A pod that ran before kerb-cni was in its network becomes a service with its labels, if the container runtime reports
// its network namespace. One that would be held stays as it is: its connections are not those of a pod that starts.
func TestAdopted(t *testing.T) {
	deny := api.Module{Metadata: api.ObjectMeta{Name: "deny"},
		Spec: api.ModuleSpec{Package: api.Package{Name: "firewall"}}} // the agent refuses it
	synced := func(s *state) { synced(s) }
	for name, c := range map[string]struct {
		set   func(*state)
		pod   func(*nri.Pod)
		after func(*state)
		app   string // of the service; empty: there is none
	}{
		"listed": {set: synced, app: "web"},
		"shown": {app: "shown", set: func(s *state) { // its labels have changed since
			synced(s)
			s.podHandler().Set(object("u1", "shop", "web", map[string]string{"app": "shown"}))
		}},
		"static": {app: "mirror", set: func(s *state) {
			synced(s)
			mirror := object("m1", "shop", "web", map[string]string{"app": "mirror"})
			mirror.Metadata.Annotations = &api.Annotations{Static: "u1"}
			s.podHandler().Set(mirror)
		}},
		"mirror of another": {set: func(s *state) {
			synced(s)
			mirror := object("m1", "evil", "web", map[string]string{"app": "mirror"})
			mirror.Metadata.Annotations = &api.Annotations{Static: "u1"}
			s.podHandler().Set(mirror)
		}},
		"no namespace of the network": {set: synced, pod: func(p *nri.Pod) { p.Netns = "" }}, // also of an older kerb-nri
		"ended":                       {set: synced, after: func(s *state) { runtimePods{s, nil}.Stop(ran("c")) }},
		"runtime away": {set: synced, after: func(s *state) {
			runtimePods{s, slog.New(slog.DiscardHandler)}.Disconnected(errors.New("away"))
		}},
		"refused module": {set: func(s *state) { synced(s); s.moduleHandler(ofClusterModules).Set(deny) }},
		"Module": {app: "web", set: func(s *state) { // its author does not keep the pod away from ClusterModules
			synced(s)
			own := deny
			own.Metadata.Namespace = "shop"
			s.moduleHandler(ofModules).Set(own)
		}},
		"unknown namespace": {set: func(s *state) { synced(s); s.namespaceHandler().Replace(nil) }},
		"newer than the snapshot": {set: func(s *state) {
			s.update(ofAll, func() bool { s.restored, s.namespaces["shop"] = true, labelsOf(nil); return true })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a, s := heldPod(t)
			a.service.Metadata.Name = "p-other"
			c.set(s.state)
			p := ran("c")
			if c.pod != nil {
				c.pod(&p)
			}
			runtimePods{s.state, s.log}.Replace("r", slices.Values([]nri.Pod{p}))
			if c.after != nil {
				c.after(s.state)
			}
			if _, err := s.round(t.Context()); err != nil {
				t.Fatal(err)
			}
			if c.app == "" {
				if a.service.Metadata.Name != "p-other" {
					t.Errorf("adopted: %+v", a.service)
				}
				return
			}
			want := map[string]string{"app": c.app, names.LabelNamespace: "shop", names.LabelPod: "web",
				names.LabelAttachment: names.Adopted("c").String()}
			is := a.service
			if is.Metadata.Name != serviceOf(p) || !maps.Equal(is.Metadata.Labels, want) || is.Spec.Netns != p.Netns ||
				is.Metadata.ResourceVersion != "" {
				t.Errorf("the service is %+v", is)
			}
			is.Metadata.ResourceVersion, is.Metadata.Owner = "7", names.OwnerPods
			a.service = is
			if _, err := s.round(t.Context()); err != nil || len(s.state.runtime.listed) > 0 {
				t.Errorf("%v, %d sandboxes are still listed", err, len(s.state.runtime.listed))
			}
		})
	}
}

// A service that kerb-cni has made stays, also if it is pending. One of an adopted sandbox that has ended goes, also
// while its pod is there, and the sandbox that has replaced it is adopted.
func TestAdoptedOnce(t *testing.T) {
	a, s := heldPod(t)
	synced(s.state)
	before := a.service.Metadata.Labels[names.LabelAttachment]
	all := []nri.Pod{ran("c"), ran("c2")}
	runtimePods{s.state, s.log}.Replace("r", slices.Values(all))
	if _, err := s.round(t.Context()); err != nil || a.service.Metadata.Labels[names.LabelAttachment] != before ||
		a.service.Spec.Netns != "" || len(s.state.runtime.listed) > 0 {
		t.Errorf("%v, the service of kerb-cni became %+v", err, a.service)
	}

	s.state.podHandler().Set(object("u1", "shop", "web", map[string]string{"app": "web"}))
	runtimePods{s.state, s.log}.Replace("r", slices.Values(all))
	gone := &v1.ServiceStatus{Conditions: []v1.Condition{{Type: "Ready", Status: "False", Reason: "NotFound"}}}
	a.service.Metadata.Labels = names.PodLabels(names.Pod{Namespace: "shop", Name: "web"}, names.Adopted("c"))
	a.service.Status = &v1.ServiceStatus{Links: []v1.ServiceLink{{Interface: "veth1"}}, Conditions: gone.Conditions}
	if _, err := s.round(t.Context()); err != nil || a.deleted {
		t.Errorf("%v, deleted with its chains: %v", err, a.deleted)
	}
	runtimePods{s.state, s.log}.Replace("r", slices.Values(all))
	a.service.Metadata.Labels = names.PodLabels(names.Pod{Namespace: "shop", Name: "web"}, names.Adopted("c"))
	a.service.Status = gone
	if _, err := s.round(t.Context()); err != nil || !a.deleted || len(s.state.runtime.listed) != 1 {
		t.Errorf("%v, deleted: %v, listed %v", err, a.deleted, s.state.runtime.listed)
	}
	a.service = v1.Service{Metadata: v1.ObjectMeta{Name: "p-other", Owner: names.OwnerPods}}
	_, err := s.round(t.Context())
	if err != nil || a.service.Metadata.Labels[names.LabelAttachment] != names.Adopted("c2").String() {
		t.Errorf("%v, the later sandbox: %+v", err, a.service)
	}
}
