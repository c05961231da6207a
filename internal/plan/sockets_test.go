// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/chain"
)

// A module on sockets is one chain of several programs, on attach points separate from those of other modules on the
// same cgroup.
func TestStepsOfSockets(t *testing.T) {
	sockets := func(id string, program uint32) (chain.Spec, chain.Pinned) {
		c := chain.Spec{Side: chain.OnSockets, Direction: chain.Both, Members: []chain.Member{{Name: id[:1], ID: id}}}
		p := pinned(c, program)
		p.Entries = map[chain.Entry]uint32{chain.All: program, chain.Services: program + 1}
		return c, p
	}
	a1, runningA := sockets("a1", 10)
	a2, _ := sockets("a2", 0)
	b1, runningB := sockets("b1", 20)
	at := func(module string, entry chain.Entry) chain.Point {
		return chain.Point{Side: chain.OnSockets, Cgroup: 7, Entry: entry, Module: module}
	}
	have := chain.State{
		MapSets: map[string][]string{"a": {"a1"}, "b": {"b1"}},
		Chains:  []chain.Pinned{runningA, runningB},
		Points: []chain.Attached{{Point: at("a", chain.All), Program: 10}, {Point: at("a", chain.Services), Program: 11},
			{Point: at("b", chain.Services), Program: 21}},
	}
	for name, c := range map[string]struct {
		a    chain.Spec
		want []string
	}{
		"same": {a1, nil},
		"new config": {a2, []string{"create map set a2", "create chain", "replace cgroup7_all_a",
			"replace cgroup7_services_a",
			"remove chain", "remove map set a1"}},
	} {
		want := Desired{MapSets: map[string]string{"a": c.a.Members[0].ID, "b": "b1"}, Points: map[chain.Point]chain.Spec{
			at("a", chain.All): c.a, at("a", chain.Services): c.a, at("b", chain.Services): b1}}
		if diff := cmp.Diff(c.want, actions(Steps(want, have))); diff != "" {
			t.Errorf("%s: want - have +\n%s", name, diff)
		}
	}
}
