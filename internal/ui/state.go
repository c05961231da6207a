// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// state is what the agent has answered: each part of it by the names of its items.
type state struct {
	err     string // why the agent did not answer; the parts are then those of its last answer
	at      int64  // when it was asked for its counters: Unix, in milliseconds
	parts   map[string]map[string]json.RawMessage
	next    time.Time // when it is asked again, at the soonest
	version version   // of all parts but the counters; zero if they could not be read
	soonest time.Time // when these are read again if the version is another
	latest  time.Time // when they are read again in any case
}

// version differs from an earlier one if something has happened on the node.
type version struct{ Change, State int64 }

// sources are the parts of the state but for the counters, and where they come from.
var sources = []struct{ part, path string }{{"status", "/v1/status"}, {"chains", "/v1/chains"},
	{"services", "/v1/services"}, {"modules", "/v1/modules"}, {"virtualservices", "/v1/virtualservices"},
	{"changes", "/v1/changes?limit=50"}}

// How long the agent is left alone after it was asked, in times of what that took: large nodes take long.
const (
	pauseBusy = 100 // for the counters, and for all else when something has happened since
	pauseIdle = 500
)

const (
	interval    = time.Second
	rest        = 10 * time.Second // the least pause while nothing happens
	longestRest = time.Minute      // and the longest: some conditions are evaluated only when they are read
	longest     = 10 * time.Second // of a sample, and of a write to a browser
	maxPart     = 64 << 20
	statusOnly  = "status" // the part that is no list
)

// sampler reads the state once an interval while a browser listens, once for all of them.
type sampler struct {
	agent Request

	mu        sync.Mutex
	listeners int
	stop      context.CancelFunc
	latest    *state
	newer     chan struct{} // closed when latest changes
}

func newSampler(agent Request) *sampler { return &sampler{agent: agent, newer: make(chan struct{})} }

// join starts sampling for the first listener. The function that it returns ends it after the last one.
func (s *sampler) join() (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listeners++; s.listeners == 1 {
		ctx, stop := context.WithCancel(context.Background())
		s.stop, s.latest = stop, nil
		go s.run(ctx)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.listeners--; s.listeners == 0 {
			s.stop()
		}
	}
}

func (s *sampler) run(ctx context.Context) {
	var last *state
	sdk.Every(ctx, interval, func() {
		if last != nil && time.Now().Before(last.next) {
			return
		}
		last = s.sample(ctx, last)
		s.mu.Lock()
		if ctx.Err() == nil {
			s.latest = last
			close(s.newer)
			s.newer = make(chan struct{})
		}
		s.mu.Unlock()
	})
}

// next waits for a state other than last, and returns the newest.
func (s *sampler) next(ctx context.Context, last *state) *state {
	for {
		s.mu.Lock()
		latest, newer := s.latest, s.newer
		s.mu.Unlock()
		if latest != nil && latest != last {
			return latest
		}
		select {
		case <-ctx.Done():
			return nil
		case <-newer:
		}
	}
}

func (s *sampler) sample(ctx context.Context, last *state) *state {
	ctx, end := context.WithTimeout(ctx, longest)
	defer end()
	now := &state{at: time.Now().UnixMilli(), parts: map[string]map[string]json.RawMessage{}}
	if last != nil {
		maps.Copy(now.parts, last.parts)
	}
	asked := time.Now()
	present, err := s.counts(ctx, now)
	switch now.next = asked.Add(pause(pauseBusy, time.Since(asked))); {
	case err != nil: // when it answers again, all is read
		now.err, now.next = err.Error(), asked
	case last == nil || asked.After(last.latest) || present != last.version && asked.After(last.soonest):
		began := time.Now()
		if err := s.readAll(ctx, now); err == nil {
			now.version = present
		} else { // it is tried again, but not at once
			now.err = err.Error()
		}
		took := time.Since(began)
		now.soonest, now.latest = asked.Add(pause(pauseBusy, took)), asked.Add(max(rest, pause(pauseIdle, took)))
	default:
		now.err, now.version, now.soonest, now.latest = last.err, last.version, last.soonest, last.latest
	}
	return now
}

// pause is how long the agent is left alone after it has taken a time to answer.
func pause(times int, took time.Duration) time.Duration {
	return min(time.Duration(times)*took, longestRest)
}

func (s *sampler) readAll(ctx context.Context, now *state) error {
	for _, source := range sources {
		items, err := s.read(ctx, source.part, source.path)
		if err != nil {
			return err
		}
		now.parts[source.part] = items
	}
	return nil
}

// counts reads the counters, and of which version the other parts are.
func (s *sampler) counts(ctx context.Context, now *state) (version, error) {
	const path = "/v1/counts"
	var answer struct {
		version
		Chains, Modules []json.RawMessage
	}
	data, err := s.get(ctx, path)
	if err == nil {
		err = unmarshal(path, data, &answer)
	}
	if err != nil {
		return version{}, err
	}
	items := map[string]json.RawMessage{}
	for _, item := range slices.Concat(answer.Chains, answer.Modules) {
		var id struct{ ID, Module string }
		if err := unmarshal(path, item, &id); err != nil {
			return version{}, err
		}
		items[id.ID+"/"+id.Module] = item
	}
	now.parts["counts"] = items
	return answer.version, nil
}

func (s *sampler) get(ctx context.Context, path string) ([]byte, error) {
	response, err := s.agent(ctx, http.MethodGet, path, http.NoBody)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxPart))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("the agent answered %s: %s", response.Status, data)
	}
	return data, err
}

// read returns the items of a part by name.
func (s *sampler) read(ctx context.Context, part, path string) (map[string]json.RawMessage, error) {
	data, err := s.get(ctx, path)
	if err != nil {
		return nil, err
	}
	if part == statusOnly {
		return map[string]json.RawMessage{part: data}, nil
	}
	var list []json.RawMessage
	if err := unmarshal(path, data, &list); err != nil {
		return nil, err
	}
	items := map[string]json.RawMessage{}
	for _, item := range list {
		var id struct {
			ID       string // of chains
			Number   int64  // of changes
			Metadata struct{ Name string }
		}
		if err := unmarshal(path, item, &id); err != nil {
			return nil, err
		}
		name := id.Metadata.Name + id.ID
		if id.Number > 0 {
			name = fmt.Sprint(id.Number)
		}
		items[name] = item
	}
	return items, nil
}

func unmarshal(path string, data []byte, into any) error {
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// frame is what changed from one state to another that a page is sent. The first one has everything.
type frame struct {
	Time  int64                                 `json:"time"` // Unix, in milliseconds
	Error string                                `json:"error,omitempty"`
	First bool                                  `json:"first,omitempty"`
	Set   map[string]map[string]json.RawMessage `json:"set,omitempty"`
	Gone  map[string][]string                   `json:"gone,omitempty"`
}

func difference(last, now *state) frame {
	f := frame{Time: now.at, Error: now.err, First: last == nil,
		Set: map[string]map[string]json.RawMessage{}, Gone: map[string][]string{}}
	if last == nil {
		last = &state{}
	}
	for part := range now.parts {
		set := map[string]json.RawMessage{}
		for name, item := range now.parts[part] {
			if !bytes.Equal(item, last.parts[part][name]) {
				set[name] = item
			}
		}
		if len(set) > 0 {
			f.Set[part] = set
		}
		for name := range last.parts[part] {
			if _, ok := now.parts[part][name]; !ok {
				f.Gone[part] = append(f.Gone[part], name)
			}
		}
	}
	return f
}

// stream sends the state as server-sent events. A page that reads slowly misses states in between, and nothing queues
// up for it.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	defer s.sampler.join()()
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	if out.Flush() != nil {
		return
	}
	var last *state
	for {
		now := s.sampler.next(r.Context(), last)
		if now == nil {
			return
		}
		data, err := json.Marshal(difference(last, now))
		if err != nil {
			return
		}
		_ = out.SetWriteDeadline(time.Now().Add(longest))
		if _, err := fmt.Fprintf(w, "data: %s\n\n", data); err != nil || out.Flush() != nil {
			return
		}
		last = now
	}
}
