// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"errors"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/plan"
)

// Traced is the interface of traced chains in the kernel: *dataplane.Trace.
type Traced interface {
	Source
	Runs(program uint32) bool // one of them
	Close()
}

// Session is a client's trace, from the time when its chains replace the plain ones until these are restored. Only
// Report is safe for concurrent use with the other methods.
type Session struct {
	Reader
	Warning     string // what the kernel cannot show of the request, and why
	traced      Traced
	points      plan.Placements // that are traced
	ctx         context.Context
	cancel      context.CancelCauseFunc
	interrupted bool
	ended       chan struct{}
}

// errChanged ends a trace whose chains have been replaced by a change of the node.
var errChanged = errors.New("the chains changed, which ended the trace")

// NewSession returns the session of a client, which ends with ctx. Chains, Points and Reason of the reader are set.
func NewSession(ctx context.Context, t Traced, points plan.Placements, r Reader) *Session {
	s := &Session{Reader: r, traced: t, points: points, ended: make(chan struct{})}
	s.Source = t
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	return s
}

// Report shows packets until the client disconnects, its limits are reached, or the session is interrupted, which is a
// *apierrors.Conflict.
func (s *Session) Report(r v1.TraceRequest, show func(v1.TraceLine) error) error {
	ctx, cancel := context.WithTimeout(s.ctx, time.Duration(r.Seconds)*time.Second)
	defer cancel()
	s.Show, s.Count = show, r.Count
	s.Wanted = func(p v1.TracedPacket) bool { return Matches(r, p) }
	if s.Warning != "" {
		if err := show(v1.TraceLine{Warning: s.Warning}); err != nil {
			return err
		}
	}
	if err := s.Run(ctx); err != nil {
		return err
	}
	if cause := context.Cause(s.ctx); errors.Is(cause, errChanged) {
		return &apierrors.Conflict{Reason: cause.Error()}
	}
	return nil
}

// Runs reports whether traced chains replace the plain ones.
func (s *Session) Runs() bool { return !s.interrupted && !s.Over() }

// ShowPlain makes the traced chains of sessions count as the plain ones that they replace: observing the node must not
// end a trace. A session is interrupted if a change has replaced a traced chain, or has left none.
func ShowPlain(sessions []*Session, state chain.State) {
	plain := map[string]chain.Pinned{}
	for _, c := range state.Chains {
		plain[c.ID] = c
	}
	seen := slices.Clone(state.Points)
	for _, s := range sessions {
		if s.Runs() && !s.showPlain(seen, state.Points, plain) {
			s.interrupted = true
			s.cancel(errChanged)
		}
	}
}

// showPlain reports whether all remaining points have traced chains. For modules on sockets, which report themselves,
// these are the chains from before.
func (s *Session) showPlain(seen, shown []chain.Attached, plain map[string]chain.Pinned) bool {
	traced := 0
	for i, p := range seen {
		place, own := s.points[p.Point]
		if !own {
			continue
		}
		c := plain[place.Chain.ID()]
		switch {
		case !p.Point.Side.SeesPackets():
			if p.Program != 0 && !slices.Contains(c.Programs(), p.Program) {
				return false
			}
		case p.Program != 0 && !s.traced.Runs(p.Program):
			return false
		default:
			shown[i].Program = c.Program
		}
		traced++
	}
	return traced > 0
}

// Stop ends the report. From now on, plans consider the chains undesired programs.
func (s *Session) Stop() {
	s.interrupted = true
	s.cancel(nil)
}

// End is called when the plain chains are restored.
func (s *Session) End() {
	s.traced.Close()
	close(s.ended)
}

// Over reports whether the plain chains are restored.
func (s *Session) Over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}
