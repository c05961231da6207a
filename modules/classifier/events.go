// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/kerb-edge/kerb/sdk"
)

// Verdict is an event as the API shows it.
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

// vocabulary has names for what the data plane reports by numbers; those of earlier models, too, as events may be late.
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

// describe converts an event of the ring for clients: the monotonic time to wall-clock time, and the model's slot
// version to its name and class as long as that model is loaded.
func (w *running) describe(e *event) *Verdict {
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
func (w *running) follow(ctx context.Context) error {
	ring, err := w.live.Maps.Get(mapVerdicts)
	if err != nil {
		return err
	}
	for raw, err := range sdk.PromptEvents(ctx, ring) {
		if err != nil {
			return err
		}
		if !w.stream.HasClients() {
			continue
		}
		var e event
		if err := binary.Read(bytes.NewReader(raw), binary.NativeEndian, &e); err != nil {
			return fmt.Errorf("event of %d bytes: %w", len(raw), err)
		}
		w.stream.Send(w.describe(&e))
	}
	return nil
}

// serveEvents streams verdicts until the client or the map set ends.
func (w *running) serveEvents(out http.ResponseWriter, r *http.Request) {
	c := w.stream.Open()
	defer c.Close()
	c.Serve(out, r, nil)
}
