// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/dataplane"
)

// A module on sockets is one chain of several programs, on points of its own beside those of other modules on the same cgroup.
func TestStepsOfSockets(t *testing.T) {
	sockets := func(id string, program uint32) (dataplane.ChainSpec, dataplane.PinnedChain) {
		c := dataplane.ChainSpec{Side: dataplane.OnSockets, Direction: dataplane.Both, Members: []dataplane.Member{{Name: id[:1], ID: id}}}
		p := pinned(c, program)
		p.Entries = map[dataplane.Entry]ebpf.ProgramID{dataplane.All: ebpf.ProgramID(program), dataplane.Services: ebpf.ProgramID(program + 1)}
		return c, p
	}
	a1, runningA := sockets("a1", 10)
	a2, _ := sockets("a2", 0)
	b1, runningB := sockets("b1", 20)
	at := func(module string, entry dataplane.Entry) dataplane.Point {
		return dataplane.Point{Side: dataplane.OnSockets, Cgroup: 7, Entry: entry, Module: module}
	}
	have := dataplane.State{
		Generations: map[string][]string{"a": {"a1"}, "b": {"b1"}},
		Chains:      []dataplane.PinnedChain{runningA, runningB},
		Points: []dataplane.Attached{{Point: at("a", dataplane.All), Program: 10}, {Point: at("a", dataplane.Services), Program: 11},
			{Point: at("b", dataplane.Services), Program: 21}},
	}
	for name, c := range map[string]struct {
		a    dataplane.ChainSpec
		want []string
	}{
		"same": {a1, nil},
		"new config": {a2, []string{"create generation a2", "create chain", "replace cgroup7_all_a", "replace cgroup7_services_a",
			"remove chain", "remove generation a1"}},
	} {
		want := Desired{Generations: map[string]string{"a": c.a.Members[0].ID, "b": "b1"}, Points: map[dataplane.Point]dataplane.ChainSpec{
			at("a", dataplane.All): c.a, at("a", dataplane.Services): c.a, at("b", dataplane.Services): b1}}
		if diff := cmp.Diff(c.want, actions(Steps(want, have))); diff != "" {
			t.Errorf("%s: want - have +\n%s", name, diff)
		}
	}
}
