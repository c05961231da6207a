// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	wantedWait = 30 * time.Second // how long the agent's question is left open
	maxWants   = 4096             // addresses, and processes, that the agent has not fetched; more are not noted
)

// wants is what the control plane wants of the agent, until it fetches it.
type wants struct {
	mu      sync.Mutex
	now     Wanted
	queued  map[netip.Addr]bool
	asked   map[Process]bool
	arrived chan struct{}
}

func newWants() *wants {
	return &wants{queued: map[netip.Addr]bool{}, asked: map[Process]bool{}, arrived: make(chan struct{}, 1)}
}

func (w *wants) want(addr netip.Addr) {
	addr = addr.Unmap()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !addr.IsValid() || w.queued[addr] || len(w.queued) == maxWants {
		return
	}
	w.queued[addr] = true
	w.now.Addresses = append(w.now.Addresses, addr)
	w.wake()
}

func (w *wants) idle(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.now.Idle, name) {
		w.now.Idle = append(w.now.Idle, name)
		w.wake()
	}
}

func (w *wants) examine(p Process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked[p] || len(w.asked) == maxWants {
		return
	}
	w.asked[p] = true
	w.now.Executables = append(w.now.Executables, p)
	w.wake()
}

// maxGives is how many clients may wait for the agent to fetch what they are to be given.
const maxGives = 256

func (w *wants) give(g Give) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.now.Give) == maxGives {
		return errors.New("too many clients wait already")
	}
	w.now.Give = append(w.now.Give, g)
	w.wake()
	return nil
}

func (w *wants) wake() {
	select {
	case w.arrived <- struct{}{}:
	default:
	}
}

// take waits until there is something, or for a while.
func (w *wants) take(ctx context.Context) Wanted {
	timeout := time.NewTimer(wantedWait)
	defer timeout.Stop()
	for {
		w.mu.Lock()
		got := w.now
		if len(got.Addresses)+len(got.Idle)+len(got.Give)+len(got.Executables) > 0 && ctx.Err() == nil {
			w.now = Wanted{}
			clear(w.queued)
			clear(w.asked)
			w.mu.Unlock()
			return got
		}
		w.mu.Unlock()
		select {
		case <-w.arrived:
		case <-timeout.C:
			return Wanted{}
		case <-ctx.Done():
			return Wanted{}
		}
	}
}
