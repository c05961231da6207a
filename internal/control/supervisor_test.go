// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

var quiet = slog.New(slog.DiscardHandler)

// fake is a control plane in this process, over connections in memory.
type fake struct {
	net.Listener
	accept chan net.Conn
	run    *run
	once   sync.Once
}

func (f *fake) Accept() (net.Conn, error) {
	select {
	case c := <-f.accept:
		return c, nil
	case <-f.run.ended:
		return nil, net.ErrClosed
	}
}
func (f *fake) Close() error   { return nil }
func (f *fake) Addr() net.Addr { return &net.UnixAddr{} }

func (f *fake) end(why string) {
	f.once.Do(func() {
		f.run.why = errors.New(why)
		close(f.run.ended)
	})
}

// newFake answers with handler.
func newFake(handler http.Handler) *fake {
	f := &fake{accept: make(chan net.Conn)}
	f.run = &run{ended: make(chan struct{}), process: &process{pid: 7}}
	f.run.process.end, f.run.process.kill = f.end, f.end
	f.run.transport = &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			select {
			case f.accept <- theirs:
				return ours, nil
			case <-f.run.ended:
				return nil, net.ErrClosed
			}
		}}
	go func() { _ = http.Serve(f, handler) }()
	return f
}

func testSupervisor(start func() (*run, error)) *Supervisor {
	p := newSupervisor("m", &pkgs.Package{}, Options{Log: quiet}, nil)
	p.start = start
	return p
}

// handler answers calls by name with a status, others with 404, and takes them down.
type handler struct {
	mu      sync.Mutex
	calls   []string
	answers map[string]int
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, sdk.PathPrefix)
	h.mu.Lock()
	h.calls = append(h.calls, name)
	status, known := h.answers[name]
	h.mu.Unlock()
	if !known {
		status = http.StatusNotFound
	}
	w.WriteHeader(status)
}

func (h *handler) called() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.calls), func(s string) bool { return s == "health" })
}

// serverGrant is a capability for which the agent asks what the control plane wants.
type serverGrant struct{}

func (serverGrant) serve(context.Context, *Supervisor, *run, *sdk.Requests) {}

// One that answers at once that it wants nothing is not asked all the time.
func TestHastyWants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handler{answers: map[string]int{"wanted": http.StatusNoContent}}
		p := testSupervisor(func() (*run, error) { return newFake(h).run, nil })
		p.grants = []any{serverGrant{}}
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.supervise()
		}()
		time.Sleep(9500 * time.Millisecond)
		if n := len(h.called()); n != 10 {
			t.Errorf("asked %d times in 9.5 s", n)
		}
		p.Close()
		<-done
	})
}

func (p *Supervisor) now() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run
}

// A control plane that does not start is tried again after twice as long each time, and Close does not wait for it.
func TestBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries []time.Duration
		begin := time.Now()
		p := testSupervisor(func() (*run, error) {
			tries = append(tries, time.Since(begin))
			return nil, errors.New("no way")
		})
		go p.supervise()
		time.Sleep(100 * time.Second)
		synctest.Wait()
		s := p.State()
		p.Close()
		want := []time.Duration{0, 500, 1500, 3500, 7500, 15500, 31500, 61500, 91500}
		for i := range want {
			want[i] *= time.Millisecond
		}
		if !slices.Equal(tries, want) || s.Restarts != len(want) || s.Running || !strings.Contains(s.Reason, "no way") {
			t.Errorf("tries %v, state %+v", tries, s)
		}
	})
}

// One that has run for long has the first pause again when it ends.
func TestBackOffAfterACalmRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var tries []time.Duration
		p := testSupervisor(func() (*run, error) {
			tries = append(tries, time.Since(begin).Round(time.Millisecond))
			if len(tries) < 4 {
				return nil, errors.New("not yet")
			}
			f := newFake(&handler{})
			time.AfterFunc(2*time.Minute, func() { f.end("falls over") })
			return f.run, nil
		})
		go p.supervise()
		time.Sleep(3 * time.Minute)
		p.Close()
		if want := 3500*time.Millisecond + 2*time.Minute + firstPause; len(tries) != 5 || tries[4] != want {
			t.Errorf("tries at %v, the last should be at %v", tries, want)
		}
	})
}

// One that answers no health check is ended; one that is not well is not.
func TestHealth(t *testing.T) {
	for name, c := range map[string]struct {
		health   http.HandlerFunc
		restarts int
		healthy  bool
		says     string
	}{
		"hangs": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 1, false,
			"did not answer 3 health checks"},
		"unwell": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, `{"reason":"tired"}`, 503) },
			0, false, "tired"},
		"well":    {func(http.ResponseWriter, *http.Request) {}, 0, true, ""},
		"no idea": {http.NotFound, 0, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				starts := 0
				p := testSupervisor(func() (*run, error) {
					if starts++; starts > 1 {
						return nil, errors.New("only once")
					}
					return newFake(c.health).run, nil
				})
				go p.supervise()
				time.Sleep(30 * time.Second)
				synctest.Wait()
				s := p.State()
				p.Close()
				if got := min(s.Restarts, 1); got != c.restarts || c.restarts == 0 &&
					(s.Healthy != c.healthy || !strings.Contains(s.Reason, c.says)) {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// Health is unknown until the first answer, which is asked for as soon as the control plane has taken its map set
// over.
func TestHealthIsUnknownAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == sdk.PathPrefix+"health" {
				time.Sleep(3 * time.Second)
				http.Error(w, `{"reason": "tired"}`, http.StatusServiceUnavailable)
			}
		}))
		f.run.maps = unread(t)
		p := testSupervisor(func() (*run, error) { return f.run, nil })
		p.want = &live{name: "live-1"}
		p.wake()
		go p.supervise()
		time.Sleep(2 * time.Second)
		if s := p.State(); !s.Started || s.HealthKnown || s.Healthy {
			t.Errorf("before the first answer: %+v", s)
		}
		time.Sleep(2 * time.Second)
		if s := p.State(); !s.HealthKnown || s.Healthy || !strings.Contains(s.Reason, "tired") {
			t.Errorf("after the first answer: %+v", s)
		}
		p.Close()
	})
}

// The conditions that a control plane reports are kept, and a change of their status is announced.
func TestConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		answers := func(w http.ResponseWriter, _ *http.Request) {
			status := "True"
			if time.Since(begin) > 30*time.Second {
				status = "False"
			}
			fmt.Fprintf(w, `{"conditions": [{"type": "Fuse", "status": %q, "reason": "R", "message": "at %v"}]}`, status,
				time.Since(begin))
		}
		p := testSupervisor(func() (*run, error) { return newFake(http.HandlerFunc(answers)).run, nil })
		var last atomic.Int64 // ns since begin
		p.onChange = func(string) { last.Store(int64(time.Since(begin))) }
		go p.supervise()
		for _, want := range []struct {
			at     time.Duration
			status string
			since  time.Duration
		}{{healthEvery, "True", healthEvery}, {6 * healthEvery, "True", healthEvery},
			{8 * healthEvery, "False", 7 * healthEvery}} {
			time.Sleep(want.at - time.Since(begin) + time.Second)
			all, changed := p.State().Conditions, time.Duration(last.Load())
			if len(all) != 1 || all[0].Type != "Fuse" || all[0].Status != want.status || changed != want.since {
				t.Errorf("after %v: %+v since %v, want %+v", want.at, all, changed, want)
			}
		}
		p.Close()
	})
}

// Each run is notified of the map set, and one that rests is not there until it continues.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handler{answers: map[string]int{"start": 204}}
		p := testSupervisor(func() (*run, error) {
			f := newFake(h)
			f.run.maps = unread(t)
			return f.run, nil
		})
		p.want = &live{name: "live-1"}
		p.wake()
		go p.supervise()
		time.Sleep(time.Second)
		if s := p.State(); !s.Started || !s.Running || p.now() == nil {
			t.Errorf("at first: %+v", s)
		}
		p.Suspend()
		p.Suspend()
		time.Sleep(time.Minute)
		if s := p.State(); s.Running || s.Started || s.Restarts != 0 || s.Reason != resting || p.now() != nil {
			t.Errorf("at rest: %+v", s)
		}
		p.Resume()
		p.Resume()
		time.Sleep(time.Second)
		if s := p.State(); !s.Started || !s.Running || s.Restarts != 0 {
			t.Errorf("afterwards: %+v", s)
		}
		p.Suspend()
		p.Close()
		if got := h.called(); !slices.Equal(got, []string{"start", "start"}) {
			t.Errorf("calls: %v", got)
		}
	})
}

// unread is a socket for maps on which nothing ever waits for a reader.
func unread(t *testing.T) *net.UnixConn {
	t.Helper()
	ours, theirs, err := mapsPair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours
}

// The active map set is filled by its name: neither its maps nor their end are sent. All other maps have a name of
// their own.
func TestFillsActiveMapSet(t *testing.T) {
	var mu sync.Mutex
	var got []string
	started := make(chan struct{}, 10)
	ended := make(chan struct{}, 10)
	f := newFake(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req sdk.MapSetRequest
		_ = json.NewDecoder(r.Body).Decode(&req)
		w.WriteHeader(http.StatusNoContent)
		switch name := strings.TrimPrefix(r.URL.Path, sdk.PathPrefix); name {
		case "health":
			started <- struct{}{}
		case "fill", "drop":
			mu.Lock()
			got = append(got, name+" "+req.MapSet)
			mu.Unlock()
			if name == "drop" {
				ended <- struct{}{}
			}
		}
	}))
	f.run.maps = unread(t)
	p := testSupervisor(func() (*run, error) { return f.run, nil })
	go p.supervise()
	defer p.Close()
	fill := func(m sdk.Maps) {
		t.Helper()
		if err := p.Fill(t.Context(), json.RawMessage("{}"), m); err != nil {
			t.Fatal(err)
		}
	}
	fill(nil)
	<-ended
	if err := p.Start(json.RawMessage("{}"), nil, nil); err != nil {
		t.Fatal(err)
	}
	<-started
	fill(nil)
	p.mu.Lock()
	p.want.of = sdk.Maps{"other": nil} // as if the map set had another map
	p.mu.Unlock()
	fill(nil)
	<-ended
	want := []string{"fill fill-1", "drop fill-1", "fill live-2", "fill fill-3", "drop fill-3"}
	if !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
}

// After a change of values the maps are the same: they are neither copied again nor closed.
func TestCopiesOfMaps(t *testing.T) {
	sdktest.NeedRoot(t)
	p := testSupervisor(nil)
	newMaps := func() sdk.Maps {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return sdk.Maps{"a": m}
	}
	start := func(m sdk.Maps) *ebpf.Map {
		t.Helper()
		if err := p.Start(nil, m, nil); err != nil {
			t.Fatal(err)
		}
		return p.want.maps["a"]
	}
	one, two := newMaps(), newMaps()
	first := start(one)
	if again := start(one); again != first || again.FD() < 0 {
		t.Errorf("copy %v of the same map, before %v", again, first)
	}
	if other := start(two); other == first || first.FD() >= 0 {
		t.Errorf("copy %v of another map; that of the first one is %v", other, first)
	}
	p.setWant(nil)
}

// A config is compiled, and the maps that packets meet are filled, in one request: if the control plane has these maps,
// and if it knows how. Those of an older SDK do not.
func TestCompileFills(t *testing.T) {
	var active string // as asked
	old := false
	started := make(chan struct{}, 10)
	f := newFake(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "health") {
			started <- struct{}{}
		}
		if active = r.Header.Get(sdk.FillHeader); !old {
			w.Header().Set(sdk.FillHeader, active)
		}
		_, _ = io.WriteString(w, "{}")
	}))
	f.run.maps = unread(t)
	p := testSupervisor(func() (*run, error) { return f.run, nil })
	go p.supervise()
	defer p.Close()
	free, freed := true, 0
	check := func(maps sdk.Maps, wantActive string, wantFilled bool) {
		t.Helper()
		c, err := p.Compile(t.Context(), json.RawMessage("{}"), maps, func() bool { freed++; return free })
		if err != nil || !c.Known || c.Filled != wantFilled || active != wantActive {
			t.Errorf("%v %+v, asked to fill %q", err, c, active)
		}
	}
	check(nil, "", false)
	if err := p.Start(json.RawMessage("{}"), nil, nil); err != nil {
		t.Fatal(err)
	}
	<-started
	check(sdk.Maps{"other": nil}, "", false)
	if freed > 0 {
		t.Error("a half is freed that is not filled")
	}
	check(nil, "live-1", true)
	free = false
	check(nil, "", false)
	free, old = true, true
	check(nil, "live-1", false)
}

// A module's routes are passed on without the agent's secrets, and what belongs to the agent is not.
func TestProxy(t *testing.T) {
	var got *http.Request
	f := newFake(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		w.Header().Set("X-Module", "m")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.Copy(w, r.Body)
	}))
	defer f.end("done")
	p := testSupervisor(nil)
	p.run, p.state.Started = f.run, true
	r := httptest.NewRequest(http.MethodPut, "/a%2Fb/c?x=1", strings.NewReader("body"))
	r.Header.Set("Authorization", "Bearer secret")
	w := httptest.NewRecorder()
	if err := p.ServeHTTP(w, r); err != nil || w.Code != http.StatusTeapot || w.Body.String() != "body" ||
		w.Header().Get("X-Module") != "m" {
		t.Errorf("%v %d %q", err, w.Code, w.Body)
	}
	if got.Method != http.MethodPut || got.URL.EscapedPath() != "/a%2Fb/c" || got.URL.RawQuery != "x=1" ||
		got.Header.Get("Authorization") != "" {
		t.Errorf("the module got %s %s %v", got.Method, got.URL, got.Header)
	}
	for _, path := range []string{"/kerb/v1/fill", "//kerb/v1/fill", "/x/../kerb/v1/drop", "/kerb/v1", "/kerb/./v1/"} {
		w := httptest.NewRecorder()
		var missing *apierrors.NotFound
		if err := p.ServeHTTP(w, &http.Request{Method: http.MethodPost, URL: mustURL(path)}); !errors.As(err, &missing) {
			t.Errorf("%s: %v", path, err)
		}
	}
	p.run, p.state.Restarts = nil, 1
	var away *apierrors.Unavailable
	if err := p.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)); !errors.As(err, &away) {
		t.Errorf("without a process: %v", err)
	}
}

// A change does not wait for what is kept of the changes before it, on however slow a disk. Of those that follow each
// other soon the last one is kept, before the control plane has ended.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newSupervisor("m", &pkgs.Package{}, Options{Log: quiet}, nil)
		close(p.closed)
		disk, kept := make(chan struct{}), []int{}
		for i := range 6 {
			p.Keep(func() {
				<-disk
				kept = append(kept, i)
			})
			time.Sleep(keepAfter * 3 / 10)
		}
		close(disk)
		synctest.Wait()
		p.Keep(func() { kept = append(kept, 6) })
		p.Close()
		if !slices.Equal(kept, []int{3, 6}) {
			t.Errorf("kept %v", kept)
		}
	})
}

func TestSettings(t *testing.T) {
	m := &Manager{opts: Options{State: t.TempDir(), Log: quiet}}
	want := sdk.Settings{Constants: map[string]any{"port": json.Number("80")}, MaxEntries: map[string]uint32{"flows": 9},
		Idle: []string{"egress"}}
	if _, known := m.CachedSettings("m", "id1"); known {
		t.Error("something is known before it was sent")
	}
	if err := m.CacheSettings("m", "id1", want); err != nil {
		t.Fatal(err)
	}
	got, known := m.CachedSettings("m", "id1")
	if !known || fmt.Sprint(got.Constants["port"]) != "80" || got.MaxEntries["flows"] != 9 ||
		!slices.Equal(got.Idle, want.Idle) {
		t.Errorf("%+v %v", got, known)
	}
	if _, known := m.CachedSettings("m", "id2"); known {
		t.Error("settings of another map set are taken")
	}
	for _, text := range []string{"", "{", `{"id":"id1","settings":{"idle":["sideways"]}}`, `{"id":"id1","more":1}`} {
		if err := os.WriteFile(m.settingsFile("m"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, known := m.CachedSettings("m", "id1"); known {
			t.Errorf("%q is taken", text)
		}
	}
	if err := errors.Join(m.Forget("m"), m.Forget("m")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(m.settingsFile("m")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Forget: %v", err)
	}
}

// Files of a package are there while a control plane has them, and not those of an agent before.
func TestPackageFiles(t *testing.T) {
	root := filepath.Join(t.TempDir(), "packages")
	if err := os.MkdirAll(filepath.Join(root, "old"), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := newPackageFiles(root)
	if err != nil {
		t.Fatal(err)
	}
	p := &pkgs.Package{Digest: "sha256:0123456789abcdef0123", ControlFiles: map[string][]byte{"run.py": []byte("x"),
		"lib/a.py": []byte("y")}}
	one, err1 := f.take(p)
	two, err2 := f.take(p)
	if err1 != nil || err2 != nil || one != two {
		t.Fatal(one, two, err1, err2)
	}
	entries := func() (names []string) {
		all, _ := filepath.Glob(filepath.Join(root, "*", "*"))
		for _, path := range all {
			names = append(names, filepath.Base(path))
		}
		return names
	}
	if text, err := os.ReadFile(filepath.Join(one, "lib", "a.py")); string(text) != "y" || err != nil {
		t.Errorf("%q %v", text, err)
	}
	for _, want := range [][]string{{"lib", "run.py"}, nil} {
		if err := f.release(one); err != nil || !slices.Equal(entries(), want) {
			t.Errorf("after a release: %v %v, want %v", entries(), err, want)
		}
	}
}

// Two agents do not give the same user, a module keeps its own, and what is given back can be taken.
func TestUsers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "users.lock")
	a, err1 := newUsers(path)
	b, err2 := newUsers(path)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer a.close()
	take := func(u *users, module string, preferred, want int) {
		t.Helper()
		if id, err := u.take(module, preferred); id != want || err != nil {
			t.Errorf("%s: %d %v, want %d", module, id, err, want)
		}
	}
	take(a, "x", -1, firstUser)
	take(b, "x", firstUser, firstUser+1) // it has owned the directory of this module before
	take(a, "y", 0, firstUser+2)
	take(a, "x", -1, firstUser) // the other version
	a.release(firstUser)
	take(b, "z", firstUser, firstUser+3)
	a.release(firstUser)
	take(b, "w", -1, firstUser)
	b.close() // as the kernel does when an agent dies
	take(a, "v", firstUser+3, firstUser+3)
}

// A control plane that has names for notes says them; one that does not answer holds the packets of a trace up for a
// moment only.
func TestNoteName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var q sdk.NoteRequest
			if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q != (sdk.NoteRequest{Note: "rule", Value: 16}) {
				<-r.Context().Done()
			}
			fmt.Fprint(w, `{"name":"web"}`)
		})
		p := testSupervisor(nil)
		p.run, p.state.Started = newFake(h).run, true
		defer p.run.process.end("the test ends")
		if name, err := p.NoteName(t.Context(), "rule", 16); name != "web" || err != nil {
			t.Errorf("%q, %v", name, err)
		}
		begin := time.Now()
		if name, err := p.NoteName(t.Context(), "class", 16); name != "" || err == nil || time.Since(begin) > 2*noteTime {
			t.Errorf("%q, %v after %v", name, err, time.Since(begin))
		}
	})
}

// A control plane that does not answer with metrics holds a scrape up for a second, and its last ones are served as
// stale.
func TestSilentMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := make(chan struct{})
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-silent:
				<-r.Context().Done()
			default:
				fmt.Fprint(w, `[{"name":"n","value":7}]`)
			}
		})
		r := newFake(h).run
		p := testSupervisor(nil)
		p.run, p.state.Started = r, true
		check := func(wantStale bool, atMost time.Duration) {
			t.Helper()
			begin := time.Now()
			samples, stale, _ := p.Metrics(t.Context())
			if took := time.Since(begin); len(samples) != 1 || samples[0].Value != 7 || stale != wantStale || took > atMost {
				t.Errorf("%v, stale %v, after %v", samples, stale, took)
			}
		}
		check(false, 0)
		close(silent)
		check(true, metricsTime+100*time.Millisecond)
		p.run, p.state.Restarts = nil, 1
		check(true, 0)
		r.process.end("the test ends")
	})
}
