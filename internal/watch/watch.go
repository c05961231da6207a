// SPDX-License-Identifier: Apache-2.0

// Package watch tracks which resources of one kind a control plane has received. A subscription first sends all of
// them, and then the differences.
package watch

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"
)

// Limits of one update: request bodies of the contract have at most 8 MiB.
const (
	MaxResources = 500
	MaxBytes     = 4 << 20
)

// Source holds the resources. Its methods are called with the lock held that New was given.
type Source interface {
	All() []string                      // names, sorted
	Encode(name string) json.RawMessage // as it is sent; nil if there is no resource of that name
	Changed(names ...string)            // the result of Pending may have changed for these
}

// Subscription is the state of what one control plane has received. It is safe for concurrent use, but every Next must
// be followed by its Ack before the next one.
type Subscription struct {
	Module string

	lock   sync.Locker
	source Source
	ready  chan struct{}

	// Guarded by lock.
	MapSet string // that updates are for
	// Hold reports whether a change has to wait until Wake; if Hold is nil, none has.
	Hold     func(name string) bool
	dirty    map[string]bool // to be sent again
	sending  map[string]bool // in the update that has no Ack yet
	rest     []string        // of a full sync: resources that have not been sent yet
	resets   bool            // the next update starts a full sync
	syncing  bool            // a full sync is under way
	complete bool            // a full sync has been acknowledged
	failed   error           // of the last update
}

// Update is the content of one request. A kind of resources may add fields.
type Update struct {
	MapSet   string            `json:"generation"`
	Reset    bool              `json:"reset,omitempty"`
	Complete bool              `json:"complete,omitempty"`
	Put      []json.RawMessage `json:"put,omitempty"`
	Remove   []string          `json:"remove,omitempty"`

	size int // of Put
}

// Response is the value into which the control plane's response is decoded; nil if it has no body.
func (u *Update) Response() any { return nil }

// New returns a subscription that starts with a full sync. The caller holds the lock, which guards the source.
func New(module string, lock sync.Locker, source Source) *Subscription {
	s := &Subscription{Module: module, lock: lock, source: source, ready: make(chan struct{}, 1), dirty: map[string]bool{}}
	s.restart()
	return s
}

// Notify reports that a resource was added, changed or removed. The caller holds the lock.
func (s *Subscription) Notify(name string) {
	s.dirty[name] = true
	s.Wake()
}

// Wake makes the channel of Ready receive a value.
func (s *Subscription) Wake() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// Ready returns a channel that receives a value when Next may have an update.
func (s *Subscription) Ready() <-chan struct{} { return s.ready }

// Restart starts a full sync for a map set, because the control plane has lost what it had received.
func (s *Subscription) Restart(mapSet string) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.MapSet = mapSet
	s.restart()
}

func (s *Subscription) restart() {
	s.resets, s.syncing, s.complete, s.sending = true, true, false, nil
	s.rest = s.source.All()
	clear(s.dirty)
	s.source.Changed(s.rest...)
	s.Wake()
}

// Next returns the next update, and false if there is nothing to send.
func (s *Subscription) Next() (Update, bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	u := Update{MapSet: s.MapSet}
	s.sending = map[string]bool{}
	if s.syncing {
		u.Reset = s.resets
		for u.room() && len(s.rest) > 0 {
			s.add(&u, s.rest[0], false)
			s.rest = s.rest[1:]
		}
		u.Complete = len(s.rest) == 0
		return u, true
	}
	for name := range s.dirty {
		if !u.room() {
			break
		}
		if s.Hold != nil && s.Hold(name) {
			continue
		}
		s.add(&u, name, true)
		delete(s.dirty, name)
	}
	return u, len(u.Put)+len(u.Remove) > 0
}

func (s *Subscription) add(u *Update, name string, remove bool) {
	s.sending[name] = true
	if data := s.source.Encode(name); data != nil {
		u.Put, u.size = append(u.Put, data), u.size+len(data)
	} else if remove {
		u.Remove = append(u.Remove, name)
	}
}

// room reports whether another resource fits: the schemas limit each to half of MaxBytes.
func (u *Update) room() bool { return len(u.Put)+len(u.Remove) < MaxResources && u.size < MaxBytes/2 }

// Ack records the result of the last update. After an error a full sync follows.
func (s *Subscription) Ack(u Update, err error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.failed = err; err != nil {
		s.restart()
		return
	}
	sent := slices.Collect(maps.Keys(s.sending))
	s.resets, s.sending = false, nil
	if u.Complete {
		s.syncing, s.complete = false, true
		sent = s.source.All()
	}
	s.source.Changed(sent...)
	if s.syncing || len(s.dirty) > 0 {
		s.Wake()
	}
}

// Pending returns why the control plane does not have the current state of a resource, or "" if it has. The caller
// holds the lock.
func (s *Subscription) Pending(name string) string {
	switch {
	case s.failed != nil:
		return s.failed.Error()
	case !s.complete:
		return "the first update is still in progress"
	case s.dirty[name] || s.sending[name]:
		return "update in progress"
	}
	return ""
}

// InProgress reports whether a control plane that has received all resources is about to receive a change of this one.
// The caller holds the lock.
func (s *Subscription) InProgress(name string) bool {
	return s.complete && s.failed == nil && (s.dirty[name] || s.sending[name])
}

// Err returns the error of the last update.
func (s *Subscription) Err() error {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.failed
}
