// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/client"
)

// agent answers as an agent does, and notes what it is asked.
type agent struct {
	asked atomic.Value // string
	down  atomic.Bool

	broken atomic.Bool // lists of services fail
}

func (a *agent) request(_ context.Context, method, path string, _ io.Reader) (*http.Response, error) {
	if a.down.Load() {
		return nil, errors.New("no agent answers")
	}
	if path != "/v1/modules/px" && path != "/v1/modules/fw" {
		a.asked.Store(method + " " + path)
	}
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Other", "not for browsers")
	text := "[]"
	switch {
	case path == "/v1/modules/px":
		text = `{"status": {"views": [{"query": "instances"}, {"query": "a/b"}, {"query": "rules"}, {"query": "stats"},
			{"query": "huge"}]}}`
	case path == "/v1/modules/fw":
		w.WriteHeader(http.StatusNotFound)
		text = `{"detail": "there is no module fw"}`
	case path == "/v1/modules/px/rules":
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
	case path == "/v1/modules/px/stats":
		w.Header().Set("Content-Type", "text/javascript")
	case path == "/v1/modules/px/huge":
		text = strings.Repeat("[", maxView+1)
	case path == "/v1/counts":
		text = `{"change":7,"state":9,"chains":[{"id":"a1"}],"modules":[{"module":"fw"}]}`
	case path == "/v1/status":
		text = `{"version":"devel"}`
	case path == "/v1/services" && a.broken.Load():
		w.WriteHeader(http.StatusInternalServerError)
	case path == "/v1/services":
		text = `[{"metadata":{"name":"web"}}]`
	case path == "/v1/history?since=60":
		text = `{"step":10,"time":7,"values":[1]}`
	case path == "/v1/history?since=61":
		w.WriteHeader(http.StatusConflict)
		text = `{"detail":"the history is off"}`
	case path == "/v1/flows?since=60":
		text = `{"source":"192.0.2.7"}`
	case path == "/v1/flows?since=61":
		w.WriteHeader(http.StatusConflict)
		text = `{"detail":"no module records flows"}`
	case strings.HasPrefix(path, "/v1/changes?"):
		text = `[{"number":7}]`
	}
	_, _ = w.WriteString(text)
	return w.Result(), nil
}

// served is a page and the browser of its user.
type served struct {
	*agent
	t      *testing.T
	server *Server
	base   string // URL of the session's path
	cookie *http.Cookie
}

func serve(t *testing.T, o Options) *served {
	t.Helper()
	s := &served{t: t, agent: &agent{}}
	o.Agent = s.request
	ctx, end := context.WithCancel(context.Background())
	var l net.Listener
	var err error
	if s.server, l, err = Listen(ctx, 0, o); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.server.Serve(ctx, l) }()
	t.Cleanup(func() {
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	s.base = s.server.origin + s.server.base
	return s
}

// signIn uses the address that was printed.
func (s *served) signIn() {
	s.t.Helper()
	answer, body := s.get(s.server.URL(), nil)
	if answer.StatusCode != http.StatusOK || len(answer.Cookies()) != 1 {
		s.t.Fatalf("the address answers %s %s", answer.Status, body)
	}
	s.cookie = answer.Cookies()[0]
}

func (s *served) get(url string, change func(*http.Request)) (*http.Response, string) {
	s.t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.cookie != nil {
		r.AddCookie(s.cookie)
	}
	if change != nil {
		change(r)
	}
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer, string(body)
}

func (s *served) wants(status int, url string, change func(*http.Request)) {
	s.t.Helper()
	answer, body := s.get(url, change)
	if answer.StatusCode != status {
		s.t.Errorf("%s answers %s, want %d: %s", strings.TrimPrefix(url, s.base), answer.Status, status, body)
	}
	for name, want := range map[string]string{"Content-Security-Policy": policy, "Cache-Control": "no-store",
		"Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff", "X-Other": ""} {
		if got := answer.Header.Get(name); got != want {
			s.t.Errorf("%s has %s %q, want %q", url, name, got, want)
		}
	}
}

// Another user of the machine has the port, and nothing else.
func TestNothingWithoutToken(t *testing.T) {
	s := serve(t, Options{})
	for _, path := range []string{"/", "/?token=", "/?token=" + s.server.session, "/v1/status",
		"/stream", "/app.js", "/x"} {
		s.wants(http.StatusForbidden, s.server.origin+path, nil)
		s.wants(http.StatusForbidden, s.base+path, nil)
	}
	s.cookie = &http.Cookie{Name: cookie, Value: s.server.base[1:]}
	s.wants(http.StatusForbidden, s.base+"/v1/status", nil)
	if asked := s.asked.Load(); asked != nil {
		t.Errorf("the agent was asked %v", asked)
	}
}

func TestTokenOnce(t *testing.T) {
	used := make(chan string, 1)
	s := serve(t, Options{Used: func(next string) { used <- next }})
	first := s.server.URL()
	s.signIn()
	if c := s.cookie; !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != s.server.base+"/" {
		t.Errorf("the cookie is %v", c)
	}
	s.wants(http.StatusOK, s.base+"/v1/status", nil)
	s.wants(http.StatusOK, s.base+"/", nil)
	s.cookie = nil
	s.wants(http.StatusForbidden, first, nil)
	s.wants(http.StatusOK, <-used, nil)
}

// A page of another origin, and a name that an attacker resolves to 127.0.0.1, get nothing from the user's browser.
func TestOtherOrigins(t *testing.T) {
	s := serve(t, Options{Write: true})
	s.signIn()
	host := strings.TrimPrefix(s.server.origin, "http://")
	for _, evil := range []string{"", "evil.example", "127.0.0.1", "localhost", "evil.example:1", "0.0.0.0" + host[9:],
		strings.ToUpper("localhost") + host[9:] + "0"} {
		s.wants(http.StatusForbidden, s.base+"/v1/status", func(r *http.Request) {
			if r.Host = evil; evil == "" {
				r.Host = " "
			}
		})
	}
	for name, values := range map[string][]string{"Origin": {"http://evil.example", "null", "https://" + host,
		"http://127.0.0.1:1"}, "Sec-Fetch-Site": {"cross-site", "same-site"}} {
		for _, v := range values {
			s.wants(http.StatusForbidden, s.base+"/v1/status", func(r *http.Request) { r.Header.Set(name, v) })
			s.wants(http.StatusForbidden, s.base+"/v1/changes/7/revert", func(r *http.Request) {
				r.Method = http.MethodPost
				r.Header.Set(name, v)
			})
		}
	}
	post := func(r *http.Request) { r.Method = http.MethodPost }
	s.wants(http.StatusForbidden, s.base+"/v1/changes/7/revert", post) // as no browser sends it
	s.wants(http.StatusOK, s.base+"/v1/status", func(r *http.Request) { r.Header.Set("Origin", s.server.origin) })
	s.wants(http.StatusOK, s.base+"/v1/status", func(r *http.Request) {
		r.Host = s.server.local
		r.Header.Set("Origin", "http://"+s.server.local)
	})
}

// Only what the page uses reaches the agent.
func TestRoutes(t *testing.T) {
	s := serve(t, Options{})
	s.signIn()
	own := func(method string) func(*http.Request) {
		return func(r *http.Request) { r.Method, r.Header["Origin"] = method, []string{s.server.origin} }
	}
	for path, want := range map[string]string{"/v1/changes/7": "GET /v1/changes/7", "/v1/services": "GET /v1/services",
		"/v1/explain?packet=tcp%20a": "GET /v1/explain?packet=tcp%20a",
		"/v1/modules/px/instances":   "GET /v1/modules/px/instances",
		"/v1/modules/px/a/b":         "GET /v1/modules/px/a/b",
		"/v1/drops?count=5":          "GET /v1/drops?count=5",
		"/v1/trace?count=5":          "GET /v1/trace?count=5"} {
		s.wants(http.StatusOK, s.base+path, nil)
		if got := s.asked.Load(); got != want {
			t.Errorf("the agent was asked %v, want %s", got, want)
		}
	}
	// a document, a script, and what has no end
	for _, path := range []string{"/v1/modules/px/rules", "/v1/modules/px/stats", "/v1/modules/px/huge"} {
		s.wants(http.StatusBadGateway, s.base+path, nil)
	}
	s.asked.Store("nothing")
	for _, path := range []string{"/v1/modules/px/sessions", "/v1/modules/px/", "/v1/modules/fw/connections",
		"/v1/sets/x/elements", "/metrics", "/v1/services/%2e%2e%2fapply", "/v1/services/..%2Fapply",
		"/v1/modules/px%2Fset/stats", "/v1/services/a%3fb", "/v1/x"} {
		s.wants(http.StatusNotFound, s.base+path, nil)
	}
	for _, path := range []string{"/v1/status", "/v1/services/web", "/v1/changes/7"} {
		s.wants(http.StatusMethodNotAllowed, s.base+path, own(http.MethodPut))
		s.wants(http.StatusMethodNotAllowed, s.base+path, own(http.MethodDelete))
	}
	s.wants(http.StatusNotFound, s.base+"/v1/apply", own(http.MethodPost))
	s.wants(http.StatusNotFound, s.base+"/v1/changes/7/revert", own(http.MethodPost))
	if got := s.asked.Load(); got != "nothing" {
		t.Errorf("the agent was asked %v", got)
	}
}

// The page asks for samples and flows again and again: why there are none is an answer, not an error in the browser's
// log. It cannot ask for what has no end.
func TestSince(t *testing.T) {
	s := serve(t, Options{})
	s.signIn()
	for path, want := range map[string]string{"/v1/history?since=60": `{"step":10,"time":7,"values":[1]}`,
		"/v1/history?since=61": `{"error":"the history is off"}`, "/v1/flows?since=60": `{"source":"192.0.2.7"}`,
		"/v1/flows?since=61": `{"error":"no module records flows"}`} {
		answer, body := s.get(s.base+path+"&follow=true", nil)
		if answer.StatusCode != http.StatusOK || strings.TrimSpace(body) != want {
			t.Errorf("%s answers %s %s, want %s", path, answer.Status, body, want)
		}
		if got, want := s.asked.Load(), "GET "+path; got != want {
			t.Errorf("the agent was asked %v, want %s", got, want)
		}
	}
	s.down.Store(true)
	if answer, body := s.get(s.base+"/v1/history?since=60", nil); answer.StatusCode != http.StatusOK ||
		!strings.Contains(body, `{"error":"no agent answers"}`) {
		t.Errorf("without an agent the answer is %s %s", answer.Status, body)
	}
}

func TestWrite(t *testing.T) {
	s := serve(t, Options{Write: true})
	s.signIn()
	s.wants(http.StatusOK, s.base+"/v1/changes/7/revert?dryRun=true", func(r *http.Request) {
		r.Method, r.Header["Origin"] = http.MethodPost, []string{s.server.origin}
	})
	if got := s.asked.Load(); got != "POST /v1/changes/7/revert?dryRun=true" {
		t.Errorf("the agent was asked %v", got)
	}
}

// A stream begins with everything and continues with differences, also while no agent answers.
func TestStream(t *testing.T) {
	s := serve(t, Options{})
	s.signIn()
	r, err := http.NewRequest(http.MethodGet, s.base+"/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.AddCookie(s.cookie)
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	next := func() (f frame) {
		t.Helper()
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				if err := json.Unmarshal([]byte(data), &f); err != nil {
					t.Fatal(err)
				}
				return f
			}
		}
		t.Fatal("the stream ended")
		return f
	}
	f := next()
	if !f.First || string(f.Set["services"]["web"]) != `{"metadata":{"name":"web"}}` || f.Set["changes"]["7"] == nil ||
		f.Set["status"]["status"] == nil {
		t.Errorf("the first frame is %+v", f)
	}
	if f = next(); f.First || len(f.Set) != 0 || len(f.Gone) != 0 {
		t.Errorf("without a difference the frame is %+v", f)
	}
	s.down.Store(true)
	for f = next(); f.Error == ""; f = next() {
	}
	if f.Error != "no agent answers" || len(f.Gone) != 0 {
		t.Errorf("without an agent the frame is %+v", f)
	}
	s.down.Store(false)
	for f = next(); f.Error != ""; f = next() {
	}
}

// The agent is asked while a page is open, and not longer.
func TestSamplesForListenersOnly(t *testing.T) {
	a := &agent{}
	s := newSampler(a.request)
	if a.asked.Load() != nil || s.latest != nil {
		t.Error("the agent was asked before a page is open")
	}
	first, second := s.join(), s.join()
	ctx, end := context.WithTimeout(context.Background(), time.Minute)
	defer end()
	one := s.next(ctx, nil)
	if one == nil || s.next(ctx, one) == one {
		t.Fatal("no states")
	}
	stopped := s.stop
	first()
	if s.listeners != 1 {
		t.Errorf("%d listeners", s.listeners)
	}
	ended := make(chan struct{})
	s.stop = func() { stopped(); close(ended) }
	second()
	select {
	case <-ended:
	default:
		t.Error("sampling continues without a page")
	}
}

// Counters are read each time, all else when something has happened, when it is old, and after an agent's absence.
func TestWhatIsRead(t *testing.T) {
	a := &agent{}
	s := newSampler(a.request)
	hour := time.Now().Add(time.Hour)
	all := s.sample(context.Background(), nil)
	for name, c := range map[string]struct {
		change func(last *state)
		want   string
	}{
		"nothing has happened": {func(*state) {}, "GET /v1/counts"},
		"a change":             {func(last *state) { last.version.Change-- }, "GET /v1/changes?limit=50"},
		"something else":       {func(last *state) { last.version.State-- }, "GET /v1/changes?limit=50"},
		"a change too soon":    {func(last *state) { last.version.Change--; last.soonest = hour }, "GET /v1/counts"},
		"it is old":            {func(last *state) { last.latest = time.Now() }, "GET /v1/changes?limit=50"},
	} {
		last := *all
		last.soonest = time.Time{}
		c.change(&last)
		two := s.sample(context.Background(), &last)
		if asked := a.asked.Load(); asked != c.want || two.err != "" {
			t.Errorf("%s: the agent was asked %v (%s)", name, asked, two.err)
		}
		if f := difference(&last, two); len(f.Set) != 0 || len(f.Gone) != 0 || f.Time < last.at {
			t.Errorf("%s: the difference is %+v", name, f)
		}
		if strings.HasSuffix(name, "too soon") && two.version == all.version {
			t.Error("a change that is not read yet counts as read")
		}
	}
	if counts := all.parts["counts"]; len(counts) != 2 || counts["a1/"] == nil || counts["/fw"] == nil {
		t.Errorf("counters of %v", counts)
	}
	all.soonest = hour
	a.down.Store(true)
	away := s.sample(context.Background(), all)
	if away.err == "" || away.parts["services"]["web"] == nil || away.next.After(time.Now()) {
		t.Errorf("without an agent the state is %+v", away)
	}
	a.down.Store(false)
	if back := s.sample(context.Background(), away); back.err != "" || a.asked.Load() != "GET /v1/changes?limit=50" {
		t.Errorf("after an agent's absence it was asked %v (%s)", a.asked.Load(), back.err)
	}

	// A list that cannot be read is not asked for again at once, and the error stays.
	a.broken.Store(true)
	all.soonest, all.version.State = time.Time{}, 1
	failed := s.sample(context.Background(), all)
	failed.soonest, failed.latest = hour, hour
	again := s.sample(context.Background(), failed)
	if failed.err == "" || again.err != failed.err || a.asked.Load() != "GET /v1/counts" {
		t.Errorf("after an error (%s) the agent was asked %v (%s)", failed.err, a.asked.Load(), again.err)
	}
	a.broken.Store(false)
	again.soonest = time.Time{}
	if better := s.sample(context.Background(), again); better.err != "" || better.version != (version{7, 9}) {
		t.Errorf("after an error the state is %+v", better)
	}
	if got := pause(pauseBusy, 10*time.Second); got != longestRest {
		t.Errorf("after an answer that took 10 s the agent is left alone for %s", got)
	}
}

func TestDifference(t *testing.T) {
	item := func(text string) map[string]json.RawMessage { return map[string]json.RawMessage{"a": []byte(text)} }
	one := &state{parts: map[string]map[string]json.RawMessage{"services": item("1"), "chains": item("1")}}
	two := &state{parts: map[string]map[string]json.RawMessage{"services": item("2"), "chains": nil}}
	f := difference(one, two)
	if f.First || string(f.Set["services"]["a"]) != "2" || len(f.Set["chains"]) != 0 || len(f.Gone["chains"]) != 1 {
		t.Errorf("the difference is %+v", f)
	}
}

// A request as the command line sends it fits.
var _ Request = client.New("").Send

// The page stays small.
func TestSize(t *testing.T) {
	for name, limit := range map[string]int{"app.js": 60 << 10, "app.css": 8 << 10, "index.html": 1 << 10} {
		data, err := dist.ReadFile("dist/" + name + ".gz")
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s has %d bytes, gzipped", name, len(data))
		if len(data) > limit {
			t.Errorf("%s has %d bytes, gzipped, more than %d", name, len(data), limit)
		}
	}
}

// The page gets what it shows as a capture, also without --write; what is no list of packets is refused.
func TestCapture(t *testing.T) {
	s := serve(t, Options{})
	body := func(text string) func(*http.Request) {
		return func(r *http.Request) {
			r.Method, r.Header["Origin"] = http.MethodPost, []string{s.server.origin}
			r.Body = io.NopCloser(strings.NewReader(text))
		}
	}
	s.wants(http.StatusForbidden, s.base+"/capture", body("[]"))
	s.signIn()
	packets := `[{"interface":"veth1","hook":"xdp","direction":"egress","service":"web","linkType":"ethernet","length":60,` +
		`"frame":"AAECAwQFBgcICQoLCAA=","steps":[{"module":"fw","verdict":"drop","reason":"policy","nanoseconds":7}]}]`
	response, text := s.get(s.base+"/capture", body(packets))
	if kind := response.Header.Get("Content-Type"); response.StatusCode != http.StatusOK ||
		kind != "application/x-pcapng" || !strings.HasPrefix(text, "\n\r\r\n") ||
		!strings.Contains(text, "service web egress at xdp") || !strings.Contains(text, "kerb: fw:drop (policy) in 7 ns") {
		t.Errorf("%s, %s: %q", response.Status, kind, text)
	}
	for _, wrong := range []string{"", "{}", "[1]", `[{"frame":"?"}]`, strings.Repeat(" ", mostPackets+1) + "[]"} {
		s.wants(http.StatusBadRequest, s.base+"/capture", body(wrong))
	}
	if got := s.asked.Load(); got != nil {
		t.Errorf("the agent was asked %v", got)
	}
}
