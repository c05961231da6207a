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

const (
	repeatWithin = 10 * time.Minute // an event that follows its equal is the same one
	repeatAmong  = 32               // of the newest
	maxMessage   = 500              // bytes of a message
	writeSoon    = time.Second      // an event waits for others before all are written
	writeRarely  = 10 * time.Second // from one time to the next
)

// Events are the newest events of a node, in memory and in one small file, which is written after a while. Their
// methods may be called from several goroutines.
type Events struct {
	path   string
	failed func(error)

	mu      sync.Mutex
	all     []v1alpha1.Event // oldest first
	last    int64            // number of the newest
	newer   chan struct{}    // closed with the next event
	timer   *time.Timer      // writes; nil if all is written
	written time.Time
}

// OpenEvents reads the events in a directory. What cannot be read is forgotten.
func OpenEvents(dir string, failed func(error)) *Events {
	e := &Events{path: filepath.Join(dir, "events.json"), failed: failed, newer: make(chan struct{})}
	if data, err := os.ReadFile(e.path); err == nil && json.Unmarshal(data, &e.all) != nil {
		e.all = nil
	}
	e.all = e.all[max(0, len(e.all)-MaxEvents):]
	for _, v := range e.all {
		e.last = max(e.last, v.Number)
	}
	return e
}

// Add adds what happens now: kind, name, type, reason and message. It waits for no file.
func (e *Events) Add(v v1alpha1.Event) {
	v.Message = strings.ToValidUTF8(v.Message[:min(len(v.Message), maxMessage)], "")
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
	if len(e.all) >= MaxEvents {
		e.all = slices.Delete(e.all, 0, 1)
	}
	e.all = append(e.all, v)
	close(e.newer)
	e.newer = make(chan struct{})
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

// Flush writes the events, if there are new ones.
func (e *Events) Flush() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer == nil {
		return
	}
	e.timer.Stop()
	e.timer, e.written = nil, time.Now()
	data, err := json.Marshal(e.all)
	if err == nil {
		err = atomicfile.Write(e.path, data, 0o600)
	}
	if err != nil {
		e.failed(err)
	}
}

// Read passes on the newest events, oldest first, and with Follow each one that comes until ctx ends.
func (e *Events) Read(ctx context.Context, r v1alpha1.EventsRequest, tell func(v1alpha1.Event) error) error {
	after := int64(0)
	for {
		e.mu.Lock()
		newer, out := e.newer, []v1alpha1.Event{}
		for _, v := range e.all {
			if v.Number > after && (r.Kind == "" || strings.EqualFold(v.Kind, r.Kind)) && (r.Name == "" || v.Name == r.Name) {
				out = append(out, v)
			}
		}
		first := after == 0
		after = max(e.last, 1)
		e.mu.Unlock()
		if first {
			out = out[max(0, len(out)-r.Limit):]
		}
		for _, v := range out {
			if err := tell(v); err != nil {
				return err
			}
		}
		if !r.Follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-newer:
		}
	}
}
