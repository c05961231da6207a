// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
)

func spec(ids ...string) chain.Spec {
	c := chain.Spec{Side: chain.OnTCIngress, Direction: chain.Egress}
	for _, id := range ids {
		c.Members = append(c.Members, chain.Member{Name: id[:1], ID: id})
	}
	return c
}

func pinned(c chain.Spec, program uint32) chain.Pinned {
	return chain.Pinned{ID: c.ID(), Spec: c, Program: program}
}

var port1, port2 = chain.Point{Ifindex: 1, Side: chain.OnTCIngress}, chain.Point{Ifindex: 2, Side: chain.OnTCIngress}

func actions(steps []Step) []string {
	var out []string
	for _, s := range steps {
		text := string(s.Action)
		switch s.Action {
		case CreateMapSet, RemoveMapSet:
			text += " " + s.MapSet
		case Attach, Replace, Detach:
			text += " " + s.Point.String()
		}
		out = append(out, text)
	}
	return out
}

func TestSteps(t *testing.T) {
	old, next := spec("a1", "b1"), spec("a2", "b1")
	running := chain.State{
		MapSets: map[string][]string{"a": {"a1"}, "b": {"b1"}},
		Chains:  []chain.Pinned{pinned(old, 7)},
		Points:  []chain.Attached{{Point: port1, Program: 7}},
	}
	vanished := running
	vanished.Points = []chain.Attached{{Point: port1, Program: 0}}
	for name, c := range map[string]struct {
		want Desired
		have chain.State
		is   []string
	}{
		"nothing": {Desired{}, chain.State{}, nil},
		"first": {Desired{MapSets: map[string]string{"a": "a1"}, Points: map[chain.Point]chain.Spec{port1: spec("a1"),
			port2: spec("a1")}}, chain.State{},
			[]string{"create map set a1", "create chain", "attach 1_tc-ingress", "attach 2_tc-ingress"}},
		"same": {Desired{MapSets: map[string]string{"a": "a1", "b": "b1"},
			Points: map[chain.Point]chain.Spec{port1: old}}, running, nil},
		"new config": {Desired{MapSets: map[string]string{"a": "a2", "b": "b1"},
			Points: map[chain.Point]chain.Spec{port1: next}}, running,
			[]string{"create map set a2", "create chain", "replace 1_tc-ingress", "remove chain", "remove map set a1"}},
		"all gone": {Desired{}, running, []string{"detach 1_tc-ingress", "remove chain", "remove map set a1",
			"remove map set b1"}},
		"all gone, but keep": {Desired{Keep: true}, running, nil},
		"interface vanished": {Desired{MapSets: map[string]string{"a": "a1", "b": "b1"}}, vanished,
			[]string{"detach 1_tc-ingress", "remove chain"}},
		"index used again": {Desired{MapSets: map[string]string{"a": "a1", "b": "b1"},
			Points: map[chain.Point]chain.Spec{port1: old}}, vanished,
			[]string{"attach 1_tc-ingress"}},
		"vanished, but keep": {Desired{MapSets: map[string]string{"a": "a1", "b": "b1"}, Keep: true}, vanished,
			[]string{"detach 1_tc-ingress", "remove chain"}},
	} {
		if diff := cmp.Diff(c.is, actions(Steps(c.want, c.have))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A new map set inherits from the one that sees packets, not from one that a killed agent left behind.
func TestPredecessor(t *testing.T) {
	old := spec("a2")
	have := chain.State{
		MapSets: map[string][]string{"a": {"a1", "a2"}},
		Chains:  []chain.Pinned{pinned(old, 7)},
		Points:  []chain.Attached{{Point: port1, Program: 7}},
	}
	steps := Steps(Desired{MapSets: map[string]string{"a": "a3"},
		Points: map[chain.Point]chain.Spec{port1: spec("a3")}}, have)
	if steps[0].From != "a2" {
		t.Errorf("inherits from %s, want a2", steps[0].From)
	}
}

func TestOrder(t *testing.T) {
	m := func(name string, priority int, before, after []string) v1.Module {
		return v1.Module{Metadata: v1.ObjectMeta{Name: name},
			Spec: v1.ModuleSpec{CommonModuleSpec: v1.CommonModuleSpec{
				Order: v1.Order{Priority: priority, Before: before, After: after}}}}
	}
	rank := func(name string) int { return map[string]int{"handsOver": 50}[name] }
	for name, c := range map[string]struct {
		in  []v1.Module
		out []string
	}{
		"by rank": {[]v1.Module{m("handsOver", 1, nil, nil), m("z", 1, nil, nil)},
			[]string{"z", "handsOver"}},
		"by priority and not rank": {[]v1.Module{m("handsOver", 1, nil, nil), m("z", 2, nil, nil)},
			[]string{"handsOver", "z"}},
		"by name":     {[]v1.Module{m("b", 1, nil, nil), m("a", 1, nil, nil)}, []string{"a", "b"}},
		"by priority": {[]v1.Module{m("a", 2, nil, nil), m("b", 1, nil, nil)}, []string{"b", "a"}},
		"before":      {[]v1.Module{m("a", 1, nil, nil), m("b", 9, []string{"a"}, nil)}, []string{"b", "a"}},
		"after": {[]v1.Module{m("a", 1, nil, []string{"b"}), m("b", 9, nil, nil), m("c", 5, nil, nil)},
			[]string{"c", "b", "a"}},
		"unknown others": {[]v1.Module{m("a", 1, []string{"x"}, []string{"y"})}, []string{"a"}},
	} {
		got, err := Order(c.in, rank)
		if err != nil || !slices.Equal(moduleNames(got), c.out) {
			t.Errorf("%s: %v (%v), want %v", name, moduleNames(got), err, c.out)
		}
	}
	var cycle *CycleError
	if _, err := Order([]v1.Module{m("a", 1, []string{"b"}, nil), m("b", 1, []string{"a"}, nil), m("c", 1, nil, nil)},
		rank); !errors.As(err, &cycle) || len(cycle.Modules) != 2 {
		t.Errorf("cycle: %v", err)
	}
}
