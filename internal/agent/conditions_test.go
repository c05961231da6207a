// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/resource"
)

// reported is what tests need of a condition.
type reported struct {
	Status     string
	Transition time.Time `json:"lastTransitionTime"`
	Observed   int64     `json:"observedGeneration"`
}

// conditions returns those of modules, services, virtual services and the agent, by kind, name and type.
func (n *node) conditions(t *testing.T) map[string]reported {
	t.Helper()
	out := map[string]reported{}
	add := func(kind, name string, all []v1.Condition) {
		for _, c := range all {
			text, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			var r reported
			if err := json.Unmarshal(text, &r); err != nil {
				t.Fatal(err)
			}
			out[kind+"/"+name+" "+c.Type] = r
		}
	}
	modules, err := list(t.Context(), n, resource.Module)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range modules {
		add("module", m.Metadata.Name, m.Status.Conditions)
	}
	services, err := list(t.Context(), n, resource.Service)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range services {
		add("service", s.Metadata.Name, s.Status.Conditions)
	}
	virtual, err := list(t.Context(), n, resource.VirtualService)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range virtual {
		add("virtualservice", s.Metadata.Name, s.Status.Conditions)
	}
	status, err := n.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	add("agent", "", status.Conditions)
	return out
}

func (n *node) reconcileNow(t *testing.T) {
	t.Helper()
	n.Exclusive.Lock()
	defer n.Exclusive.Unlock()
	if err := n.Reconcile(); err != nil {
		t.Fatal(err)
	}
}

// A transition time moves with the status of its condition, and with nothing else.
func TestTransitionTimes(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), module("first", testPackage(t, "pass"), "app=web", nil))
	n.applyVirtual(t, virtualService("api", []string{"10.30.0.1"}, v1.VirtualInstance{Name: "a", Service: "web"}))
	wait.Until(t, "all is well", func() bool {
		now := n.conditions(t)
		return now["module/first Ready"].Status == "True" && now["agent/ Reconciled"].Status == "True"
	})
	before := n.conditions(t)
	if len(before) < 7 {
		t.Fatalf("conditions are missing: %v", before)
	}
	same := func(what string) {
		t.Helper()
		after := n.conditions(t)
		maps.DeleteFunc(after, func(key string, _ reported) bool { _, ok := before[key]; return !ok })
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	n.reconcileNow(t)
	same("a reconciliation that changes nothing")
	n.apply(t, nil, module("second", testPackage(t, "pass"), "app=web", nil))
	same("a change of another module")
	second := n.conditions(t)["module/second Ready"]
	if first := before["module/first Ready"]; !second.Transition.After(first.Transition) || second.Observed != 1 {
		t.Errorf("the second module: %+v, the first: %+v", second, first)
	}

	changed := module("first", testPackage(t, "pass"), "app=web", nil)
	changed.Spec.Order.Priority = 7
	n.apply(t, nil, changed)
	first := n.conditions(t)["module/first Ready"]
	want := before["module/first Ready"]
	if !first.Transition.Equal(want.Transition) || first.Observed != 2 || want.Observed != 1 {
		t.Errorf("with another spec: %+v, was %+v", first, want)
	}

	if err := n.web.Remove(); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the service is gone", func() bool { return n.conditions(t)["service/web Ready"].Status == "False" })
	after := n.conditions(t)
	now, was := after["service/web Ready"], before["service/web Ready"]
	if !now.Transition.After(was.Transition) || now.Observed != 1 {
		t.Errorf("the service that is gone: %+v, was %+v", now, was)
	}
	if now, was := after["service/db Ready"], before["service/db Ready"]; now != was {
		t.Errorf("the other service: %+v, was %+v", now, was)
	}
}
