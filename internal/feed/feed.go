// SPDX-License-Identifier: Apache-2.0

// Package feed keeps track of what a control plane has been notified of one kind of resources: all of them when it starts, and
// from then on what changes.
package feed

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"
)

// Limits of one update: the contract's bodies have at most 8 MiB.
const (
	MaxResources = 500
	MaxBytes     = 4 << 20
)

// Source is what there is to tell. Its methods are called under the lock that New was given.
type Source interface {
	All() []string                       // names in order
	Encoded(name string) json.RawMessage // as control planes get it; nil if there is none of that name
	Changed(names ...string)             // what control planes lack of these has changed
}

// Follower is what one control plane has been told. Its methods may be called from several goroutines, but Next and Taken
// only in turn.
type Follower struct {
	Module string

	lock   sync.Locker
	source Source
	ready  chan struct{}

	// Guarded by lock.
	dirty    map[string]bool // what has to be told again
	sending  map[string]bool // is under way
	rest     []string        // what is left of telling all
	resets   bool            // the next update begins with all
	telling  bool            // all, and rest is what is left of it
	complete bool            // all has been told once
	refused  error           // why the last update was not taken
}

// Update is what control planes are told at once. Those of a kind of resources may have more.
type Update struct {
	Generation string            `json:"generation"`
	Reset      bool              `json:"reset,omitempty"`
	Complete   bool              `json:"complete,omitempty"`
	Put        []json.RawMessage `json:"put,omitempty"`
	Remove     []string          `json:"remove,omitempty"`

	size int // of what is put
}

// For sets the generation that the update is for.
func (u *Update) For(generation string) { u.Generation = generation }

// Answer is where the control plane's answer goes; nil if it has nothing to say.
func (u *Update) Answer() any { return nil }

// New makes a follower, which begins with all there is. The lock, which guards the source, is held.
func New(module string, lock sync.Locker, source Source) *Follower {
	f := &Follower{Module: module, lock: lock, source: source, ready: make(chan struct{}, 1), dirty: map[string]bool{}}
	f.restart()
	return f
}

// Tell has a resource told that has changed, come or gone. The lock is held.
func (f *Follower) Tell(name string) {
	f.dirty[name] = true
	f.Wake()
}

// Wake makes Ready tell.
func (f *Follower) Wake() {
	select {
	case f.ready <- struct{}{}:
	default:
	}
}

// Ready tells when Next has something.
func (f *Follower) Ready() <-chan struct{} { return f.ready }

// Restart begins again with all: the other side has forgotten what it was told.
func (f *Follower) Restart() {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.restart()
}

func (f *Follower) restart() {
	f.resets, f.telling, f.complete, f.sending = true, true, false, nil
	f.rest = f.source.All()
	clear(f.dirty)
	f.source.Changed(f.rest...)
	f.Wake()
}

// Next is the next update, false if there is nothing to tell. Taken must follow.
func (f *Follower) Next() (Update, bool) {
	f.lock.Lock()
	defer f.lock.Unlock()
	var u Update
	f.sending = map[string]bool{}
	if f.telling {
		u.Reset = f.resets
		for u.room() && len(f.rest) > 0 {
			f.add(&u, f.rest[0], false)
			f.rest = f.rest[1:]
		}
		u.Complete = len(f.rest) == 0
		return u, true
	}
	for name := range f.dirty {
		if !u.room() {
			break
		}
		f.add(&u, name, true)
		delete(f.dirty, name)
	}
	return u, len(u.Put)+len(u.Remove) > 0
}

func (f *Follower) add(u *Update, name string, goes bool) {
	f.sending[name] = true
	if data := f.source.Encoded(name); data != nil {
		u.Put, u.size = append(u.Put, data), u.size+len(data)
	} else if goes {
		u.Remove = append(u.Remove, name)
	}
}

// room reports whether one more fits: the schemas keep a single one below half of the limit.
func (u *Update) room() bool { return len(u.Put)+len(u.Remove) < MaxResources && u.size < MaxBytes/2 }

// Taken reports what became of the last update. After an error the next update has everything again.
func (f *Follower) Taken(u Update, err error) {
	f.lock.Lock()
	defer f.lock.Unlock()
	if f.refused = err; err != nil {
		f.restart()
		return
	}
	sent := slices.Collect(maps.Keys(f.sending))
	f.resets, f.sending = false, nil
	if u.Complete {
		f.telling, f.complete = false, true
		sent = f.source.All()
	}
	f.source.Changed(sent...)
	if f.telling || len(f.dirty) > 0 {
		f.Wake()
	}
}

// Lacks is why a resource has not arrived in its present state, empty if it has. The lock is held.
func (f *Follower) Lacks(name string) string {
	switch {
	case f.refused != nil:
		return f.refused.Error()
	case !f.complete:
		return "the first update is still in progress"
	case f.dirty[name] || f.sending[name]:
		return "update in progress"
	}
	return ""
}

// Err is why the last update was not taken, nil if it was.
func (f *Follower) Err() error {
	f.lock.Lock()
	defer f.lock.Unlock()
	return f.refused
}
