// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"context"
	"encoding/binary"
	"log/slog"
	"sync"

	"github.com/kerb-edge/kerb/modules/responder/app"
	"github.com/kerb-edge/kerb/sdk"
)

// feed mirrors struct rsp_feed.
type feed struct{ Armed, Zero uint32 }

// watch notifies subscribers of changed states of one map set. The data plane sends one event and no more until it is
// armed again, which happens when a subscriber is ready for the next: the data plane is never asked for more events
// than are read.
type watch struct {
	maps  sdk.Maps
	ended chan struct{} // closed when the map set does not run any more

	mu          sync.Mutex
	subscribers map[*subscriber]bool
}

func newWatch(maps sdk.Maps) *watch {
	return &watch{maps: maps, ended: make(chan struct{}), subscribers: map[*subscriber]bool{}}
}

// subscriber waits for changes of some slots.
type subscriber struct {
	slots   map[uint32]bool
	pending map[uint32]bool
	wake    chan struct{} // has room for one
}

// run receives events until ctx ends.
func (w *watch) run(ctx context.Context) {
	for raw, err := range sdk.PromptEvents(ctx, w.maps[mapChanges]) {
		if err != nil {
			slog.Error("responder: no more events", "error", err)
			return
		}
		if len(raw) >= 4 {
			w.changed(binary.NativeEndian.Uint32(raw))
		}
	}
}

// changed notifies those that wait for the slot.
func (w *watch) changed(slot uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s := range w.subscribers {
		if s.slots[slot] {
			s.pending[slot] = true
			select {
			case s.wake <- struct{}{}:
			default:
			}
		}
	}
}

// subscribe sends the slots of listeners at once, and again when their states have changed, until ctx or the map set
// ends. A slot is armed before it is sent: a state that is read then has all that will not be notified of.
func (w *watch) subscribe(ctx context.Context, all []app.PlacedListener) <-chan uint32 {
	s := &subscriber{slots: map[uint32]bool{}, pending: map[uint32]bool{}, wake: make(chan struct{}, 1)}
	for _, p := range all {
		s.slots[p.Slot], s.pending[p.Slot] = true, true
	}
	s.wake <- struct{}{}
	w.mu.Lock()
	w.subscribers[s] = true
	w.mu.Unlock()
	out := make(chan uint32)
	go func() {
		defer close(out)
		w.send(ctx, s, out)
		w.mu.Lock()
		delete(w.subscribers, s)
		w.mu.Unlock()
	}()
	return out
}

// send passes changed slots to out until ctx or the watch ends. The data plane is armed before a slot is passed on, so
// that a change during the caller's read causes another event.
func (w *watch) send(ctx context.Context, s *subscriber, out chan<- uint32) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.ended:
			return
		case <-s.wake:
		}
		for slot := range w.take(s) {
			if err := w.maps.Put(mapFeeds, slot, feed{Armed: 1}); err != nil {
				slog.Error("responder: cannot ask for events", "error", err)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-w.ended:
				return
			case out <- slot:
			}
		}
	}
}

// take returns what a subscriber has not been notified of yet.
func (w *watch) take(s *subscriber) map[uint32]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	pending := s.pending
	s.pending = map[uint32]bool{}
	return pending
}
