// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// A rescan waits until nothing has happened for quietTime, but for no longer
// than patience, so that a burst of changes is one rescan. One also runs every
// period: what no event reports is seen then at the latest.
const (
	quietTime = 50 * time.Millisecond
	patience  = 250 * time.Millisecond
	period    = time.Minute
	fullEvery = 10 // of these periods: what is inside namespaces is read again, though no event has reported a change
)

// Watcher keeps the state of a set of services up to date while Run runs. Its
// other methods may be called from any goroutine, before, during and after.
type Watcher struct {
	log  *slog.Logger
	wake waker

	mu         sync.Mutex
	specs      map[string]v1alpha1.ServiceSpec
	states     map[string]State
	interfaces map[string]Link
	changed    func()
}

// NewWatcher makes a watcher of no services.
func NewWatcher(log *slog.Logger) *Watcher {
	return &Watcher{log: log, wake: waker{fd: -1}, changed: func() {}}
}

// Set replaces the services that are watched, by name.
func (w *Watcher) Set(services map[string]v1alpha1.ServiceSpec) {
	w.mu.Lock()
	w.specs = maps.Clone(services)
	w.mu.Unlock()
	w.wake.poke()
}

// OnChange sets what is called after the first scan, and after each one that
// changed States or HostInterfaces. It is called from Run, which waits for it.
func (w *Watcher) OnChange(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed = f
}

// States are the services as last seen; one that Set has just added is not
// among them. What the map's values refer to must not be changed.
func (w *Watcher) States() map[string]State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.states)
}

// HostInterfaces are all interfaces of the node as last seen, by name.
func (w *Watcher) HostInterfaces() map[string]Link {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.interfaces)
}

// Run watches the network namespace of the calling thread until ctx ends,
// which is no error.
func (w *Watcher) Run(ctx context.Context) error {
	s, err := openScanner()
	if err != nil {
		return fmt.Errorf("watch services: %w", err)
	}
	defer s.close()
	e, err := openEvents(&w.wake)
	if err != nil {
		return fmt.Errorf("watch services: %w", err)
	}
	defer e.close()
	defer context.AfterFunc(ctx, w.wake.poke)()
	return w.loop(ctx, s, e)
}

// loop scans after events, and sleeps otherwise. Only an error of waiting ends it: a scan that fails is repeated.
func (w *Watcher) loop(ctx context.Context, s *scanner, e *events) error {
	clock, mounts := newDebounce(time.Now()), &debounce{}
	for ctx.Err() == nil {
		now, next := time.Now(), clock.next
		switch {
		case clock.due(now):
			w.scan(s, e, clock)
			continue
		case !mounts.pending:
		case mounts.due(now): // the paths of services are examined once after a burst of mounts
			if mounts.pending = false; s.moved() {
				clock.pending, clock.next = true, now
			}
			continue
		case mounts.next.Before(next):
			next = mounts.next
		}
		news, err := e.wait(time.Until(next))
		if err != nil {
			return fmt.Errorf("watch services: %w", err)
		}
		if news.mount {
			mounts.event(time.Now())
		}
		if s.affected(news) {
			clock.event(time.Now())
		}
	}
	return nil
}

// scan rescans; a failure (a dump that never got through) is tried again.
func (w *Watcher) scan(s *scanner, e *events, clock *debounce) {
	if !clock.pending && s.isFull(e.peers) {
		s.invalidate()
	}
	if err := w.rescan(s, e); err != nil {
		w.log.Warn("scan of services failed, trying again", "error", err)
		clock.event(time.Now())
		return
	}
	clock.done(time.Now())
}

// rescan looks up all services. It takes one snapshot of links for all of them; what was read inside namespaces that
// are not needed any more is forgotten.
func (w *Watcher) rescan(s *scanner, e *events) error {
	w.mu.Lock()
	specs := w.specs // never changed, only replaced
	w.mu.Unlock()
	e.watchProcesses(specs)
	if err := s.refresh(); err != nil {
		return err
	}
	states := make(map[string]State, len(specs))
	for name, spec := range specs {
		states[name] = w.resolve(s, e, name, spec)
	}
	s.forget()
	w.publish(states, s.interfaces())
	return nil
}

// resolve returns the state of one service; Err says why it has no interfaces. A pid that was used again is not the
// process of the service: ErrProcessGone.
func (w *Watcher) resolve(s *scanner, e *events, name string, spec v1alpha1.ServiceSpec) State {
	err := Validate(spec)
	if err == nil && e.ended(name) {
		err = fmt.Errorf("process %d: %w", spec.PID, ErrProcessGone)
	}
	var state State
	if err == nil {
		state, err = s.resolve(spec)
	}
	state.Err = err
	return state
}

// publish stores what a scan found, and calls changed only if that differs: most events on a node are about other
// interfaces.
func (w *Watcher) publish(states map[string]State, interfaces map[string]Link) {
	w.mu.Lock()
	same := w.states != nil && reflect.DeepEqual(states, w.states) && reflect.DeepEqual(interfaces, w.interfaces)
	w.logChanges(states)
	w.states, w.interfaces = states, interfaces
	changed := w.changed
	w.mu.Unlock()
	if !same {
		changed()
	}
}

// logChanges reports services that came, went or turned out wrong.
func (w *Watcher) logChanges(states map[string]State) {
	for name, now := range states {
		before := w.states[name]
		switch {
		case now.Err != nil && !sameReason(now.Err, before.Err):
			w.log.Warn("service not found", "service", name, "reason", now.Err)
		case len(now.Links) < len(before.Links):
			w.log.Warn("service has lost interfaces", "service", name, "before", len(before.Links), "now", len(now.Links))
		case len(now.Links) > len(before.Links):
			w.log.Info("service has changed its interfaces", "service", name, "before", len(before.Links), "now", len(now.Links))
		}
	}
}

func sameReason(a, b error) bool {
	return b != nil && (errors.Is(a, b) || a.Error() == b.Error())
}

// debounce says when to rescan.
type debounce struct {
	next    time.Time
	limit   time.Time // of a pending rescan
	pending bool      // something happened since the last one
}

func newDebounce(now time.Time) *debounce { return &debounce{next: now} }

func (d *debounce) due(now time.Time) bool { return !now.Before(d.next) }

// event postpones the scan until it is quiet, but not beyond patience after the first event.
func (d *debounce) event(now time.Time) {
	if !d.pending {
		d.pending, d.limit = true, now.Add(patience)
	}
	d.next = now.Add(quietTime)
	if d.next.After(d.limit) {
		d.next = d.limit
	}
}

func (d *debounce) done(now time.Time) {
	d.pending, d.next = false, now.Add(period)
}
