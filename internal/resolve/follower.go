// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"

	"github.com/kerb-edge/kerb/sdk"
)

// Limits of one update: the contract's bodies have at most 8 MiB.
const (
	maxServices = 500
	maxBytes    = 4 << 20
)

// Follower is what one control plane has been told of a table. Its methods may be called from several goroutines, but
// Next and Taken only in turn.
type Follower struct {
	module string
	table  *Table
	ready  chan struct{}

	// Guarded by the table's lock.
	dirty    map[string]bool     // what has to be told again
	unknown  map[netip.Addr]bool // what has to be answered
	sending  map[string]bool     // is under way
	rest     []string            // what is left of telling all
	resets   bool                // the next update begins with all
	telling  bool                // all, and rest is what is left of it
	complete bool                // all has been told once
	refused  error               // why the last update was not taken
}

// Update is an sdk.VirtualServiceUpdate with virtual services that are encoded once for all followers.
type Update struct {
	Generation string            `json:"generation"`
	Reset      bool              `json:"reset,omitempty"`
	Complete   bool              `json:"complete,omitempty"`
	Put        []json.RawMessage `json:"put,omitempty"`
	Remove     []string          `json:"remove,omitempty"`
	Unknown    []netip.Addr      `json:"unknown,omitempty"`

	size int // of what is put
}

// Follow makes a follower for the control plane of a module, which begins with all there is.
func (t *Table) Follow(module string) *Follower {
	f := &Follower{module: module, table: t, ready: make(chan struct{}, 1), dirty: map[string]bool{}, unknown: map[netip.Addr]bool{}}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.followers = append(t.followers, f)
	f.restart()
	return f
}

// Close ends it. What it wanted goes over to the follower of the module's next version, or is idle.
func (f *Follower) Close() {
	t := f.table
	t.mu.Lock()
	defer t.mu.Unlock()
	t.followers = slices.DeleteFunc(t.followers, func(o *Follower) bool { return o == f })
	heir := slices.IndexFunc(t.followers, func(o *Follower) bool { return o.module == f.module })
	for _, q := range t.wanted {
		delete(q.waiting, f)
	}
	for name, e := range t.services {
		if !e.users[f] {
			continue
		}
		if heir >= 0 {
			e.users[t.followers[heir]] = true
		}
		t.idle(f, name)
	}
}

func (f *Follower) wake() {
	select {
	case f.ready <- struct{}{}:
	default:
	}
}

// Ready tells when Next has something.
func (f *Follower) Ready() <-chan struct{} { return f.ready }

// Restart begins again with all: the other side has forgotten what it was told.
func (f *Follower) Restart() {
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	f.restart()
}

func (f *Follower) restart() {
	f.resets, f.telling, f.complete, f.sending = true, true, false, nil
	f.rest = slices.Sorted(maps.Keys(f.table.services))
	clear(f.dirty)
	f.wake()
}

// Next is the next update, false if there is nothing to tell. Taken must follow.
func (f *Follower) Next() (Update, bool) {
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	u := Update{Unknown: slices.SortedFunc(maps.Keys(f.unknown), netip.Addr.Compare)}
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
	return u, len(u.Put)+len(u.Remove)+len(u.Unknown) > 0
}

func (f *Follower) add(u *Update, name string, goes bool) {
	f.sending[name] = true
	if e := f.table.services[name]; e != nil {
		u.Put, u.size = append(u.Put, e.encoded), u.size+len(e.encoded)
	} else if goes {
		u.Remove = append(u.Remove, name)
	}
}

// room tells whether one more fits: the schema keeps a single one below half of the limit.
func (u *Update) room() bool { return len(u.Put)+len(u.Remove) < maxServices && u.size < maxBytes/2 }

// Taken tells what became of the last update. After an error all is told again.
func (f *Follower) Taken(u Update, err error) {
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	if f.refused = err; err != nil {
		f.restart()
		return
	}
	for _, addr := range u.Unknown {
		delete(f.unknown, addr)
	}
	f.resets, f.sending = false, nil
	if u.Complete {
		f.telling, f.complete = false, true
	}
	if f.telling || len(f.dirty) > 0 {
		f.wake()
	}
}

// lacks is why a virtual service has not arrived in its present state, empty if it has.
func (f *Follower) lacks(name string) string {
	switch {
	case f.refused != nil:
		return f.refused.Error()
	case !f.complete:
		return "has not been told of all virtual services yet"
	case f.dirty[name] || f.sending[name]:
		return "is just being told"
	}
	return ""
}

// Err is why the last update was not taken, nil if it was.
func (f *Follower) Err() error {
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	return f.refused
}

// Wants takes what the control plane wants.
func (f *Follower) Wants(w sdk.Wanted) {
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	for _, name := range w.Idle {
		f.table.idle(f, name)
	}
	for _, addr := range w.Addresses {
		if addr = addr.Unmap(); addr.IsValid() {
			f.table.want(f, addr)
		}
	}
}
