// SPDX-License-Identifier: Apache-2.0

package samples

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
)

// Sampler takes samples: for the files each 10 s, and each second while clients follow. History may be called from
// several goroutines.
type Sampler struct {
	log   *slog.Logger
	store *Store // nil: there are no files
	err   error  // why not
	live  Live
	wake  chan struct{}
}

// OpenSampler opens the files in a directory; without a name there are none: the history is off. If there are none,
// History says why, except to clients that follow.
func OpenSampler(dir string, log *slog.Logger) *Sampler {
	s := &Sampler{log: log, wake: make(chan struct{}, 1)}
	if dir == "" {
		s.err = &apierrors.Conflict{Reason: fmt.Sprintf("the history is off: add %q to the configuration of the agent (see "+
			"kerb agent --help) and restart it", "history: {}")}
		return s
	}
	store, err := Open(dir)
	if s.store = store; err != nil {
		log.Warn("the history is not kept", "error", err)
		s.err = &apierrors.Conflict{Reason: "the history cannot be kept: " + err.Error()}
	}
	return s
}

// Close closes the files.
func (s *Sampler) Close() {
	if s.store != nil {
		s.store.Close()
	}
}

// Run takes samples until ctx ends. read reads what is sampled into readings, which it resets.
func (s *Sampler) Run(ctx context.Context, read func(*Readings)) {
	if s.store == nil {
		s.runLive(ctx, read)
		return
	}
	var filed, live Rates
	var all Readings
	due, failing := time.Now().Add(Period), false
	timer := time.NewTimer(0)
	defer timer.Stop()
	read(&all)
	filed.Add(time.Now(), &all)
	for {
		wait := time.Until(due)
		followed := s.live.Wanted()
		if followed {
			wait = min(wait, Second)
		} else {
			live = Rates{}
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
			continue
		case <-timer.C:
		}
		now := time.Now()
		read(&all)
		if followed {
			live.Add(now, &all)
			s.live.Add(now, all.All())
		}
		if now.Before(due) {
			continue
		}
		due = now.Add(Period)
		filed.Add(now, &all)
		s.store.Omit(all.Omitted())
		err := s.store.Add(now, all.All())
		if err != nil && !failing {
			s.log.Warn("samples are not kept", "error", err)
		}
		failing = err != nil
	}
}

// runLive takes samples while clients follow, without files. Without clients it does nothing.
func (s *Sampler) runLive(ctx context.Context, read func(*Readings)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
			s.whileFollowed(ctx, read)
		}
	}
}

func (s *Sampler) whileFollowed(ctx context.Context, read func(*Readings)) {
	var rates Rates
	var all Readings
	tick := time.NewTicker(Second)
	defer tick.Stop()
	for s.live.Wanted() {
		read(&all)
		now := time.Now()
		rates.Add(now, &all)
		s.live.Add(now, all.All())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// History passes on samples: those of the past, or new ones until ctx ends. For the latter no files are needed.
func (s *Sampler) History(ctx context.Context, r v1.HistoryRequest, send func(v1.HistoryLine) error) error {
	want := func(of v1.Series) bool { return r.Name == "" || of.Service == r.Name || of.Module == r.Name }
	if !r.Follow && s.err != nil {
		return s.err
	}
	if !r.Follow {
		return s.store.Read(time.Duration(r.Since)*time.Second, want, send)
	}
	first, leave := s.live.Join()
	defer leave()
	if first {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return s.live.Follow(ctx, want, send)
}
