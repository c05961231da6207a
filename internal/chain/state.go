// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"maps"
	"slices"
)

// State is the state of the kernel, as the pins record it.
type State struct {
	MapSets map[string][]string // identities by module
	Values  map[MapSet]string   // identities of the values that packets meet, where they can change by themselves
	Chains  []Pinned
	Points  []Attached
}

// Programs returns the kernel's ids of the running programs by attach point.
func (s State) Programs() map[Point]uint32 {
	out := make(map[Point]uint32, len(s.Points))
	for _, a := range s.Points {
		out[a.Point] = a.Program
	}
	return out
}

// MapSet identifies the maps of a module.
type MapSet struct{ Module, ID string }

// Pinned is a chain found among the pins.
type Pinned struct {
	ID      string           // from the name of its directory; it differs from Spec.ID() when another build linked it
	Spec    Spec             // without Linker
	Program uint32           // the kernel's id of the first program
	Parts   int              // programs that the chain is split into, linked by tail calls
	Entries map[Entry]uint32 // of sockets: ids of the programs; Program is one of them
}

// Programs returns the ids of the programs that attach points may run for this chain.
func (c Pinned) Programs() []uint32 {
	if c.Entries != nil {
		return slices.Collect(maps.Values(c.Entries))
	}
	return []uint32{c.Program}
}

// Attached is the program that runs on a point.
type Attached struct {
	Point   Point
	Program uint32 // its id; 0 if the interface vanished under the link
	Mode    string
}
