// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/chain"
)

// Chains are ready for services that modules select and that are not there, whatever else such a service meets; they
// stay until then, and are bounded.
func TestReady(t *testing.T) {
	tc := func(m *Module) { m.Hooks = []chain.Hook{chain.TC} }
	many := []*Module{}
	for i := range mostReady {
		many = append(many, with(onBoth(fmt.Sprint("m", i), fmt.Sprint("app=", i)), tc))
	}
	for name, c := range map[string]struct {
		modules []*Module
		want    []string
	}{
		"all selected":          {[]*Module{onBoth("a", "*"), onBoth("b", "tier in (back)")}, nil},
		"interfaces only":       {[]*Module{onBoth("a", "", "eth0")}, nil},
		"cannot run":            {[]*Module{with(onBoth("a", "x"), func(m *Module) { m.CannotRun = true })}, nil},
		"conditions contradict": {[]*Module{onBoth("a", "x=1,x=2")}, nil},
		"alone":                 {[]*Module{with(onBoth("a", "app in (x,y),!old"), tc)}, []string{"ingress a", "egress a"}},
		"with those that all meet": {[]*Module{onBoth("a", "*"), onBoth("b", "app=x", "eth0"), onBoth("c", "app=y")},
			[]string{"ingress b, a", "egress a, b", "ingress c, a", "egress a, c"}},
	} {
		in := node(c.modules...)
		placed, err := in.Place()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, spec := range in.Desired(placed, false).Ready {
			got = append(got, fmt.Sprintf("%s %s", spec.Direction, names(spec)))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if got, err := node(many...).Ready(nil); len(got) != mostReady || err != nil {
		t.Errorf("%d chains for %d modules, %v", len(got), len(many), err)
	}
	kept := spec("a1")
	want := Desired{MapSets: map[string]string{"a": "a1"}, Ready: []chain.Spec{kept}}
	have := chain.State{MapSets: map[string][]string{"a": {"a1"}},
		Chains: []chain.Pinned{pinned(kept, 7), pinned(spec("a0"), 8)}}
	if diff := cmp.Diff([]string{"remove chain"}, actions(Steps(want, have))); diff != "" {
		t.Error(diff)
	}
}
