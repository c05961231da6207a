// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"errors"
	"os"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/plan"
)

// silent is a trace without packets; its programs have numbers from 100 on.
type silent struct{ closed *bool }

func (silent) Read(time.Time) (dataplane.TraceEvent, error) {
	return dataplane.TraceEvent{}, os.ErrDeadlineExceeded
}
func (silent) Lost() uint64          { return 0 }
func (silent) Runs(prog uint32) bool { return prog >= 100 }
func (s silent) Close()              { *s.closed = true }

// While a trace runs, its chains count as the plain ones, also where another one traces the same. A change that
// replaces them ends it with a conflict; another can begin when the plain ones are back.
func TestSession(t *testing.T) {
	point, other := chain.Point{Ifindex: 3, Side: chain.OnTCIngress}, chain.Point{Ifindex: 4, Side: chain.OnTCIngress}
	place := plan.Placement{Chain: chain.Spec{Side: chain.OnTCIngress, Direction: chain.Egress}}
	programs := func(own uint32, s ...*Session) [2]uint32 {
		state := chain.State{Chains: []chain.Pinned{{ID: place.Chain.ID(), Program: 7}},
			Points: []chain.Attached{{Point: point, Program: own}, {Point: other, Program: 102}}}
		ShowPlain(s, state)
		return [2]uint32{state.Points[0].Program, state.Points[1].Program}
	}
	if programs(101) != [2]uint32{101, 102} {
		t.Error("without a session traced chains count as plain ones")
	}
	closed, otherClosed := false, false
	s := NewSession(t.Context(), silent{&closed}, plan.Placements{point: place}, Reader{})
	both := NewSession(t.Context(), silent{&otherClosed}, plan.Placements{point: place, other: place}, Reader{})
	if !s.Runs() || s.Over() || programs(101, s) != [2]uint32{7, 102} || programs(101, s, both) != [2]uint32{7, 7} {
		t.Errorf("while it runs: programs %v", programs(101, s))
	}
	done := make(chan error)
	go func() { done <- s.Report(v1.TraceRequest{Seconds: 600}, func(v1.TraceLine) error { return nil }) }()
	if programs(8, s) != [2]uint32{8, 102} {
		t.Error("a chain that a change has put there counts as another one")
	}
	var conflict *apierrors.Conflict
	if err := <-done; !errors.As(err, &conflict) {
		t.Errorf("interrupted: %v", err)
	}
	if s.Runs() || programs(101, s) != [2]uint32{101, 102} {
		t.Error("traced chains count as plain ones after a change has replaced them")
	}
	if !both.Runs() {
		t.Error("a change at one session's chains has ended another one")
	}
	s.Stop()
	if s.Over() || closed {
		t.Error("over before the plain chains are back")
	}
	s.End()
	if !s.Over() || !closed || otherClosed {
		t.Error("not over")
	}
	ended := NewSession(t.Context(), silent{&closed}, nil, Reader{})
	ended.Stop()
	if err := ended.Report(v1.TraceRequest{Seconds: 600}, nil); err != nil {
		t.Errorf("the client went: %v", err)
	}
}

// A trace of modules on sockets alone, which report themselves, ends when a change has replaced one of them, or has
// left none.
func TestSessionOfMessages(t *testing.T) {
	point := chain.Point{Side: chain.OnSockets, Cgroup: 3, Entry: chain.All, Module: "fast"}
	place := plan.Placement{Chain: chain.Spec{Side: chain.OnSockets, Direction: chain.Both}}
	there := chain.Pinned{ID: place.Chain.ID(), Spec: place.Chain, Program: 6,
		Entries: map[chain.Entry]uint32{chain.All: 7, chain.Services: 6}}
	for name, c := range map[string]struct {
		chain   chain.Pinned
		program uint32
		points  int
		runs    bool
	}{
		"as it was":      {there, 7, 1, true},
		"cgroup is gone": {there, 0, 1, true},
		"replaced":       {there, 8, 1, false},
		"removed":        {chain.Pinned{}, 7, 1, false},
		"not attached":   {there, 7, 0, false},
	} {
		closed := false
		s := NewSession(t.Context(), silent{&closed}, plan.Placements{point: place}, Reader{})
		state := chain.State{Chains: []chain.Pinned{c.chain},
			Points: []chain.Attached{{Point: point, Program: c.program}}[:c.points]}
		ShowPlain([]*Session{s}, state)
		if s.Runs() != c.runs || c.points > 0 && state.Points[0].Program != c.program {
			t.Errorf("%s: it runs: %v; %+v", name, s.Runs(), state.Points)
		}
	}
}
