// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"

	"github.com/kerb-edge/kerb/internal/feed"
	"github.com/kerb-edge/kerb/sdk"
)

// Follower is what one control plane has been notified of a table. Its methods may be called from several goroutines, but
// Next and Taken only in turn.
type Follower struct {
	*feed.Follower
	table   *Table
	unknown map[netip.Addr]bool // what has to be answered; guarded by the table's lock
}

// Update is an sdk.VirtualServiceUpdate with virtual services that are encoded once for all followers.
type Update struct {
	feed.Update
	Unknown []netip.Addr `json:"unknown,omitempty"`
}

// Follow makes a follower for the control plane of a module, which begins with all there is.
func (t *Table) Follow(module string) *Follower {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := &Follower{Follower: feed.New(module, &t.mu, source{t}), table: t, unknown: map[netip.Addr]bool{}}
	t.followers = append(t.followers, f)
	return f
}

// source is what followers of a table are told.
type source struct{ *Table }

func (t source) All() []string { return slices.Sorted(maps.Keys(t.services)) }

func (t source) Encoded(name string) json.RawMessage {
	if e := t.services[name]; e != nil {
		return e.encoded
	}
	return nil
}

func (t source) Changed(names ...string) {
	for _, name := range names {
		if t.changed != nil {
			t.changed(name)
		}
	}
}

// Close ends it. What it wanted goes over to the follower of the module's next version, or is idle.
func (f *Follower) Close() {
	t := f.table
	t.mu.Lock()
	defer t.mu.Unlock()
	t.followers = slices.DeleteFunc(t.followers, func(o *Follower) bool { return o == f })
	heir := slices.IndexFunc(t.followers, func(o *Follower) bool { return o.Module == f.Module })
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
	source{t}.Changed(source{t}.All()...)
}

// answerUnknown reports an address that no resolver knows. The table's lock is held.
func (f *Follower) answerUnknown(addr netip.Addr) {
	f.unknown[addr] = true
	f.Wake()
}

// Next is the next update, false if there is nothing to tell. Taken must follow.
func (f *Follower) Next() (Update, bool) {
	f.table.mu.Lock()
	unknown := slices.SortedFunc(maps.Keys(f.unknown), netip.Addr.Compare)
	f.table.mu.Unlock()
	u, more := f.Follower.Next()
	return Update{u, unknown}, more || len(unknown) > 0
}

// Taken reports what became of the last update. After an error the next update has everything again.
func (f *Follower) Taken(u Update, err error) {
	if err == nil {
		f.table.mu.Lock()
		for _, addr := range u.Unknown {
			delete(f.unknown, addr)
		}
		f.table.mu.Unlock()
	}
	f.Follower.Taken(u.Update, err)
}

// mostOpen is how many addresses a control plane may have asked for that are not answered yet. More are not noted: it asks
// again when a packet comes.
const mostOpen = 4096

// Wants takes what the control plane wants.
func (f *Follower) Wants(w sdk.Requests) {
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	for _, name := range w.Release {
		f.table.idle(f, name)
	}
	room := mostOpen - f.open()
	for _, addr := range w.Resolve[:min(len(w.Resolve), max(0, room))] {
		if addr = addr.Unmap().WithZone(""); addr.IsValid() {
			f.table.want(f, addr)
		}
	}
}

// open is how many addresses it waits for, or has not taken the answer for. The table's lock is held.
func (f *Follower) open() int {
	n := len(f.unknown)
	for _, q := range f.table.wanted {
		if q.waiting[f] {
			n++
		}
	}
	return n
}
