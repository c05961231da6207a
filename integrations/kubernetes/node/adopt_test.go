// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/events"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/integrations/kubernetes/nri"
)

// ran returns a sandbox that existed before kerb-cni was in its network.
func ran(id string) nri.Pod {
	return nri.Pod{ID: id, Namespace: "shop", Name: "web", UID: "u1", Netns: "/run/netns/cni-" + id,
		Labels: map[string]string{"app": "web", names.LabelPending: "true"}}
}

// A pod that ran before kerb-cni was in its network gets a service with its labels, if the container runtime reports
// its network namespace. A pod that would be held is not adopted: unlike a starting pod, it already has connections.
func TestAdopted(t *testing.T) {
	deny := api.Module{Metadata: api.ObjectMeta{Name: "deny"},
		Spec: api.ModuleSpec{Package: api.Package{Name: "firewall"}}} // the agent rejects it
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
		"mirror of another": {app: "web", set: func(s *state) { // its author cannot prevent the adoption of the static pod
			synced(s)
			mirror := object("m1", "evil", "web", map[string]string{"app": "mirror"})
			mirror.Metadata.Annotations = &api.Annotations{Static: "u1"}
			s.podHandler().Set(mirror)
		}},
		"no namespace of the network": {set: synced, pod: func(p *nri.Pod) { p.Netns = "" }}, // also with an older kerb-nri
		"ended":                       {set: synced, after: func(s *state) { runtimePods{s, nil}.Stop(ran("c")) }},
		"runtime away": {set: synced, after: func(s *state) {
			runtimePods{s, slog.New(slog.DiscardHandler)}.Disconnected(errors.New("away"))
		}},
		"refused module": {set: func(s *state) { synced(s); s.moduleHandler(ofClusterModules).Set(deny) }},
		"Module": {app: "web", set: func(s *state) { // its author cannot make the pod evade ClusterModules
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

// A service of kerb-cni stays, also if it is pending. The service of an adopted sandbox that has ended is deleted, also
// while its pod exists, and the sandbox that has replaced it is adopted.
func TestAdoptionIsIdempotent(t *testing.T) {
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

var notFound = &v1.ServiceStatus{Conditions: []v1.Condition{{Type: "Ready", Status: "False", Reason: "NotFound"}}}

// logged captures the log of a syncer.
func (s *syncer) logged() *bytes.Buffer {
	var text bytes.Buffer
	s.log = slog.New(slog.NewTextHandler(&text, nil))
	return &text
}

// A failed or rejected adoption delays no other pod, and no deletion. It is retried with backoff, and succeeds when the
// agent accepts it.
func TestAdoptionRefused(t *testing.T) {
	for _, status := range []int{http.StatusInternalServerError, http.StatusPreconditionFailed,
		http.StatusUnprocessableEntity} {
		a, s := heldPod(t)
		log, now := s.logged(), time.Now()
		s.state.clock = func() time.Time { return now }
		synced(s.state)
		s.state.podHandler().Set(object("u1", "shop", "web", map[string]string{"app": "web"}))
		pod := a.service.Metadata.Name
		a.more = []v1.Service{{Metadata: v1.ObjectMeta{Name: names.Pod{UID: "gone"}.Service(), Owner: names.OwnerPods},
			Status: notFound}}
		other := func(name, uid string) nri.Pod {
			p := ran("of-" + name)
			p.Name, p.UID = name, uid
			return p
		}
		bad, good := other("bad", "u2"), other("good", "u3")
		runtimePods{s.state, s.log}.Replace("r", slices.Values([]nri.Pod{bad, good}))
		waits := &start{"p-other", "x", make(chan error, 1), nil}
		s.state.runtime.starts = []*start{waits}
		tried := 0
		a.change = func(all []v1.Service) int {
			for _, is := range all {
				if len(all) == 1 {
					a.more = append(a.more, is)
					a.more[len(a.more)-1].Metadata.Owner = names.OwnerPods
				}
				if is.Metadata.Name == serviceOf(bad) {
					if len(all) == 1 {
						tried++
						a.more = a.more[:len(a.more)-1]
					}
					return status
				}
			}
			return 0
		}
		round := func(want int) {
			t.Helper()
			if _, err := s.round(t.Context()); err != nil {
				t.Errorf("%d: the round fails: %v", status, err)
			}
			if warned := strings.Count(log.String(), "WARN"); tried != want || warned != want {
				t.Errorf("%d: tried %d times, %d warnings, want %d:\n%s", status, tried, warned, want, log)
			}
		}
		round(1)
		has := map[string]bool{}
		for _, is := range a.more {
			has[is.Metadata.Name] = !names.IsPending(is.Metadata.Labels)
		}
		if !has[pod] || !has[serviceOf(good)] || !a.deleted || len(waits.decided) != 1 {
			t.Errorf("%d: services %v, deleted %v, %d starts decided", status, has, a.deleted, len(waits.decided))
		}
		if n := strings.Count(log.String(), "pod adopted"); n != 1 {
			t.Errorf("%d: %d pods are logged as adopted, want 1:\n%s", status, n, log)
		}
		round(1)
		now = now.Add(minAdoptBackoff)
		round(2)
		now = now.Add(minAdoptBackoff)
		round(2)
		now = now.Add(minAdoptBackoff)
		round(3)
		for range 10 {
			now = now.Add(maxAdoptBackoff)
			round(tried + 1)
		}
		now, a.change = now.Add(maxAdoptBackoff), nil
		if _, err := s.round(t.Context()); err != nil || a.service.Metadata.Name != serviceOf(bad) ||
			!strings.Contains(log.String(), "pod=shop/bad\n") {
			t.Errorf("%d: accepted: %v, %+v\n%s", status, err, a.service.Metadata, log)
		}
	}
}

// recorded returns the messages of queued Events.
func (e *podEvents) recorded() (all []string) {
	e.recorder.Keep(func(of events.Event) bool {
		all = append(all, of.Reason+": "+of.Message)
		return true
	})
	return all
}

// A running pod cannot evade adoption with too many labels: it becomes pending, like a pod of kerb-cni.
func TestAdoptedWithTooManyLabels(t *testing.T) {
	a, s := heldPod(t)
	log := s.logged()
	s.events = newTestEvents()
	a.service.Metadata.Name = "p-other"
	synced(s.state)
	many := map[string]string{"app": "web"}
	for i := range maxLabels {
		many[fmt.Sprint("l", i)] = ""
	}
	s.state.podHandler().Set(object("u1", "shop", "web", many))
	runtimePods{s.state, s.log}.Replace("r", slices.Values([]nri.Pod{ran("c")}))
	if _, err := s.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := names.Pod{Namespace: "shop", Name: "web", UID: "u1"}
	is := a.service
	if is.Metadata.Name != p.Service() || !maps.Equal(is.Metadata.Labels, names.PodLabels(p, names.Adopted("c"))) {
		t.Fatalf("the service is %+v", is)
	}
	if !strings.Contains(log.String(), "all its packets are dropped") || !strings.Contains(log.String(), "pod=shop/web") {
		t.Errorf("the log is\n%s", log)
	}
	a.service.Metadata.Owner = names.OwnerPods
	if _, err := s.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.events.recorded(); len(got) != 1 || !strings.HasPrefix(got[0], "NotAdmitted: "+allDropped+"it has over") {
		t.Errorf("Events %q", got)
	}
	s.state.podHandler().Set(object("u1", "shop", "web", map[string]string{"app": "web"}))
	if _, err := s.round(t.Context()); err != nil || names.IsPending(a.service.Metadata.Labels) ||
		!names.IsAdopted(a.service.Metadata.Labels[names.LabelAttachment]) {
		t.Errorf("%v, with fewer labels: %+v", err, a.service.Metadata)
	}
}

// A pod that runs without modules because it would be held is logged and has an Event. It does not count as a pod whose
// packets are dropped.
func TestUnadopted(t *testing.T) {
	a, s := heldPod(t)
	log := s.logged()
	s.events = newTestEvents()
	a.service.Metadata.Name = "p-other"
	synced(s.state, api.Module{Metadata: api.ObjectMeta{Name: "deny"},
		Spec: api.ModuleSpec{Package: api.Package{Name: "firewall"}}})
	s.state.podHandler().Set(object("u1", "shop", "web", map[string]string{"app": "web"}))
	runtimePods{s.state, s.log}.Replace("r", slices.Values([]nri.Pod{ran("c"), ran("c2")}))
	for range 3 {
		if _, err := s.round(t.Context()); err != nil || a.service.Metadata.Name != "p-other" {
			t.Fatalf("%v, adopted: %+v", err, a.service)
		}
	}
	const words = "NotProtected: the pod, which ran before Kerb, has no modules: module deny"
	if got := s.events.recorded(); len(got) != 1 || !strings.HasPrefix(got[0], words) || s.events.count() != 0 {
		t.Errorf("Events %q, %d pods are not admitted", got, s.events.count())
	}
	if n := strings.Count(log.String(), "pod=shop/web"); n != 1 || !strings.Contains(log.String(), "module deny") {
		t.Errorf("%d lines, want 1:\n%s", n, log)
	}
	s.state.moduleHandler(ofClusterModules).Replace(nil)
	if _, err := s.round(t.Context()); err != nil || a.service.Metadata.Name == "p-other" ||
		len(s.events.recorded()) > 0 {
		t.Errorf("%v, without the module: %+v, Events %q", err, a.service.Metadata, s.events.recorded())
	}
}

// A service of an earlier sandbox does not prevent the adoption of the pod's current one, no matter whether it was
// created by kerb-cni or by adoption.
func TestAdoptionAfterEarlierSandbox(t *testing.T) {
	p := names.Pod{Namespace: "shop", Name: "web", UID: "u1"}
	made := names.Attachment{Network: "n", ContainerID: "c", Interface: "eth0"}
	for name, c := range map[string]struct {
		of      names.Attachment
		listed  []string
		deleted bool
	}{
		"of kerb-cni, another sandbox": {made, []string{"c2"}, true},
		"of kerb-cni, both":            {made, []string{"c", "c2"}, true},
		"of kerb-cni, of the listed":   {made, []string{"c"}, false},
		"adopted":                      {names.Adopted("c"), []string{"c", "c2"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			a, s := heldPod(t)
			synced(s.state)
			s.state.podHandler().Set(object("u1", "shop", "web", map[string]string{"app": "web"}))
			var all []nri.Pod
			for _, id := range c.listed {
				all = append(all, ran(id))
			}
			a.service.Metadata.Labels = names.PodLabels(p, c.of)
			runtimePods{s.state, s.log}.Replace("r", slices.Values(all))
			if names.IsAdopted(c.of.String()) { // its interface still exists for a moment
				if _, err := s.round(t.Context()); err != nil || a.deleted {
					t.Errorf("%v, deleted while it may exist: %v", err, a.deleted)
				}
			}
			a.service.Status = &v1.ServiceStatus{Links: []v1.ServiceLink{{Interface: "veth1"}},
				Conditions: notFound.Conditions}
			if _, err := s.round(t.Context()); err != nil || a.deleted {
				t.Errorf("%v, deleted with its chains: %v", err, a.deleted)
			}
			a.service.Status = notFound
			if _, err := s.round(t.Context()); err != nil || a.deleted != c.deleted {
				t.Errorf("%v, deleted: %v", err, a.deleted)
			}
			if !c.deleted {
				return
			}
			a.service = v1.Service{Metadata: v1.ObjectMeta{Name: "p-other", Owner: names.OwnerPods}}
			_, err := s.round(t.Context())
			if err != nil || a.service.Metadata.Labels[names.LabelAttachment] != names.Adopted("c2").String() {
				t.Errorf("%v, the present sandbox: %+v", err, a.service)
			}
		})
	}
}
