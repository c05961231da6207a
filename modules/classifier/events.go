// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/kerb-edge/kerb/sdk"
)

// Verdict is an event as the API tells it.
type Verdict struct {
	Time string `json:"time"` // end of the window
	Kind string `json:"kind"` // suspicious, cleared, evaluated, fuse
	Location
	Model   string  `json:"model,omitempty"`
	Version uint32  `json:"version"` // of the model
	Class   string  `json:"class"`
	Score   float64 `json:"score"`
	// bit 0: this evaluation was against the source, bit 1: the one before, ...
	Hits     uint32           `json:"hits"`
	Action   string           `json:"action"`            // that is carried out
	Allowed  bool             `json:"allowed,omitempty"` // nothing is done: it is on the allow-list
	Cause    string           `json:"cause,omitempty"`   // of the fuse
	Features map[string]int32 `json:"features,omitempty"`
}

// vocabulary has names for what the data plane tells by numbers; those of earlier models, too, as events may be late.
type vocabulary struct {
	mu     sync.Mutex
	models []*loaded // newest last
}

const vocabularySize = 16

func (v *vocabulary) learn(l *loaded) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.models = slices.DeleteFunc(v.models, func(old *loaded) bool { return old.Version == l.Version })
	v.models = append(v.models, &loaded{Name: l.Name, Version: l.Version, Classes: l.Classes})
	v.models = v.models[max(0, len(v.models)-vocabularySize):]
}

// of is the model of a version; nil if it is not known.
func (v *vocabulary) of(version uint32) *loaded {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, l := range v.models {
		if l.Version == version {
			return l
		}
	}
	return nil
}

func (v *vocabulary) class(version, class uint32) string {
	if l := v.of(version); l != nil && int(class) < len(l.Classes) {
		return l.Classes[class]
	}
	return strconv.Itoa(int(class))
}

func (w *generation) describe(e *event) *Verdict {
	out := &Verdict{Time: wall(e.Time).Format(timeFormat), Kind: named(eventKinds, e.Kind),
		Location: w.places().of(e.Source), Version: e.Version,
		Class: w.words.class(e.Version, e.Class), Score: share(e.Score), Hits: e.Hits, Action: named(actions, e.Action),
		Allowed: e.Allowed != 0,
		Cause:   named(fuseCauses, e.Cause), Features: map[string]int32{}}
	if l := w.words.of(e.Version); l != nil {
		out.Model = l.Name
	}
	for i, name := range Features[w.config.Extractor] {
		out.Features[name] = e.Values[i]
	}
	return out
}

// follow reads the data plane's events until ctx ends. They are read also without a subscriber: else the first ones
// that a listener gets would be old.
func (w *generation) follow(ctx context.Context) error {
	ring, err := w.live.Maps.Get(mapVerdicts)
	if err != nil {
		return err
	}
	for raw, err := range sdk.PromptEvents(ctx, ring) {
		if err != nil {
			return err
		}
		if !w.stream.heard() {
			continue
		}
		var e event
		if err := binary.Read(bytes.NewReader(raw), binary.NativeEndian, &e); err != nil {
			return fmt.Errorf("event of %d bytes: %w", len(raw), err)
		}
		w.stream.send(w.describe(&e))
	}
	return nil
}

// stream passes events on to those who listen now.
type stream struct {
	ended chan struct{}

	mu        sync.Mutex
	listeners map[*listener]bool
}

// listener is one that reads events. Those that it is too slow for are lost to it.
type listener struct {
	events chan *Verdict
	lost   atomic.Uint64
}

const listenerQueue = 256

func newStream() *stream { return &stream{ended: make(chan struct{}), listeners: map[*listener]bool{}} }

func (s *stream) end() { close(s.ended) }

func (s *stream) heard() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.listeners) > 0
}

func (s *stream) send(v *Verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.listeners {
		select {
		case l.events <- v:
		default:
			l.lost.Add(1)
		}
	}
}

func (s *stream) listen() *listener {
	l := &listener{events: make(chan *Verdict, listenerQueue)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners[l] = true
	return l
}

func (s *stream) leave(l *listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listeners, l)
}

// serve writes events to a client, one JSON object a line, until it or the generation ends. {"lost": n} reports those
// that it was too slow for.
func (s *stream) serve(w http.ResponseWriter, r *http.Request) {
	l := s.listen()
	defer s.leave(l)
	w.Header().Set("Content-Type", "application/x-ndjson")
	out, stream := json.NewEncoder(w), http.NewResponseController(w)
	if stream.Flush() != nil {
		return
	}
	for {
		select {
		case <-r.Context().Done():
			return
		case <-s.ended:
			return
		case v := <-l.events:
			if n := l.lost.Swap(0); n > 0 && out.Encode(map[string]uint64{"lost": n}) != nil {
				return
			}
			if out.Encode(v) != nil || stream.Flush() != nil {
				return
			}
		}
	}
}
