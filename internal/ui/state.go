// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// state is what the agent has answered: each part of it by the names of its items.
type state struct {
	due   map[string]time.Time // when it is asked again, by part
	at    map[string]int64     // when the agent has answered for a part: Unix, in milliseconds
	err   string               // why the agent did not answer; the parts are then those of its last answer
	parts map[string]map[string]json.RawMessage
}

// sources are the parts of the state and where they come from.
var sources = []struct{ part, path string }{{"status", "/v1/status"}, {"chains", "/v1/chains"},
	{"services", "/v1/services"}, {"modules", "/v1/modules"}, {"virtualservices", "/v1/virtualservices"},
	{"changes", "/v1/changes?limit=50"}}

// share is how many times as long as its answer took a part is not asked for again: large nodes take long to answer.
const share = 100

const (
	interval   = time.Second
	longest    = 10 * time.Second // of a sample, and of a write to a browser
	maxPart    = 64 << 20
	statusOnly = "status" // the part that is no list
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
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var last *state
	for ctx.Err() == nil {
		last = s.sample(ctx, last)
		s.mu.Lock()
		if ctx.Err() == nil {
			s.latest = last
			close(s.newer)
			s.newer = make(chan struct{})
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
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
	now := &state{at: map[string]int64{}, due: map[string]time.Time{}, parts: map[string]map[string]json.RawMessage{}}
	for _, source := range sources {
		part, asked := source.part, time.Now()
		if last != nil && last.err == "" && asked.Before(last.due[part]) {
			now.at[part], now.due[part], now.parts[part] = last.at[part], last.due[part], last.parts[part]
			continue
		}
		items, err := s.read(ctx, part, source.path)
		if err != nil {
			now.err = err.Error()
			if last != nil {
				now.parts = last.parts
			}
			return now
		}
		now.at[part], now.due[part] = time.Now().UnixMilli(), asked.Add(share*time.Since(asked))
		now.parts[part] = items
	}
	return now
}

// read returns the items of a part by name.
func (s *sampler) read(ctx context.Context, part, path string) (map[string]json.RawMessage, error) {
	response, err := s.agent(ctx, http.MethodGet, path, http.NoBody)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxPart))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the agent answered %s: %s", response.Status, data)
	}
	if part == statusOnly {
		return map[string]json.RawMessage{part: data}, nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	items := map[string]json.RawMessage{}
	for _, item := range list {
		var id struct {
			ID       string // of chains
			Number   int64  // of changes
			Metadata struct{ Name string }
		}
		if err := json.Unmarshal(item, &id); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		name := id.Metadata.Name + id.ID
		if id.Number > 0 {
			name = fmt.Sprint(id.Number)
		}
		items[name] = item
	}
	return items, nil
}

// frame is what changed from one state to another that a page is sent. The first one has everything.
type frame struct {
	Times map[string]int64                      `json:"times"`
	Error string                                `json:"error,omitempty"`
	First bool                                  `json:"first,omitempty"`
	Set   map[string]map[string]json.RawMessage `json:"set,omitempty"`
	Gone  map[string][]string                   `json:"gone,omitempty"`
}

func difference(last, now *state) frame {
	f := frame{Times: now.at, Error: now.err, First: last == nil,
		Set: map[string]map[string]json.RawMessage{}, Gone: map[string][]string{}}
	if last == nil {
		last = &state{}
	}
	for _, source := range sources {
		part := source.part
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
