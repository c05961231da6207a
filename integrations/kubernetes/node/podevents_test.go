// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/events"
)

func newTestEvents() *podEvents {
	return newPodEvents(events.New(nil, component, "n1", events.Limits{Burst: 1, Every: time.Hour, Same: time.Hour},
		slog.New(slog.DiscardHandler)))
}

func heldOf(i int, why string) podService {
	p := podService{held: &hold{error: errors.New(why), lasting: true}}
	p.namespace, p.name, p.uid = "shop", fmt.Sprint("web-", i), fmt.Sprint("u-", i)
	return p
}

// accepted counts pods whose Event the recorder has accepted.
func (e *podEvents) accepted() (n int) {
	for _, p := range e.pods {
		if p.accepted {
			n++
		}
	}
	return n
}

// Events that do not fit in the recorder's queue are recorded in a later round, when Events of admitted pods have left
// it.
func TestQueuedEventsOfHeldPods(t *testing.T) {
	e := newTestEvents()
	round := func(from, to int) {
		e.begin()
		for i := from; i < to; i++ {
			e.held(heldOf(i, "why"), true)
		}
		e.end(nil)
	}
	round(0, 20)
	first := e.accepted()
	if first == 0 || first == 20 || e.count() != 20 {
		t.Fatalf("%d of %d accepted", first, e.count())
	}
	for range 20 {
		round(first, 20) // pods with a queued Event are admitted
		if e.accepted() == min(first, 20-first) {
			return
		}
	}
	t.Errorf("%d of %d accepted", e.accepted(), e.count())
}

// If a pod is admitted without a module while the queue is full, its Event is recorded later, unless the pod is
// deleted.
func TestQueuedEventsOfUnprotectedPods(t *testing.T) {
	e := newTestEvents()
	admitted := map[string]bool{}
	e.begin()
	for i := range 20 {
		admitted[fmt.Sprint("u-", i)] = true
		e.admitted(heldOf(i, ""), errors.New("module open"))
	}
	waits := len(e.deferred)
	e.end(admitted)
	if waits == 0 || len(e.deferred) != waits {
		t.Fatalf("%d wait, later %d", waits, len(e.deferred))
	}
	for i := range 10 {
		delete(admitted, fmt.Sprint("u-", i))
	}
	for range 2 { // the first round frees space in the queue
		e.begin()
		e.end(admitted)
	}
	if len(e.deferred) != 2 {
		t.Errorf("%d wait, want 2: 8 of 10 fit", len(e.deferred))
	}
}

// A failed round leaves no state: a pod that only it has observed is not held.
func TestFailedRound(t *testing.T) {
	e := newTestEvents()
	e.begin()
	e.held(heldOf(1, "why"), true)
	e.begin()
	e.held(heldOf(2, "why"), true)
	e.end(nil)
	if e.count() != 1 {
		t.Errorf("%d pods are held, want 1", e.count())
	}
}
