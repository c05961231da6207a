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

// While a trace runs, its chains count as the plain ones. A change that replaces them ends it with a conflict; another
// can begin when the plain ones are back.
func TestSession(t *testing.T) {
	point := chain.Point{Ifindex: 3, Side: chain.OnTCIngress}
	place := plan.Placement{Chain: chain.Spec{Side: chain.OnTCIngress, Direction: chain.Egress}}
	observed := func() chain.State {
		return chain.State{Chains: []chain.Pinned{{ID: place.Chain.ID(), Program: 7}},
			Points: []chain.Attached{{Point: point, Program: 101}, {Point: chain.Point{Ifindex: 4}, Program: 102}}}
	}
	programs := func(s *Session) (out [2]uint32) {
		state := observed()
		s.ShowPlain(state)
		return [2]uint32{state.Points[0].Program, state.Points[1].Program}
	}
	var none *Session
	if none.Runs() || !none.Over() || programs(none) != [2]uint32{101, 102} {
		t.Error("no session is one that runs")
	}
	none.Interrupt()
	closed := false
	s := NewSession(t.Context(), silent{&closed}, plan.Placements{point: place}, Reader{})
	if !s.Runs() || s.Over() || programs(s) != [2]uint32{7, 102} {
		t.Errorf("while it runs: programs %v", programs(s))
	}
	done := make(chan error)
	go func() { done <- s.Report(v1.TraceRequest{Seconds: 600}, func(v1.TraceLine) error { return nil }) }()
	s.Interrupt()
	var conflict *apierrors.Conflict
	if err := <-done; !errors.As(err, &conflict) {
		t.Errorf("interrupted: %v", err)
	}
	if s.Runs() || programs(s) != [2]uint32{101, 102} {
		t.Error("traced chains count as plain ones after a change has replaced them")
	}
	s.Stop()
	if s.Over() || closed {
		t.Error("over before the plain chains are back")
	}
	s.End()
	<-s.Ended()
	if !s.Over() || !closed {
		t.Error("not over")
	}
	ended := NewSession(t.Context(), silent{&closed}, nil, Reader{})
	ended.Stop()
	if err := ended.Report(v1.TraceRequest{Seconds: 600}, nil); err != nil {
		t.Errorf("the client went: %v", err)
	}
}
