// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch/watchtest"
)

// ready makes a comparison some seconds later, and compares the condition Ready with what it should be. It returns when
// the condition changed last.
func (r *recorded) ready(status, reason string, parts ...string) time.Time {
	r.t.Helper()
	r.ticks(1)
	for _, c := range r.s.modules["web"].Status.Conditions {
		if c.Type != conditionReady {
			continue
		}
		if c.Status != status || c.Reason != reason || c.Generation != r.m.Metadata.Generation {
			r.t.Errorf("condition %+v, want %s %s of generation %d", c, status, reason, r.m.Metadata.Generation)
		}
		for _, part := range parts {
			if !strings.Contains(c.Message, part) {
				r.t.Errorf("the message has no %q: %s", part, c.Message)
			}
		}
		if n := len([]rune(c.Message)); n > maxMessage {
			r.t.Errorf("a message of %d runes", n)
		}
		return c.Transition
	}
	r.t.Fatal("no condition Ready")
	return time.Time{}
}

func reports(n int, of string) *api.KerbNodeStatus {
	out := &api.KerbNodeStatus{}
	for i := range n {
		out.Modules = append(out.Modules, api.ModuleReport{Name: fmt.Sprint(of, i), Reason: "Refused",
			Message: strings.Repeat("what it says ", 20)})
	}
	return out
}

// Ready says what nodes report of a ClusterModule without a rollout, of which generation, and since when.
func TestReady(t *testing.T) {
	r := newRecorded(newDrill(t, 5, api.Rollout{}))
	r.m.Spec.Rollout = nil
	all := r.nodes
	r.nodes = nil
	r.ready("Unknown", reasonNoNodes, "install kerb-kube-node")
	r.nodes = all
	since := r.ready("True", reasonNoProblem, "none of 5 nodes")
	r.m.Metadata.Generation++
	if now := r.ready("True", reasonNoProblem); !now.Equal(since) {
		t.Errorf("the time of the transition went from %v to %v without one", since, now)
	}
	r.report(3, "Refused", 8)
	failed := r.ready("False", reasonFailed, "1 of 5 nodes", "n03: what the node says", "kubectl get kerbnode n03")
	if !failed.After(since) {
		t.Errorf("a transition at %v, and the one before at %v", failed, since)
	}
	r.report(2, "Refused", 8)
	if now := r.ready("False", reasonFailed, "2 of 5 nodes", "one of them n02"); !now.Equal(failed) {
		t.Errorf("the time of the transition went from %v to %v without one", failed, now)
	}
	r.nodes[2].Status, r.nodes[3].Status = reports(10, "other-"), nil
	r.ready("Unknown", reasonFull, "n02", "correct those first")
}

// In a rollout, Ready waits for the nodes that are to run the new version.
func TestReadyInRollout(t *testing.T) {
	r := newRecorded(newDrill(t, 4, api.Rollout{SoakSeconds: new(0), Waves: []int{100}, Nodes: []string{"n01"}}).checked())
	r.ready("False", reasonProgressing, "1 of 1 nodes", "kubectl kerb rollout status web")
	r.runAll()
	r.ready("False", reasonProgressing, "3 of 4 nodes")
	r.runAll()
	r.ready("True", reasonNoProblem)
	if c := r.s.modules["web"].Status.Conditions; len(c) != 2 || c[0].Type != conditionRolledOut || c[0].Generation != 7 {
		t.Errorf("%+v", c)
	}
}

// A Module of a namespace gets a status when it is new, has changed, or nodes report something else of it, and not when
// nodes come or report other modules. A limited number is written at a time.
func TestTenants(t *testing.T) {
	s, now := newState(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	nodes := handler(s, ofNodes, s.nodes, usedFields)
	tenants := handler(s, ofTenants, s.tenants, func(m tenant) tenant { return m })
	node := func(i int, status *api.KerbNodeStatus) api.KerbNode {
		return api.KerbNode{Metadata: api.ObjectMeta{Name: fmt.Sprintf("n%02d", i)}, Status: status}
	}
	handler(s, ofModules, s.modules, func(m api.ClusterModule) api.ClusterModule { return m }).Replace(nil)
	handler(s, ofHosts, s.hosts, readiness).Replace(nil)
	nodes.Replace([]api.KerbNode{node(0, nil)})
	if len(s.dueTenants(now)) > 0 {
		t.Error("Modules are due before they are listed")
	}
	const all = 25
	var list []tenant
	for i := range all {
		list = append(list, tenant{Metadata: api.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("web-", i), Generation: 3}})
	}
	tenants.Replace(list)
	write := func() (names []string) {
		now = now.Add(2 * time.Second)
		for name, c := range s.dueTenants(now) {
			s.tenants[name] = c.tenant
			names = append(names, name)
		}
		return names
	}
	expect := func(what string, names []string, want int) {
		t.Helper()
		if len(names) != want {
			t.Errorf("%s: %v are written, want %d", what, names, want)
		}
	}
	for _, n := range []int{maxTenantWrites, maxTenantWrites, all - 2*maxTenantWrites, 0} {
		expect("new Modules", write(), n)
	}
	nodes.Set(node(1, nil))
	expect("a new node", write(), 0)
	nodes.Set(node(1, reports(9, "shop/other-")))
	expect("a node reports others", write(), 0)
	nodes.Set(node(1, reports(3, "shop/web-")))
	expect("a node reports three", write(), 3)
	is := s.tenants["shop/web-1"].Status
	if c := is.Conditions[0]; is.Generation != 3 || is.Failed != 1 || c.Status != "False" || c.Generation != 3 ||
		!strings.HasPrefix(c.Message, "n01: what it says") || !strings.HasSuffix(c.Message, "about the node") ||
		!c.Transition.Equal(now) {
		t.Errorf("%+v", is)
	}
	nodes.Set(node(2, reports(10, "other-")))
	expect("a node has no room for more", write(), 0)
	nodes.Set(node(1, nil))
	expect("nothing is wrong", write(), 3)
	if c := s.tenants["shop/web-1"].Status.Conditions[0]; c.Status != "True" || !c.Transition.Equal(now) {
		t.Errorf("%+v", c)
	}
}

// With an earlier definition of Modules, which has no status, each is tried once. What another error keeps from being
// written is tried again.
func TestTenantsWithoutStatus(t *testing.T) {
	for code, want := range map[int]int{http.StatusNotFound: 15, http.StatusServiceUnavailable: 40} {
		s, asked := newState(), 0
		client := watchtest.Client(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked++
			if r.Method != http.MethodPatch || !strings.HasPrefix(r.URL.Path, basePath+"namespaces/shop/modules/web-") ||
				!strings.HasSuffix(r.URL.Path, "/status") {
				t.Errorf("%s %s", r.Method, r.URL.Path)
			}
			w.WriteHeader(code)
		}))
		s.lists, s.tenantsChanged = ofAll|ofTenants, true
		for i := range 15 {
			m := tenant{Metadata: api.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("web-", i)}}
			s.tenants[nameOf(&m.Metadata)] = m
		}
		leader := &elector{until: time.Now().Add(time.Hour)}
		for range 4 {
			s.writeTenants(t.Context(), client, leader, recorders{}, slog.New(slog.DiscardHandler))
		}
		if asked != want {
			t.Errorf("answers of %d: %d requests, want %d", code, asked, want)
		}
	}
}
