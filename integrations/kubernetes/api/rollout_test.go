// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"fmt"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

// A wave has the percentage of the nodes, and a larger wave has all nodes of a smaller one. Other modules start on
// other nodes.
func TestWaves(t *testing.T) {
	const nodes = 10_000
	runs := func(module string, percent, node int) bool {
		m := api.Module{Metadata: api.ObjectMeta{Name: module}, Spec: api.ModuleSpec{Package: api.Package{Name: "new"},
			Rollout: &api.Rollout{Percent: &percent, Previous: api.Previous{Package: api.Package{Name: "old"}}}}}
		return m.Side(m.Updated(fmt.Sprintf("node-%d", node))).Spec.Package.Name == "new"
	}
	before := map[int]bool{}
	for _, percent := range []int{0, 1, 5, 25, 50, 99, 100} {
		count, common := 0, 0
		for node := range nodes {
			is := runs("web", percent, node)
			if before[node] && !is {
				t.Fatalf("node-%d leaves the rollout at %d %%", node, percent)
			}
			if before[node] = is; is {
				count++
				if runs("db", percent, node) {
					common++
				}
			}
		}
		// Four standard deviations of a binomial distribution are at most 200 of 10,000.
		if want := nodes * percent / 100; count < want-200 || count > want+200 || percent%100 == 0 && count != want {
			t.Errorf("%d %% are %d of %d nodes", percent, count, nodes)
		}
		if percent == 5 && common > count/4 {
			t.Errorf("%d of %d nodes are the first ones of two modules", common, count)
		}
	}
}

// Canaries run the new version at 0 %, and the rest of the spec is the same on all nodes.
func TestCanaries(t *testing.T) {
	m := api.Module{Metadata: api.ObjectMeta{Name: "web"}, Spec: api.ModuleSpec{Package: api.Package{Name: "new"},
		CommonModuleSpec: v1.CommonModuleSpec{Config: map[string]any{"a": 1}, FailurePolicy: v1.FailOpen},
		Rollout: &api.Rollout{Percent: new(0), Nodes: []string{"n1"},
			Previous: api.Previous{Package: api.Package{Name: "old"}}}}}
	if on := m.Side(m.Updated("n1")).Spec; on.Package.Name != "new" || on.Config["a"] != 1 || on.Rollout != nil {
		t.Errorf("the canary runs %+v", on)
	}
	if on := m.Side(m.Updated("n2")).Spec; on.Package.Name != "old" || on.Config != nil || on.FailurePolicy != "open" {
		t.Errorf("the other node runs %+v", on)
	}
	m.Metadata.Namespace = "default"
	if on := m.Side(m.Updated("n2")).Spec; on.Rollout == nil || on.Package.Name != "new" {
		t.Errorf("a Module of a namespace became %+v: kerb-kube-node would not see that it has a rollout", on)
	}
}
