// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	kubelabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/internal/seed"
	"github.com/kerb-edge/kerb/internal/service"
)

// random generates selectors and labels from few words, so that they often match.
type random struct{ *rand.Rand }

func (r random) word(words string) string { return string(words[r.IntN(len(words))]) }

func (r random) labels() map[string]string {
	out := map[string]string{}
	for range r.IntN(4) {
		out[r.word("abc")] = r.word("xyz")
	}
	return out
}

func (r random) selector() *api.LabelSelector {
	if r.IntN(5) == 0 {
		return nil
	}
	s := &api.LabelSelector{MatchLabels: map[string]string{}}
	for range r.IntN(2) {
		s.MatchLabels[r.word("abc")] = r.word("xyz")
	}
	for range r.IntN(3) {
		q := api.Requirement{Key: r.word("abc"), Operator: []string{"In", "NotIn", "Exists", "DoesNotExist"}[r.IntN(4)]}
		if strings.HasSuffix(q.Operator, "In") {
			q.Values = []string{r.word("xyz"), r.word("xyz")}
		}
		s.Expressions = append(s.Expressions, q)
	}
	return s
}

// kubernetes returns the selector in Kubernetes' own code. A nil selector selects everything here.
func kubernetes(t *testing.T, s *api.LabelSelector) kubelabels.Selector {
	t.Helper()
	out := kubelabels.Everything()
	if s == nil {
		return out
	}
	for key, value := range s.MatchLabels {
		out = add(t, out, key, selection.Equals, value)
	}
	for _, q := range s.Expressions {
		operator := map[string]selection.Operator{"In": selection.In, "NotIn": selection.NotIn, "Exists": selection.Exists,
			"DoesNotExist": selection.DoesNotExist}[q.Operator]
		out = add(t, out, q.Key, operator, q.Values...)
	}
	return out
}

func add(t *testing.T, to kubelabels.Selector, key string, operator selection.Operator,
	values ...string) kubelabels.Selector {
	t.Helper()
	requirement, err := kubelabels.NewRequirement(key, operator, values)
	if err != nil {
		t.Fatal(err)
	}
	return to.Add(*requirement)
}

// The agent attaches a module to the pods that Kubernetes' own code selects, and to nothing else.
func TestSelectorAgainstKubernetes(t *testing.T) {
	r := random{seed.Rand(t)}
	selected := 0
	for range 2000 {
		namespaces, sets := map[string]labels{}, map[string]map[string]string{}
		for _, name := range []string{"n1", "n2", "n3"} {
			sets[name] = r.labels()
			namespaces[name] = labelsOf(sets[name])
		}
		s := api.PodSelector{Namespaces: r.selector(), Pods: r.selector()}
		text, err := selector(api.Module{Spec: api.ModuleSpec{Attach: api.Attach{Pods: s}}}, namespaces)
		if err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		agent, err := service.ParseSelector(text)
		if err != nil {
			t.Fatalf("%+v became %q: %v", s, text, err)
		}
		for name, set := range sets {
			pod := r.labels()
			identity := names.Pod{Namespace: name, Name: "p", UID: "1"}
			pending := names.PodLabels(identity, names.Attachment{})
			want := kubernetes(t, s.Namespaces).Matches(kubelabels.Set(set)) &&
				kubernetes(t, s.Pods).Matches(kubelabels.Set(pod))
			if got := agent.Matches(names.Admit(pending, pod)); got != want {
				t.Fatalf("%+v became %q: a pod %v in %v is selected: %v", s, text, pod, set, got)
			}
			if agent.Matches(pending) || agent.Matches(pod) {
				t.Fatalf("%q selects a pending pod, or a service that is no pod", text)
			}
			if want {
				selected++
			}
		}
	}
	if selected < 500 {
		t.Errorf("only %d pods were selected", selected)
	}
}

// Specs that an API server with our definitions rejects are rejected with the field.
func TestTranslateRefuses(t *testing.T) {
	name := api.Package{Name: "counter"}
	pods := func(s api.LabelSelector) api.Attach { return api.Attach{Pods: api.PodSelector{Pods: &s}} }
	for i, c := range []struct {
		name  string
		spec  api.ModuleSpec
		field string
	}{
		{names.Pending, api.ModuleSpec{Package: name}, "metadata.name"},
		{"a", api.ModuleSpec{Package: api.Package{Name: "a", Image: "b@sha256:c"}}, "spec.package"},
		{"a", api.ModuleSpec{Package: api.Package{Image: "b:latest"}}, "spec.package"},
		{"a", api.ModuleSpec{Package: api.Package{Name: "/etc"}}, "spec.package.name"},
		{"a", api.ModuleSpec{Package: name, Attach: pods(api.LabelSelector{
			MatchLabels: map[string]string{"a": "b,!c"}})}, "podSelector"},
		{"a", api.ModuleSpec{Package: name, Attach: pods(api.LabelSelector{
			MatchLabels: map[string]string{names.LabelPending: "true"}})}, "podSelector"},
		{"a", api.ModuleSpec{Package: name, Attach: pods(api.LabelSelector{
			Expressions: []api.Requirement{{Key: "a", Operator: "In"}}})}, "matchExpressions"},
		{"a", api.ModuleSpec{Package: name, Attach: pods(api.LabelSelector{
			Expressions: []api.Requirement{{Key: "a) ,b", Operator: "Exists"}}})}, "podSelector"},
	} {
		_, _, err := translate(api.Module{Metadata: api.ObjectMeta{Name: c.name}, Spec: c.spec}, nil)
		if err == nil || !strings.Contains(err.Error(), c.field) {
			t.Errorf("case %d: %v, want an error of %s", i, err, c.field)
		}
	}
}

// A new pod waits until the labels of its namespace are known: they may select a module that denies.
func TestPodWaitsForNamespace(t *testing.T) {
	s := newState("n1")
	identity := names.Pod{Namespace: "prod", Name: "p", UID: "1"}
	s.podHandler().Set(api.Object{Metadata: api.ObjectMeta{Namespace: "prod", Name: "p", UID: "1"}})
	v := s.view()
	pods, ok := s.podServices(v.rules)
	if p, known := pods.of(identity.Service(), true); !ok || !known || p.held == nil {
		t.Errorf("%v is not held", p)
	}
	s.namespaceHandler().Set(api.Object{Metadata: api.ObjectMeta{Name: "prod"}})
	if _, ok := s.podServices(v.rules); ok {
		t.Error("pods are admitted to modules of an older state")
	}
	pods, ok = s.podServices(s.view().rules)
	if p, known := pods.of(identity.Service(), true); !ok || !known || p.held != nil {
		t.Errorf("%v is still held", p)
	}
}

// A state restored from disk is not complete: it deletes nothing.
func TestSnapshot(t *testing.T) {
	s, dir := newState("n1"), t.TempDir()
	if err := s.save(dir); err != nil {
		t.Fatal(err)
	}
	if again := newState("n1"); again.restore(dir) != nil || again.view().known {
		t.Error("a state that was never complete was written")
	}
	s.moduleHandler(ofModules).Replace(nil)
	s.moduleHandler(ofClusterModules).Replace([]api.Module{{Metadata: api.ObjectMeta{Name: "m", Generation: 3}}})
	s.namespaceHandler().Replace([]api.Object{{Metadata: api.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}}}})
	s.podHandler().Replace([]api.Object{{Metadata: api.ObjectMeta{Name: "p", Namespace: "n", UID: "1",
		Labels: map[string]string{"c": "", "d": "e"}, Annotations: &api.Annotations{Static: "2"}}}})
	if err := s.save(dir); err != nil {
		t.Fatal(err)
	}
	again := newState("n1")
	if err := again.restore(dir); err != nil {
		t.Fatal(err)
	}
	v := again.view()
	if !v.known || v.complete || len(v.modules) != 1 || v.modules[0].Metadata.Generation != 3 ||
		fmt.Sprint(v.namespaces["n"].set()) != "map[a:b]" || fmt.Sprint(again.pods["1"].labels.set()) != "map[c: d:e]" ||
		again.pods["1"].static != "2" {
		t.Errorf("the state is %+v with pods %v", v, again.pods)
	}
	if err := s.save("/proc/no/such"); err == nil {
		t.Error("a missing directory was written")
	}
}

// Reports do not grow with the number of failures.
func TestStatusIsBounded(t *testing.T) {
	s := &syncer{state: newState("n1")}
	for i := range 100 {
		s.reports = append(s.reports, api.ModuleReport{Name: fmt.Sprint(i), Message: strings.Repeat("ä", 5000)})
	}
	out := statusOf(s, nil)
	if len(out.Modules) != maxReports || slices.ContainsFunc(out.Modules, func(r api.ModuleReport) bool {
		return len([]rune(r.Message)) > maxMessage
	}) || len([]rune(out.Conditions[0].Message)) > maxMessage {
		t.Errorf("the status has %d modules", len(out.Modules))
	}
	s = &syncer{state: newState("n1")}
	for i := range maxVersions + 50 {
		m := inRollout(nil)
		m.Metadata.Name = fmt.Sprint("m", i)
		s.state.modules[m.Metadata.Name] = m
		s.state.checks[m.Metadata.Name] = check{Version: m.Version()}
	}
	if out := statusOf(s, nil); len(out.Checked)+len(out.Updated) != maxVersions {
		t.Errorf("the status has %d versions", len(out.Checked)+len(out.Updated))
	}
}

// Specs of namespaced Modules that an API server without our definitions would accept are rejected with the field.
func TestModulesAreRestricted(t *testing.T) {
	name := api.Package{Name: "counter"}
	digest, others := "example.org/a/b@sha256:0", api.PodSelector{Namespaces: &api.LabelSelector{}}
	ordered := func(o v1.Order) v1.CommonModuleSpec { return v1.CommonModuleSpec{Order: o} }
	for field, spec := range map[string]api.ModuleSpec{
		"namespaceSelector":     {Package: name, Attach: api.Attach{Pods: others}},
		"spec.package.name":     {Package: api.Package{Name: "nat"}},
		"order.priority: -1 is": {Package: name, CommonModuleSpec: ordered(v1.Order{Priority: -1})},
		"order.priority: 1001":  {Package: name, CommonModuleSpec: ordered(v1.Order{Priority: api.MaxPriority + 1})},
		"order.direction":       {Package: name, CommonModuleSpec: ordered(v1.Order{Direction: v1.OrderSame})},
		"budget.memory": {Package: name, CommonModuleSpec: v1.CommonModuleSpec{
			Budget: v1.Budget{Memory: "1Gi"}}},
		"kerb package pull " + digest: {Package: api.Package{Image: digest}},
	} {
		m := api.Module{Metadata: api.ObjectMeta{Name: "m", Namespace: "shop"}, Spec: spec}
		_, _, err := translate(m, nil)
		if err == nil {
			_, err = allowed(m, nil)
		}
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%+v: %v, want an error of %s", spec, err, field)
		}
	}
	for field, rule := range map[string]any{
		"src":     map[string]any{"services": "app=web"},
		"dst":     map[string]any{"Set": "blocked"},
		"srcPort": map[string]any{"set": "ports"},
	} {
		spec := api.ModuleSpec{Package: api.Package{Name: "firewall"}}
		spec.Config = map[string]any{"rules": []any{map[string]any{"action": "deny"},
			map[string]any{"action": "deny", field: rule}}}
		m := api.Module{Metadata: api.ObjectMeta{Name: "m", Namespace: "shop"}, Spec: spec}
		if _, _, err := translate(m, nil); err == nil || !strings.Contains(err.Error(), "spec.config.rules[1]."+field+": ") ||
			!strings.Contains(err.Error(), "use a ClusterModule") {
			t.Errorf("a Module with %s %v: %v", field, rule, err)
		}
		m.Metadata.Namespace = ""
		if _, _, err := translate(m, nil); err != nil {
			t.Errorf("a ClusterModule with %s %v: %v", field, rule, err)
		}
	}
	m := api.Module{Metadata: api.ObjectMeta{Name: "m", Namespace: "shop"}, Spec: api.ModuleSpec{
		Package: api.Package{Image: digest}}}
	for i, c := range []struct {
		p  v1.Package
		ok bool
	}{{v1.Package{Hooks: []string{"tc"}}, true}, {v1.Package{Hooks: []string{"sockets"}}, false},
		{v1.Package{Hooks: []string{"tc"}, Capabilities: []string{"inject"}}, false}} {
		if _, err := allowed(m, map[string]v1.Package{digest: c.p}); (err == nil) != c.ok {
			t.Errorf("case %d: %v", i, err)
		}
	}
	other := podService{pod: pod{namespace: "other"}, pending: true}
	if (&syncer{absentClosed: []api.Module{m}}).holdOfRejected(view{}, other) != nil {
		t.Error("a refused Module holds pods of another namespace")
	}
}
