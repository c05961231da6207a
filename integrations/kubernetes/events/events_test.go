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

	FirstTimestamp time.Time
}

// server is the part of an API server that has Events.
type server struct {
	mu       sync.Mutex
	objects  map[string]*object // by path
	requests int
	fails    int // requests that are answered with code
	code     int
	webhook  string // namespace of which all requests fail
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	if s.webhook != "" && strings.Contains(r.URL.Path, "/namespaces/"+s.webhook+"/") {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
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
	run(t, r)
	return r
}

func run(t *testing.T, r *events.Recorder) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
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
	wait.Until(t, "2 and 1 are counted", func() bool { // a moment after the API server has them
		return r.Counts() == events.Counts{Written: 2} && other.Counts() == events.Counts{Written: 1}
	}, func() any { return []events.Counts{r.Counts(), other.Counts()} })
}

// However many Events there are, a limited number is kept and written.
func TestLimits(t *testing.T) {
	s := &server{}
	r := start(t, s, events.Limits{Burst: 6, Every: time.Hour, Same: time.Hour, Retry: time.Millisecond})
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

// of returns the Event of an object in a namespace.
func of(namespace, name string) events.Event {
	e := event(name, "NotAdmitted", "in "+namespace)
	e.Object.Namespace = namespace
	return e
}

// An Event has the time at which it was recorded, however late it is written.
func TestTime(t *testing.T) {
	s := &server{objects: map[string]*object{}}
	r := events.New(watchtest.Client(t, s), "kerb-kube-node", "n1", fast, slog.New(slog.DiscardHandler))
	r.Record(event("web", "NotAdmitted", "a"))
	recorded := time.Now()
	wait.Until(t, "another second", func() bool { return time.Now().Unix() > recorded.Unix() }, func() any { return nil })
	r.Record(event("web", "NotAdmitted", "a")) // is the same
	run(t, r)
	await(t, s, "NotAdmitted x1 a")
	for _, o := range s.objects {
		if o.FirstTimestamp.After(recorded) {
			t.Errorf("written with %v, recorded before %v", o.FirstTimestamp, recorded)
		}
	}
}

// One that is no longer true is not written, nor one that is old; Record reports what is not accepted.
func TestKeep(t *testing.T) {
	s := &server{objects: map[string]*object{}}
	old := fast
	old.Old = time.Hour
	r := events.New(watchtest.Client(t, s), "kerb-kube-node", "n1", old, slog.New(slog.DiscardHandler))
	accepted := 0
	for i := range 100 {
		if r.Record(of("shop", fmt.Sprint("web-", i))) {
			accepted++
		}
	}
	if accepted != 8 || r.Counts().Dropped != 92 || !r.Record(of("bank", "web")) {
		t.Errorf("%d accepted, %+v", accepted, r.Counts())
	}
	r.Keep(func(e events.Event) bool { return e.Object.Namespace == "bank" })
	run(t, r)
	await(t, s, "NotAdmitted x1 in bank")

	old.Old = time.Nanosecond
	r = events.New(watchtest.Client(t, s), "kerb-kube-node", "n1", old, slog.New(slog.DiscardHandler))
	r.Record(of("shop", "web"))
	run(t, r)
	wait.Until(t, "the old one is dropped", func() bool { return r.Counts() == events.Counts{Dropped: 1} },
		func() any { return r.Counts() })
}

// A namespace with many pods takes at most half of what a node may write at once, and namespaces take turns.
func TestNamespaces(t *testing.T) {
	s := &server{}
	r := start(t, s, events.Limits{Burst: 6, Every: time.Hour, Same: time.Hour, Retry: time.Millisecond})
	for i := range 8 {
		r.Record(of("a", fmt.Sprint("web-", i)))
	}
	await(t, s, "NotAdmitted x1 in a; NotAdmitted x1 in a; NotAdmitted x1 in a")
	for i := range 8 {
		r.Record(of("b", fmt.Sprint("web-", i)))
		r.Record(of("c", fmt.Sprint("web-", i)))
	}
	wait.Until(t, "all may be written", func() bool { return r.Counts().Written == 6 }, func() any { return r.Counts() })
	if text := s.text(); strings.Count(text, "in a") != 3 || !strings.Contains(text, "in c") {
		t.Error(text)
	}
}

// An Event that an admission webhook of its namespace fails delays no other one, and is dropped after some attempts.
func TestWebhook(t *testing.T) {
	s := &server{webhook: "shop"}
	r := start(t, s, fast)
	r.Record(of("shop", "web"))
	r.Record(of("bank", "web"))
	await(t, s, "NotAdmitted x1 in bank")
	wait.Until(t, "the other one is dropped", func() bool { return r.Counts() == events.Counts{Written: 1, Dropped: 1} },
		func() any { return r.Counts() })
	s.mu.Lock()
	requests := s.requests
	s.mu.Unlock()
	if requests != 9 {
		t.Errorf("%d requests, want 8 attempts and one of the other namespace", requests)
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
