// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

// A status counts what nodes say about the module; in a rollout, only those are ready that say that they run this
// version.
func TestCount(t *testing.T) {
	m := api.Module{Metadata: api.ObjectMeta{Name: "web", Generation: 4}, Spec: api.ModuleSpec{
		Package: api.Package{Name: "new"}}}
	runs := func(version string) *api.KerbNodeStatus {
		return &api.KerbNodeStatus{Updated: []api.NodeVersion{{Name: "web", Version: version}}}
	}
	says := func(name, reason string) *api.KerbNodeStatus {
		return &api.KerbNodeStatus{Modules: []api.ModuleReport{{Name: name, Reason: reason}}}
	}
	var nodes []api.KerbNode
	for i, status := range []*api.KerbNodeStatus{runs(m.Version()), runs(m.Version()), runs("another"), nil,
		says("web", api.RolledBack), says("web", "Refused"), says("db", "Refused")} {
		nodes = append(nodes, api.KerbNode{Metadata: api.ObjectMeta{Name: fmt.Sprint("n", i)}, Status: status})
	}
	check := func(what string, rollout *api.Rollout, want api.ClusterModuleStatus) {
		t.Helper()
		m.Spec.Rollout = rollout
		if got := api.Count(m, nodes); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	two := []api.Problem{{Reason: "Refused", Nodes: 1, Node: "n5"}, {Reason: api.RolledBack, Nodes: 1, Node: "n4"}}
	check("without a rollout", nil,
		api.ClusterModuleStatus{Generation: 4, Desired: 7, Ready: 5, Failed: 2, RolledBack: 1, Problems: two})
	check("all nodes", &api.Rollout{Percent: new(100)},
		api.ClusterModuleStatus{Generation: 4, Desired: 7, Ready: 2, Failed: 2, RolledBack: 1, Problems: two})
	check("canaries", &api.Rollout{Percent: new(0), Nodes: []string{"n0", "n2", "n4"}},
		api.ClusterModuleStatus{Generation: 4, Desired: 3, Ready: 1, Failed: 2, RolledBack: 1, Problems: two})
}

// Nodes that report the same are one entry; of many entries, those of most nodes are in the status.
func TestProblemsAreBounded(t *testing.T) {
	m := api.Module{Metadata: api.ObjectMeta{Name: "web"}}
	var nodes []api.KerbNode
	for i := range 100 {
		message := fmt.Sprint("refused by kernel ", i%20)
		if i%2 == 0 {
			message = "not signed"
		}
		nodes = append(nodes, api.KerbNode{Metadata: api.ObjectMeta{Name: fmt.Sprintf("n%02d", i)},
			Status: &api.KerbNodeStatus{Modules: []api.ModuleReport{
				{Name: "web", Reason: api.CheckFailed, Message: message}}}})
	}
	got := api.Count(m, nodes).Problems
	if len(got) != 10 || got[0] != (api.Problem{Reason: api.CheckFailed, Nodes: 50, Node: "n00", Message: "not signed"}) ||
		got[1].Nodes != 5 {
		t.Errorf("%d problems: %+v", len(got), got)
	}
}
