// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch/watchtest"
)

// meta returns an object of generation 1 as an API server returns it.
func meta(name, uid string, labels map[string]string) map[string]any {
	return map[string]any{"metadata": map[string]any{"name": name, "uid": uid, "generation": 1, "labels": labels}}
}

// kubeServer returns the client of an API server that lists what is stored by path, and with a field selector by path
// and query; "=" and a path is a single object. It counts requests.
func kubeServer(t *testing.T, asked *atomic.Int32, stored map[string][]any) *watch.Client {
	t.Helper()
	return watchtest.Client(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if one := stored["="+r.URL.Path]; one != nil {
			_ = json.NewEncoder(w).Encode(one[0])
			return
		}
		items, ok := stored[r.URL.Path+"?"+r.URL.Query().Get("fieldSelector")]
		if !ok {
			items = stored[r.URL.Path]
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]any{"resourceVersion": "99"},
			"items": items})
	}))
}

// tenants returns a state with pods of two namespaces, in resource versions 50 and 40.
func tenants() *state {
	s := newState("n1")
	s.moduleHandler(ofModules).Replace(nil)
	s.moduleHandler(ofClusterModules).Replace(nil)
	s.namespaceHandler().Replace([]api.Object{object("n", "", "shop", nil), object("e", "", "evil", nil)})
	ours, theirs := object("u1", "shop", "web", nil), object("u2", "evil", "web", nil)
	ours.Metadata.ResourceVersion, theirs.Metadata.ResourceVersion = "50", "40"
	s.podHandler().Replace([]api.Object{ours, theirs})
	return s
}

func moduleOf(namespace, name string) api.Module {
	return api.Module{Metadata: api.ObjectMeta{Namespace: namespace, Name: name, UID: namespace + name, Generation: 1},
		Spec: api.ModuleSpec{Package: api.Package{Name: "counter"}}}
}

// podIn returns the pod of a namespace.
func podIn(t *testing.T, s *state, rules int, namespace, uid string) podService {
	t.Helper()
	pods, ok := s.podServices(rules)
	p, known := pods.of(names.Pod{Namespace: namespace, Name: "web", UID: uid}.Service(), true)
	if !ok || !known {
		t.Fatalf("pods %v, %v", pods, ok)
	}
	return p
}

// Frequent changes of the Modules of a namespace hold new pods of that namespace, and of no other.
func TestModulesHoldTheirNamespace(t *testing.T) {
	s := tenants()
	modules := s.moduleHandler(ofModules)
	for what, change := range map[string]func(){
		"created": func() { modules.Set(moduleOf("evil", "a")) },
		"changed": func() {
			m := moduleOf("evil", "a")
			m.Metadata.Generation = 2
			modules.Set(m)
		},
		"deleted": func() { modules.Delete(moduleOf("evil", "c")) },
		"listed":  func() { modules.Replace([]api.Module{moduleOf("evil", "b")}) },
	} {
		modules.Replace([]api.Module{moduleOf("evil", "c")})
		v := s.view()
		if change(); s.view().rules == v.rules {
			t.Errorf("%s: the agent's modules would not change", what)
		}
		if podIn(t, s, v.rules, "shop", "u1").held != nil {
			t.Errorf("a Module is %s: a pod of another namespace is held", what)
		}
		if podIn(t, s, v.rules, "evil", "u2").held == nil || podIn(t, s, s.view().rules, "evil", "u2").held != nil {
			t.Errorf("a Module is %s: a pod of the namespace is not held until the agent has it", what)
		}
	}
	v := s.view()
	s.moduleHandler(ofClusterModules).Set(moduleOf("", "wide"))
	if _, ok := s.podServices(v.rules); ok {
		t.Error("pods are admitted without a ClusterModule")
	}
}

// New pods are compared with the API server's store by namespace: a missing object of one namespace holds no pods of
// another, and a pod is not admitted because a newer one of another namespace was compared.
func TestConfirmedByNamespace(t *testing.T) {
	var asked atomic.Int32
	stored := map[string][]any{
		"/apis/kerb.dev/v1alpha1/namespaces/evil/modules": {meta("late", "m1", nil)},
		"/api/v1/namespaces?metadata.name=shop":           {meta("shop", "n", nil)},
		"/api/v1/namespaces?metadata.name=evil":           {meta("evil", "e", nil)},
	}
	c := &confirmer{client: kubeServer(t, &asked, stored), log: slog.New(slog.DiscardHandler)}
	s := tenants()
	v := s.view()
	ours, theirs := podIn(t, s, v.rules, "shop", "u1"), podIn(t, s, v.rules, "evil", "u2")
	unconfirmed := func(what string, wantOurs, wantTheirs bool, waiting ...podService) {
		t.Helper()
		c.start(t.Context(), s, s.view(), waiting)
		c.running.Wait()
		rules := s.view().rules
		if podIn(t, s, rules, "shop", "u1").unconfirmed != wantOurs ||
			podIn(t, s, rules, "evil", "u2").unconfirmed != wantTheirs {
			t.Errorf("%s: confirmed are %v", what, s.confirmed)
		}
	}
	unconfirmed("the first pod alone", false, true, ours)
	unconfirmed("a Module of the second is missing", false, true, ours, theirs)
	late := moduleOf("evil", "late")
	late.Metadata.UID = "m1"
	s.moduleHandler(ofModules).Set(late)
	unconfirmed("it has come", false, false, theirs)
}

// A namespace has eight Modules on the node, the oldest regardless of names.
func TestModulesAreCounted(t *testing.T) {
	a, s := heldPod(t)
	s.state = tenants()
	modules := s.state.moduleHandler(ofModules)
	created := func(name string, minute int) api.Module {
		m := moduleOf("shop", name)
		m.Metadata.Created = fmt.Sprintf("2026-11-27T10:%02d:00Z", minute)
		return m
	}
	for i := range api.MaxModules {
		modules.Set(created(fmt.Sprint("m", i), 1))
	}
	check := func(what, report string) {
		t.Helper()
		if _, err := s.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range api.MaxModules {
			if name := fmt.Sprint("m", i); a.modules[names.Module("shop", name)].Metadata.Name == "" {
				t.Errorf("%s: %s does not run", what, name)
			}
		}
		if len(a.modules) != api.MaxModules+1 { // plus the one for pending pods
			t.Errorf("%s: the agent has %d modules", what, len(a.modules))
		}
		if got := fmt.Sprint(s.namedReports()); !strings.Contains(got, report) || report == "" && got != "[]" {
			t.Errorf("%s: the node reports %s", what, got)
		}
	}
	check("eight", "")
	late := names.Module("shop", "a")
	a.modules[late] = v1.Module{Metadata: v1.ObjectMeta{Name: late, Owner: names.Owner}} // of an earlier kerb-kube-node
	modules.Set(created("a", 2))
	check("nine", "shop/a 1 TooMany")
	modules.Delete(created("a", 2))
	check("eight again", "")
}

// Frequent changes of the Modules of a namespace do not wear out the flash memory of nodes: the snapshot follows
// periodically, not before each change.
func TestSnapshotsOfModules(t *testing.T) {
	a, s := heldPod(t)
	s.state = tenants()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.before = func(all []v1.Module) {
		text, err := os.ReadFile(filepath.Join(dir, snapshotFile))
		switch has := bytes.Contains(text, []byte(`"busy"`)); {
		case err != nil:
			t.Errorf("modules of the first start are not on disk: %v", err)
			cancel()
		case len(all) < 2: // only the module for pending pods
			s.state.moduleHandler(ofModules).Set(moduleOf("evil", "busy"))
		default:
			if has {
				t.Error("the snapshot is written for each Module")
			}
			cancel()
		}
	}
	s.run(ctx, dir, newReporter(nil, "n1", s.log))
	if text, err := os.ReadFile(filepath.Join(dir, snapshotFile)); err != nil || !bytes.Contains(text, []byte(`"busy"`)) {
		t.Errorf("the snapshot at the end is %s, %v", text, err)
	}
}

// Of a namespaced Module that is too large only the metadata is kept, and the node reports it. The running version
// stays. A ClusterModule may be large.
func TestLargeModules(t *testing.T) {
	a, s := heldPod(t)
	s.state = tenants()
	decode := func(namespace string, size int) (m api.Module) {
		t.Helper()
		text := fmt.Sprintf(`{"metadata": {"name": "big", "namespace": %q, "labels": {"a": "b"}}, "spec": {
  "package": {"name": "counter"}, "config": {"x": %q}}}`, namespace, strings.Repeat("x", size))
		if err := json.Unmarshal([]byte(text), &m); err != nil || m.Metadata.Name != "big" || m.Metadata.Labels != nil {
			t.Fatalf("%+v, %v", m.Metadata, err)
		}
		return m
	}
	name := names.Module("shop", "big")
	for _, size := range []int{api.MaxSize / 2, api.MaxSize} {
		s.state.moduleHandler(ofModules).Set(decode("shop", size))
		if _, err := s.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		m, report := a.modules[name], fmt.Sprint(s.namedReports())
		if len(fmt.Sprint(m.Spec.Config)) < api.MaxSize/2 ||
			strings.Contains(report, "shop/big 0 TooLarge") != (size == api.MaxSize) {
			t.Errorf("%d bytes: the agent has %.100v, the node reports %s", size, m.Spec, report)
		}
	}
	if kept, ok := s.state.modules[name]; !ok || kept.Spec.Config != nil {
		t.Errorf("%.100v is kept", kept)
	}
	var reported api.Module
	text := fmt.Sprintf(`{"metadata": {"name": "big", "namespace": "shop", "managedFields": [{"x": %[1]q}]},
  "spec": {"config": {"x": %[1]q}}, "status": {"problems": [{"message": %[1]q}]}}`, strings.Repeat("x", api.MaxSize/2))
	if err := json.Unmarshal([]byte(text), &reported); err != nil || reported.TooLarge {
		t.Errorf("a status makes a Module too large: %v", err)
	}
	if wide := decode("", api.MaxSize); wide.TooLarge || wide.Spec.Config == nil {
		t.Errorf("of a ClusterModule %.100v is kept", wide)
	}
}
