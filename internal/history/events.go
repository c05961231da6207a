// SPDX-License-Identifier: Apache-2.0

package history

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/atomicfile"
)

// MaxEvents is how many events are kept.
const MaxEvents = 500

// share is how many events one object may have: one that comes and goes, or whose control plane reports something else
// each time, does not take those of all others away.
const share = 100

const (
	repeatWithin = 10 * time.Minute // an event that follows its equal is the same one
	repeatAmong  = 32               // of the newest
	maxMessage   = 500              // bytes of a message
	maxName      = 253              // bytes of a name, as of resources, and of kind, type and reason
	writeSoon    = time.Second      // an event waits for others before all are written
	writeRarely  = 10 * time.Second // from one time to the next
)

// Events are the newest events of a node, in memory and in one small file, which is written after a while. Their
// methods may be called from several goroutines.
type Events struct {
	path   string
	failed func(error)

	writing sync.Mutex // held while the file is written, and taken before mu

	mu      sync.Mutex
	all     []v1alpha1.Event // oldest first
	last    int64            // number of the newest
	newer   chan struct{}    // closed with the next event
	readers map[*reader]bool // that follow
	timer   *time.Timer      // writes; nil if all is written
	written time.Time        // when it was tried last
}

// reader is a client that follows.
type reader struct {
	request v1alpha1.EventsRequest
	after   int64 // number of the newest event that it was passed on, or was not for it
	lost    int   // events that were forgotten before it was passed them on
}

// OpenEvents reads the events in a directory. What cannot be read is forgotten.
func OpenEvents(dir string, failed func(error)) *Events {
	e := &Events{path: filepath.Join(dir, "events.json"), failed: failed, newer: make(chan struct{}),
		readers: map[*reader]bool{}}
	if data, err := os.ReadFile(e.path); err == nil && json.Unmarshal(data, &e.all) != nil {
		e.all = nil
	}
	e.all = e.all[max(0, len(e.all)-MaxEvents):]
	for _, v := range e.all {
		e.last = max(e.last, v.Number)
	}
	return e
}

// Add adds what happens now: kind, name, type, reason and message, which are cut if they are long. It waits for no
// file.
func (e *Events) Add(v v1alpha1.Event) {
	v.Message = cut(v.Message, maxMessage)
	for _, s := range []*string{&v.Kind, &v.Name, &v.Type, &v.Reason} {
		*s = cut(*s, maxName)
	}
	v.Time = time.Now().UTC()
	v.First, v.Count = v.Time, 1
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := len(e.all) - 1; i >= max(0, len(e.all)-repeatAmong); i-- {
		if old := e.all[i]; same(old, v) && v.Time.Sub(old.Time) < repeatWithin {
			v.First, v.Count = old.First, old.Count+1
			e.all = slices.Delete(e.all, i, i+1)
			break
		}
	}
	e.last++
	v.Number = e.last
	e.makeRoom(v)
	e.all = append(e.all, v)
	close(e.newer)
	e.newer = make(chan struct{})
	e.writeLater()
}

// OfAgent adds an event of the agent itself.
func (e *Events) OfAgent(kind, reason, message string) {
	e.Add(v1alpha1.Event{Kind: v1alpha1.EventAgent, Type: kind, Reason: reason, Message: message})
}

// OfControlPlane adds an event of a module's control plane.
func (e *Events) OfControlPlane(module, reason, message string) {
	e.Add(v1alpha1.Event{Kind: v1alpha1.KindModule, Name: module, Type: v1alpha1.EventControlPlane, Reason: reason,
		Message: message})
}

// Refused adds a request that was refused, for its first resource.
func (e *Events) Refused(r v1alpha1.ChangeRecord) {
	v := v1alpha1.Event{Kind: v1alpha1.EventAgent, Type: v1alpha1.EventChange, Reason: "Refused", Message: r.Error}
	if len(r.Changes) > 0 {
		v.Kind, v.Name = r.Changes[0].Kind, r.Changes[0].Name
	}
	e.Add(v)
}

// cut copies the beginning, so that what it is cut from is not kept.
func cut(s string, bytes int) string {
	if len(s) <= bytes {
		return strings.ToValidUTF8(s, "")
	}
	return strings.ToValidUTF8(strings.Clone(s[:bytes]), "")
}

// makeRoom forgets the oldest event of an object that has its share, or else the oldest of all if there is no room.
func (e *Events) makeRoom(v v1alpha1.Event) {
	of := func(old v1alpha1.Event) bool { return old.Kind == v.Kind && old.Name == v.Name }
	n := 0
	for _, old := range e.all {
		if of(old) {
			n++
		}
	}
	switch {
	case n >= share:
		e.forget(slices.IndexFunc(e.all, of))
	case len(e.all) >= MaxEvents:
		e.forget(0)
	}
}

// forget removes an event, which readers that were not passed it on yet have lost. The caller holds mu.
func (e *Events) forget(i int) {
	for r := range e.readers {
		if r.wants(e.all[i]) {
			r.lost++
		}
	}
	e.all = slices.Delete(e.all, i, i+1)
}

// wants reports whether an event is for the reader, and new to it.
func (r *reader) wants(v v1alpha1.Event) bool {
	of := r.request
	return v.Number > r.after && (of.Kind == "" || strings.EqualFold(v.Kind, of.Kind)) &&
		(of.Name == "" || v.Name == of.Name)
}

// writeLater sets the timer, if it is not set. The caller holds mu.
func (e *Events) writeLater() {
	if e.timer == nil {
		e.timer = time.AfterFunc(max(writeSoon, writeRarely-time.Since(e.written)), e.Flush)
	}
}

// same reports whether an event is another one's repetition. The message of most has figures, which differ; that of a
// refusal is what it is about.
func same(a, b v1alpha1.Event) bool {
	return a.Kind == b.Kind && a.Name == b.Name && a.Type == b.Type && a.Reason == b.Reason &&
		(a.Message == b.Message || a.Type != v1alpha1.EventChange)
}

// Flush writes the events, if there are new ones. After an error it is tried again later.
func (e *Events) Flush() {
	e.writing.Lock()
	defer e.writing.Unlock()
	e.mu.Lock()
	if e.timer == nil {
		e.mu.Unlock()
		return
	}
	e.timer.Stop()
	e.timer, e.written = nil, time.Now()
	all := slices.Clone(e.all)
	e.mu.Unlock()
	data, err := json.Marshal(all)
	if err == nil {
		err = atomicfile.Write(e.path, data, 0o600)
	}
	if err != nil {
		e.failed(err)
		e.mu.Lock()
		e.writeLater()
		e.mu.Unlock()
	}
}

// Read passes on the newest events, oldest first, and with Follow each one that comes until ctx ends. A client that
// reads too slowly for what is kept is passed on how many events it has lost, before those that came later.
func (e *Events) Read(ctx context.Context, of v1alpha1.EventsRequest, send func(v1alpha1.Event) error) error {
	r := &reader{request: of}
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.readers, r)
	}()
	for first := true; ; first = false {
		out, newer := e.next(r, first)
		for _, v := range out {
			if err := send(v); err != nil {
				return err
			}
		}
		if !of.Follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-newer:
		}
	}
}

// next returns what a reader was not passed on yet, and a channel that is closed when there is more.
func (e *Events) next(r *reader, first bool) (out []v1alpha1.Event, newer <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.lost > 0 {
		out = append(out, v1alpha1.Event{Lost: r.lost})
		r.lost = 0
	}
	for _, v := range e.all {
		if r.wants(v) {
			out = append(out, v)
		}
	}
	if first {
		out = out[max(0, len(out)-r.request.Limit):]
	}
	r.after = e.last
	if r.request.Follow {
		e.readers[r] = true
	}
	return out, e.newer
}
