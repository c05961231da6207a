// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
)

// The kernel keeps 1 KiB for each socket in a SOCKHASH. A module with the program age finds idle sockets every
// agePeriod. User space removes them: syscall programs may not, and no other program runs while a socket is idle.
const agePeriod = time.Second

// IdleAging ages the idle sockets of an attached module until Close.
type IdleAging struct {
	sockets *sockets
	cancel  context.CancelFunc
	done    chan struct{}
}

// AgeIdle removes idle sockets from the map of a chain until Close. It calls gaveUp if that fails permanently. It
// returns nil if the chain does not exist, or its module has no program for it.
func (d *Dataplane) AgeIdle(spec chain.Spec, gaveUp func(error)) (*IdleAging, error) {
	s, err := openSockets(d.layout.chain(spec))
	if err != nil {
		return nil, fmt.Errorf("open programs: %w", err)
	}
	if s.progs[agePin] == nil {
		s.Close()
		return nil, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	t := &IdleAging{sockets: s, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		if err := s.ageIdle(ctx, agePeriod); err != nil {
			gaveUp(err)
		}
	}()
	return t, nil
}

// Close may be called on nil.
func (t *IdleAging) Close() {
	if t == nil {
		return
	}
	t.cancel()
	<-t.done
	t.sockets.Close()
}

// ageIdle removes idle sockets periodically, until ctx ends or it fails.
func (s *sockets) ageIdle(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := s.age(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// age removes the sockets that the program finds, and those that a killed agent had found. If there are more than
// drained has room for, the rest is found a second later.
func (s *sockets) age() error {
	if _, err := s.progs[agePin].Run(&ebpf.RunOptions{}); err != nil {
		return fmt.Errorf("find idle sockets: %w", err)
	}
	_, err := s.releaseFound()
	return err
}
