// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
)

// A chain that is not traced has nothing of traces: no map, and so no instruction that could read a filter or report an
// event. After a trace the same program runs as before.
func TestUntracedChain(t *testing.T) {
	for _, side := range []chain.Side{chain.OnTCIngress, chain.OnXDP} {
		t.Run(string(side), func(t *testing.T) {
			w := newWorld(t, Options{})
			p := chain.Point{Ifindex: w.a.OuterIndex(), Side: side}
			pass := testModule(t, "pass", "count", nil)
			spec := w.deploy(t, p, chain.Egress, pass)
			before := w.runs(t, p)
			if maps := traceMaps(t, before); len(maps) != 0 {
				t.Errorf("without a trace the chain has %v", maps)
			}
			trace, err := w.Trace(TraceFilter{}, map[chain.Point]chain.Spec{p: spec}, map[string]Module{"count": pass})
			if err != nil {
				t.Fatal(err)
			}
			defer trace.Close()
			if maps := traceMaps(t, w.runs(t, p)); !slices.Contains(maps, "kerb_filter") {
				t.Errorf("the traced chain has %v", maps)
			}
			if err := w.Attach(p, spec); err != nil {
				t.Fatal(err)
			}
			if after := w.runs(t, p); after != before {
				t.Errorf("program %d runs after the trace, %d before", after, before)
			}
		})
	}
}

// runs is the program on a point.
func (w *world) runs(t *testing.T, p chain.Point) ebpf.ProgramID {
	t.Helper()
	state, err := w.Observe()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(state.Points, func(a chain.Attached) bool { return a.Point == p })
	if i < 0 || state.Points[i].Program == 0 {
		t.Fatalf("nothing runs on %v: %+v", p, state.Points)
	}
	return ebpf.ProgramID(state.Points[i].Program)
}

// traceMaps are the maps of a program that traces use.
func traceMaps(t *testing.T, id ebpf.ProgramID) (names []string) {
	t.Helper()
	for _, m := range mapsOf(t, id) {
		info, err := m.Info()
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc([]string{"kerb_filter", "kerb_events", "kerb_trace", "kerb_followed"},
			func(prefix string) bool { return strings.HasPrefix(info.Name, prefix) }) {
			names = append(names, info.Name)
		}
	}
	return names
}
