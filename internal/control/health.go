// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// checkHealth returns the number of successive checks without any answer.
func (p *Supervisor) checkHealth(ctx context.Context, r *run, missed int) int {
	health, err := p.askHealth(ctx, r)
	var answer *AnswerError
	if err != nil && !errors.As(err, &answer) {
		p.setState(func(s *State) { s.HealthKnown, s.Healthy, s.Reason = true, false, cutText(err.Error()) })
		return missed + 1
	}
	kept, wrong := within(health)
	if wrong != "" && wrong != r.wrong {
		p.log.Warn("a part of the control plane's answer to health is ignored", "reason", wrong)
	}
	r.wrong = wrong
	p.setState(func(s *State) {
		s.HealthKnown, s.Healthy, s.Reason = true, err == nil, ""
		if err != nil {
			s.Reason = cutText(err.Error())
			return
		}
		s.Conditions, s.Ejected = kept.Conditions, kept.Ejected
	})
	return 0
}

// askHealth returns the control plane's report. An unhealthy control plane answers with an error.
func (p *Supervisor) askHealth(ctx context.Context, r *run) (health sdk.HealthAnswer, err error) {
	err = p.call(ctx, r, callTime, "health", nil, &health)
	if answered(err, http.StatusNotFound) || errors.Is(err, errNotUnderstood) { // any 200 is good health
		return sdk.HealthAnswer{}, nil
	}
	return health, err
}

// settle is how long a new version has to stay healthy: one that falls over does so soon after its start.
const settle = 300 * time.Millisecond

// AwaitHealthy returns nil once the control plane has taken its map set over, says that all is well, and says so
// again after a moment; and an error when it ends or ctx ends before that.
func (p *Supervisor) AwaitHealthy(ctx context.Context) error {
	var well time.Time // since when
	var last error     // of its health
	for {
		p.mu.Lock()
		s, progress, r := p.state, p.progress, p.run
		p.mu.Unlock()
		if s.Restarts > 0 {
			return errors.New(s.Reason)
		}
		if s.Started && r != nil {
			_, err := p.askHealth(ctx, r)
			switch {
			case err != nil && ctx.Err() != nil:
				return fmt.Errorf("not healthy in time: %w", cmp.Or(last, err))
			case err != nil:
				well, last = time.Time{}, err
			case well.IsZero():
				well = time.Now()
			case time.Since(well) >= min(settle, p.pkg.Control.HealthTime()/2):
				return nil
			}
		}
		select {
		case <-progress:
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("not healthy in time: %w", cmp.Or(last, errors.New(p.State().Reason)))
		}
	}
}
