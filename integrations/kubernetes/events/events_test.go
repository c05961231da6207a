// SPDX-License-Identifier: Apache-2.0

package events_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/events"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch/watchtest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// object is an Event as the API server has it.
type object struct {
	Count   int
	Reason  string
	Message string
	Type    string
}

// server is the part of an API server that has Events.
type server struct {
	mu       sync.Mutex
	objects  map[string]*object // by path
	requests int
	fails    int // requests that are answered with code
	code     int
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	if s.fails > 0 {
		s.fails--
		w.WriteHeader(s.code)
		return
	}
	var o struct {
		Metadata struct{ Name string }
		object
	}
	_ = json.NewDecoder(r.Body).Decode(&o)
	path := r.URL.Path
	if r.Method == http.MethodPost {
		path += "/" + o.Metadata.Name
	}
	is := s.objects[path]
	switch {
	case r.Method == http.MethodPost && is != nil:
		w.WriteHeader(http.StatusConflict)
		return
	case r.Method == http.MethodPost:
		is = &o.object
		s.objects[path] = is
	case o.Count > 0:
		is.Count = o.Count
	default:
		is.Message, is.Type = o.Message, o.Type
	}
	_ = json.NewEncoder(w).Encode(is)
}

// text lists the Events, in the order of their paths' reasons.
func (s *server) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, o := range s.objects {
		all = append(all, fmt.Sprintf("%s x%d %s", o.Reason, o.Count, o.Message))
	}
	return strings.Join(all, "; ")
}

var fast = events.Limits{Burst: 1000, Every: time.Hour, Same: time.Hour, Retry: time.Millisecond}

func start(t *testing.T, s *server, l events.Limits) *events.Recorder {
	t.Helper()
	s.objects = map[string]*object{}
	return again(t, s, l)
}

// again is another process with the same API server.
func again(t *testing.T, s *server, l events.Limits) *events.Recorder {
	t.Helper()
	r := events.New(watchtest.Client(t, s), "kerb-kube-node", "n1", l, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return r
}

func event(name, reason, message string) events.Event {
	return events.Event{Object: events.Object{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: name,
		UID: "u-" + name}, Type: events.Warning, Reason: reason, Message: message}
}

func await(t *testing.T, s *server, want string) {
	t.Helper()
	wait.Until(t, want, func() bool { return s.text() == want }, func() any { return s.text() })
}

// There is one object for each object and reason, also of several processes: what happens again is counted in it.
func TestSameObject(t *testing.T) {
	s := &server{}
	r := start(t, s, fast)
	r.Record(event("web", "NotAdmitted", "a"))
	await(t, s, "NotAdmitted x1 a")
	r.Record(event("web", "NotAdmitted", "a")) // has just been written
	r.Record(event("web", "NotAdmitted", "b"))
	await(t, s, "NotAdmitted x2 b")
	other := again(t, s, fast)
	other.Record(event("web", "NotAdmitted", "c"))
	await(t, s, "NotAdmitted x3 c")
	if r.Counts().Written != 2 || other.Counts().Written != 1 {
		t.Errorf("%+v, %+v", r.Counts(), other.Counts())
	}
}

// However many Events there are, a limited number is kept and written.
func TestLimits(t *testing.T) {
	s := &server{}
	r := start(t, s, events.Limits{Burst: 3, Every: time.Hour, Same: time.Hour, Retry: time.Millisecond})
	const all = 1000
	for i := range all {
		r.Record(event(fmt.Sprint("web-", i), "NotAdmitted", strings.Repeat("ä", 2000)))
		r.Record(event("same", "NotAdmitted", fmt.Sprint(i)))
	}
	wait.Until(t, "three are written", func() bool { return r.Counts().Written == 3 }, func() any { return r.Counts() })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests > 9 || len(s.objects) > 3 || r.Counts().Dropped < all-70 { // one that changes while it is written: x2
		t.Errorf("%d requests, %d objects, %+v", s.requests, len(s.objects), r.Counts())
	}
	for _, o := range s.objects {
		if len(o.Message) > 1024 {
			t.Errorf("a message of %d bytes", len(o.Message))
		}
	}
}

// An API server that fails gets the newest Event when it is back. One that refuses an Event is not asked again.
func TestFailures(t *testing.T) {
	s := &server{fails: 3, code: http.StatusServiceUnavailable}
	r := start(t, s, fast)
	r.Record(event("web", "NotAdmitted", "a"))
	await(t, s, "NotAdmitted x1 a")
	s.mu.Lock()
	s.fails, s.code = 1, http.StatusForbidden
	s.mu.Unlock()
	r.Record(event("db", "NotAdmitted", "refused"))
	r.Record(event("app", "NotProtected", "b"))
	wait.Until(t, "one is refused, and one written", func() bool {
		return r.Counts() == events.Counts{Written: 2, Dropped: 1}
	}, func() any { return r.Counts() })
	if text := s.text(); strings.Contains(text, "refused") || !strings.Contains(text, "NotProtected x1 b") {
		t.Error(text)
	}
}

// A message has no control characters, which a terminal could obey, nor ones that change the direction of text.
func TestControlCharacters(t *testing.T) {
	s := &server{}
	start(t, s, fast).Record(event("web", "NotAdmitted", "a\x1b[2J\r\nb \u202eü\x00"))
	await(t, s, "NotAdmitted x1 a [2J  b  ü ")
}

// What needs no API server has no recorder.
func TestNoRecorder(*testing.T) {
	var r *events.Recorder
	r.Record(event("web", "NotAdmitted", "a"))
}
