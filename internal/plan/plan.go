// SPDX-License-Identifier: Apache-2.0

// Package plan is pure. From modules, services and the observed state it determines which chain runs on which attach
// point, the order of its modules, and warnings. From that and the state of the kernel it derives the steps: create
// everything new, switch the attach points, then remove the old.
package plan

import (
	"fmt"
	"maps"
	"slices"

	"github.com/kerb-edge/kerb/internal/chain"
)

// Desired is the state that should run.
type Desired struct {
	MapSets map[string]string // identities of map sets by module name
	Values  map[string]string // identities of values, for modules whose values change without new map sets
	Points  map[chain.Point]chain.Spec
	Ready   []chain.Spec // chains that are not attached, and stay if they exist
	// Keep leaves chains attached that no module needs: after the loss of the store.
	Keep bool
}

// Action is the kind of a step.
type Action string

// Actions, in the order of their execution.
const (
	CreateMapSet Action = "create map set"
	CreateChain  Action = "create chain"
	SetValues    Action = "set values"
	Attach       Action = "attach"
	Replace      Action = "replace"
	Detach       Action = "detach"
	RemoveChain  Action = "remove chain"
	RemoveMapSet Action = "remove map set"
)

// Step is one change in the kernel.
type Step struct {
	Action    Action
	Module    string       // CreateMapSet, SetValues, RemoveMapSet
	MapSet    string       // of Module
	From      string       // CreateMapSet: the running map set, whose state the new one inherits
	Values    string       // CreateMapSet, SetValues: the new values of packets; may be empty for the former
	OldValues string       // SetValues: the current values of packets
	Point     chain.Point  // Attach, Replace, Detach
	Chain     chain.Spec   // CreateChain, Attach, Replace
	Old       chain.Pinned // Replace, Detach, RemoveChain: the running chain
}

// String returns the step as plans show it, for example in kerb apply --dry-run.
func (s Step) String() string {
	switch s.Action {
	case CreateMapSet, RemoveMapSet:
		return fmt.Sprintf("%s %s of module %s", s.Action, s.MapSet, s.Module)
	case SetValues:
		return fmt.Sprintf("%s %s of module %s (before: %s)", s.Action, s.Values, s.Module, s.OldValues)
	case CreateChain:
		return fmt.Sprintf("%s %s (%s %s: %s)", s.Action, s.Chain.ID(), s.Chain.Side, s.Chain.Direction, names(s.Chain))
	case RemoveChain:
		return fmt.Sprintf("%s %s", s.Action, s.Old.ID)
	case Detach:
		return fmt.Sprintf("%s chain %s from %s", s.Action, s.Old.ID, s.Point)
	case Replace:
		return fmt.Sprintf("%s chain %s by %s on %s", s.Action, s.Old.ID, s.Chain.ID(), s.Point)
	}
	return fmt.Sprintf("%s chain %s to %s", s.Action, s.Chain.ID(), s.Point)
}

func names(c chain.Spec) string {
	out := ""
	for i, m := range c.Members {
		if i > 0 {
			out += ", "
		}
		out += m.Name
	}
	return out
}

// Steps lists the steps from the observed to the desired state; none if they are equal.
func Steps(want Desired, have chain.State) []Step {
	running := runningChains(have)
	steps := mapSets(want, have, running)
	steps = append(steps, chains(want, have)...)
	steps = append(steps, values(want, have)...)
	steps = append(steps, points(want, have, running)...)
	return append(steps, leftovers(want, have, running)...)
}

// runningChains returns the chain on each point; an empty one for a program that belongs to no pinned chain.
func runningChains(have chain.State) map[chain.Point]chain.Pinned {
	byProgram := map[uint32]chain.Pinned{}
	for _, c := range have.Chains {
		for _, program := range c.Programs() {
			byProgram[program] = c
		}
	}
	out := map[chain.Point]chain.Pinned{}
	for _, a := range have.Points {
		out[a.Point] = byProgram[a.Program]
	}
	return out
}

func mapSets(want Desired, have chain.State, running map[chain.Point]chain.Pinned) []Step {
	var steps []Step
	for _, name := range slices.Sorted(maps.Keys(want.MapSets)) {
		id := want.MapSets[name]
		if slices.Contains(have.MapSets[name], id) {
			continue
		}
		steps = append(steps, Step{Action: CreateMapSet, Module: name, MapSet: id, Values: want.Values[name],
			From: predecessor(name, have, running)})
	}
	return steps
}

// values returns the changes that need neither maps nor programs.
func values(want Desired, have chain.State) []Step {
	var steps []Step
	for _, name := range slices.Sorted(maps.Keys(want.Values)) {
		id := want.MapSets[name]
		now, exists := have.Values[chain.MapSet{Module: name, ID: id}]
		if exists && now != want.Values[name] {
			steps = append(steps, Step{Action: SetValues, Module: name, MapSet: id, Values: want.Values[name],
				OldValues: now})
		}
	}
	return steps
}

// predecessor returns the map set whose state a new one inherits: the one that packets use, else any existing one.
func predecessor(name string, have chain.State, running map[chain.Point]chain.Pinned) string {
	for _, p := range chain.Sorted(running) {
		for _, m := range running[p].Spec.Members {
			if m.Name == name && slices.Contains(have.MapSets[name], m.ID) {
				return m.ID
			}
		}
	}
	if ids := have.MapSets[name]; len(ids) > 0 {
		return ids[0]
	}
	return ""
}

// chains returns steps for chains that are not loaded yet. A chain's ID is derived from its contents, so that attach
// points with equal chains share one.
func chains(want Desired, have chain.State) []Step {
	known := map[string]bool{}
	for _, c := range have.Chains {
		known[c.ID] = true
	}
	var steps []Step
	for _, p := range chain.Sorted(want.Points) {
		spec := want.Points[p]
		if id := spec.ID(); !known[id] {
			known[id] = true
			steps = append(steps, Step{Action: CreateChain, Chain: spec})
		}
	}
	return steps
}

// points returns the steps for attach points, sorted, so that equal inputs give equal plans. With Keep, undesired
// chains stay attached, except on points that no longer exist.
func points(want Desired, have chain.State, running map[chain.Point]chain.Pinned) []Step {
	var steps []Step
	gone := gonePoints(have)
	for _, p := range chain.Sorted(want.Points) {
		spec := want.Points[p]
		old, attached := running[p]
		switch {
		case !attached || gone[p]:
			steps = append(steps, Step{Action: Attach, Point: p, Chain: spec})
		case old.ID != spec.ID():
			steps = append(steps, Step{Action: Replace, Point: p, Chain: spec, Old: old})
		}
	}
	for _, p := range chain.Sorted(running) {
		if _, wanted := want.Points[p]; !wanted && (!want.Keep || gone[p]) {
			steps = append(steps, Step{Action: Detach, Point: p, Old: running[p]})
		}
	}
	return steps
}

// gonePoints returns the points whose interface has vanished under its link.
func gonePoints(have chain.State) map[chain.Point]bool {
	out := map[chain.Point]bool{}
	for _, a := range have.Points {
		if a.Program == 0 {
			out[a.Point] = true
		}
	}
	return out
}

// leftovers returns the chains and map sets that are unused once the points are switched.
func leftovers(want Desired, have chain.State, running map[chain.Point]chain.Pinned) []Step {
	usedChains, usedMapSets := map[string]bool{}, map[string]bool{}
	use := func(id string, members []chain.Member) {
		usedChains[id] = true
		for _, m := range members {
			usedMapSets[m.Name+"/"+m.ID] = true
		}
	}
	for _, spec := range want.Points {
		use(spec.ID(), spec.Members)
	}
	for _, spec := range want.Ready {
		use(spec.ID(), spec.Members)
	}
	for name, id := range want.MapSets {
		usedMapSets[name+"/"+id] = true
	}
	if want.Keep {
		for p, c := range running {
			if _, wanted := want.Points[p]; !wanted {
				use(c.ID, c.Spec.Members)
			}
		}
	}
	var steps []Step
	for _, c := range have.Chains {
		if !usedChains[c.ID] {
			steps = append(steps, Step{Action: RemoveChain, Old: c})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have.MapSets)) {
		for _, id := range have.MapSets[name] {
			if !usedMapSets[name+"/"+id] {
				steps = append(steps, Step{Action: RemoveMapSet, Module: name, MapSet: id})
			}
		}
	}
	return steps
}
