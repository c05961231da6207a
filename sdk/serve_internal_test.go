// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// echo is a control plane whose route reports its config and where it runs.
type echo struct {
	config string
	Live
}

func (echo) Compile(config json.RawMessage) (Compiled, error) {
	return echo{config: string(config)}, nil
}
func (e echo) Open(l Live) (Running, error) { return echo{e.config, l}, nil }
func (echo) Settings() Settings             { return Settings{} }
func (echo) Fill(m Maps) error              { return m["one"].Put(uint32(0), uint32(7)) }
func (echo) Run(ctx context.Context)        { <-ctx.Done() }
func (e echo) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var value uint32
		err := e.Maps["one"].Lookup(uint32(0), &value)
		_ = json.NewEncoder(w).Encode(map[string]any{"config": e.config, "on": e.Attachments(), "value": value,
			"open": err == nil})
	})
}

// served is a running control plane.
type served struct {
	t      *testing.T
	ours   *net.UnixConn
	client *http.Client
	done   chan error
}

func serveEcho(t *testing.T) *served { return serve(t, echo{}) }

func serve(t *testing.T, control Control) *served {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for BPF")
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends []*net.UnixConn
	for _, fd := range fds {
		f := os.NewFile(uintptr(fd), "maps")
		c, err := unixConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, c)
	}
	s := &served{t: t, ours: ends[0], done: make(chan error, 1)}
	s.client = &http.Client{Timeout: time.Minute,
		Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			return net.Dial("unix", path)
		}}}
	go func() { s.done <- serveControl(t.Context(), "m", control, l, ends[1]) }()
	return s
}

// end closes the agent's side, which must suffice.
func (s *served) end() {
	s.t.Helper()
	s.client.CloseIdleConnections()
	s.ours.Close()
	select {
	case err := <-s.done:
		if err != nil {
			s.t.Error(err)
		}
	case <-time.After(30 * time.Second):
		s.t.Fatal("it does not end with the agent")
	}
}

func (s *served) call(name string, body any, status int) string {
	s.t.Helper()
	data, _ := json.Marshal(body)
	res, err := s.client.Post("http://control"+name, "application/json", bytes.NewReader(data))
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	if res.StatusCode != status {
		s.t.Errorf("%s: status %d, want %d: %s", name, res.StatusCode, status, text)
	}
	return string(bytes.TrimSpace(text))
}

func (s *served) send(mapSet string) {
	s.t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		s.t.Fatal(err)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		s.t.Fatal(err)
	}
	defer m.Close()
	if err := SendMaps(s.ours, mapSet, Maps{"one": m}); err != nil {
		s.t.Fatal(err)
	}
}

func descriptorsOpen(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func (s *served) life() {
	s.t.Helper()
	request := func(g, config string) MapSetRequest {
		return MapSetRequest{MapSet: g, Config: json.RawMessage(config),
			Attachments: []Attachment{{Service: "web", Ifindex: 7}}}
	}
	s.call("/x", nil, 503)
	s.send("a")
	s.call("/kerb/v1/fill", request("a", "1"), 204)
	s.call("/kerb/v1/start", request("a", "1"), 204)
	s.call("/kerb/v1/drop", request("a", "1"), 500) // packets meet it
	s.call("/kerb/v1/attached", Attachment{Service: "db", Ifindex: 8}, 204)
	s.call("/kerb/v1/detached", Attachment{Service: "web", Ifindex: 7}, 204)
	if got, want := s.call("/x", nil, 200),
		`{"config":"1","on":[{"service":"db","interface":"","ifindex":8}],"open":true,"value":7}`; got != want {
		s.t.Errorf("with one map set: %s, want %s", got, want)
	}
	s.send("b")
	s.call("/kerb/v1/fill", request("b", "2"), 204)
	s.call("/kerb/v1/start", request("b", "2"), 204)
	s.call("/kerb/v1/start", request("b", "2"), 204) // sent again
	s.call("/kerb/v1/drop", request("a", "1"), 204)
	if got, want := s.call("/x", nil, 200),
		`{"config":"2","on":[{"service":"web","interface":"","ifindex":7}],"open":true,"value":7}`; got != want {
		s.t.Errorf("with another map set: %s, want %s", got, want)
	}
}

// A control plane's life with two map sets leaves neither goroutines nor descriptors.
func TestServePlane(t *testing.T) {
	serveEcho(t).end() // what the runtime opens once
	before := goleak.IgnoreCurrent()
	open := descriptorsOpen(t)
	for range 3 {
		s := serveEcho(t)
		s.life()
		s.end()
	}
	// Sockets of the HTTP client, and what reads from them, end a moment later.
	leak, now := goleak.Find(before), descriptorsOpen(t)
	for end := time.Now().Add(30 * time.Second); (leak != nil || now > open) &&
		time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		leak, now = goleak.Find(before), descriptorsOpen(t)
	}
	if leak != nil || now > open {
		t.Errorf("%d descriptors were open, now %d; goroutines: %v", open, now, leak)
	}
}

// slow is a control plane whose route reads its map when it may.
type slow struct {
	echo
	entered chan struct{}
	may     chan struct{}
}

func (s slow) Compile(json.RawMessage) (Compiled, error) { return s, nil }
func (s slow) Open(l Live) (Running, error) {
	s.Live = l
	return s, nil
}
func (s slow) Handler() http.Handler {
	next := s.echo.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.entered <- struct{}{}
		<-s.may
		next.ServeHTTP(w, r)
	})
}

// The agent drops a map set as soon as the next one has started. A request in progress keeps its maps.
func TestDropWhileInUse(t *testing.T) {
	control := slow{entered: make(chan struct{}), may: make(chan struct{})}
	s := serve(t, control)
	defer s.end()
	begin := func(g string) {
		s.send(g)
		s.call("/kerb/v1/fill", MapSetRequest{MapSet: g, Config: json.RawMessage(`1`)}, 204)
		s.call("/kerb/v1/start", MapSetRequest{MapSet: g, Config: json.RawMessage(`1`)}, 204)
	}
	begin("a")
	answer := make(chan string)
	go func() { answer <- s.call("/x", nil, 200) }()
	<-control.entered
	begin("b")
	s.call("/kerb/v1/drop", MapSetRequest{MapSet: "a"}, 204)
	close(control.may)
	if got, want := <-answer, `{"config":"","on":null,"open":true,"value":7}`; got != want {
		t.Errorf("the request of the old map set got %s, want %s", got, want)
	}
}

// single is a control plane whose background work takes a moment to end, as one that is reading a ring buffer.
type single struct {
	echo
	working, most *atomic.Int32
}

func (s single) Compile(json.RawMessage) (Compiled, error) { return s, nil }
func (s single) Open(Live) (Running, error)                { return s, nil }
func (s single) Run(ctx context.Context) {
	s.most.Store(max(s.most.Load(), s.working.Add(1)))
	<-ctx.Done()
	time.Sleep(50 * time.Millisecond) // the next one would overlap if it did not wait
	s.working.Add(-1)
}

// Map sets share ring buffers and tables: the work of one ends before that of the next starts.
func TestOneMapSetWorks(t *testing.T) {
	control := single{working: &atomic.Int32{}, most: &atomic.Int32{}}
	s := serve(t, control)
	for _, g := range []string{"a", "b", "c"} {
		s.send(g)
		s.call("/kerb/v1/start", MapSetRequest{MapSet: g, Config: json.RawMessage(`1`)}, 204)
	}
	s.end()
	if most := control.most.Load(); most != 1 || control.working.Load() != 0 {
		t.Errorf("%d map sets have worked at a time, %d still do", most, control.working.Load())
	}
}

// later is a control plane that cannot open a map set at first.
type later struct {
	echo
	failures *atomic.Int32
}

func (c later) Compile(json.RawMessage) (Compiled, error) { return c, nil }
func (c later) Open(l Live) (Running, error) {
	if c.failures.Add(-1) >= 0 {
		return nil, errors.New("the tables are not readable")
	}
	return c.echo.Open(l)
}

// A map set that cannot be opened is neither started nor healthy, and the agent can retry.
func TestOpenFails(t *testing.T) {
	control := later{failures: &atomic.Int32{}}
	s := serve(t, control)
	defer s.end()
	start := func(g string, status int) string {
		t.Helper()
		return s.call("/kerb/v1/start", MapSetRequest{MapSet: g, Config: json.RawMessage(`1`)}, status)
	}
	health := func() int {
		t.Helper()
		res, err := s.client.Get("http://control/kerb/v1/health")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	s.send("a")
	start("a", 204)
	control.failures.Store(1)
	s.send("b")
	if problem := start("b", 500); !strings.Contains(problem, "open map set b: the tables are not readable") {
		t.Error(problem)
	}
	if got := health(); got != 503 {
		t.Errorf("health: %d", got)
	}
	s.call("/x", nil, 503)
	start("b", 204)
	if got := health(); got != 200 {
		t.Errorf("health: %d", got)
	}
	s.call("/x", nil, 200)
}

// Maps that never arrive are reported before the caller's timeout.
func TestServeUnknownMapSet(t *testing.T) {
	s := serveEcho(t)
	defer s.end()
	s.call("/kerb/v1/fill", MapSetRequest{MapSet: "never", Config: json.RawMessage("1")}, 500)
}

// valued is a control plane of configs [shape, value].
type valued struct {
	echo
	config [2]int
	fills  *atomic.Int32
}

func (v valued) Compile(config json.RawMessage) (Compiled, error) {
	return v, json.Unmarshal(config, &v.config)
}
func (v valued) Settings() Settings {
	return Settings{MaxEntries: map[string]uint32{"one": uint32(v.config[0])}, Tunables: map[string]any{"v": v.config[1]}}
}
func (v valued) Fill(m Maps) error {
	v.fills.Add(1)
	if v.config[1] == 13 {
		return errors.New("no room")
	}
	return v.echo.Fill(m)
}

// Compile fills the maps of the active map set if requested, and if only values change.
func TestCompileFills(t *testing.T) {
	v := valued{fills: &atomic.Int32{}}
	s := serve(t, v)
	defer s.end()
	s.send("a")
	s.call("/kerb/v1/start", MapSetRequest{MapSet: "a", Config: json.RawMessage(`[1, 1]`)}, 204)
	for i, c := range []struct {
		active, config string
		fills          int32
		filled         string
	}{
		{"a", `[1, 2]`, 1, "a"},
		{"", `[1, 3]`, 0, ""},
		{"b", `[1, 4]`, 0, ""},
		{"a", `[2, 5]`, 0, ""},
		{"a", `[1, 13]`, 1, ""}, // fill reports the error
	} {
		v.fills.Store(0)
		r, err := http.NewRequest(http.MethodPost, "http://control/kerb/v1/compile", strings.NewReader(`{"config": `+c.config+`}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(FillHeader, c.active)
		res, err := s.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if got := res.Header.Get(FillHeader); res.StatusCode != 200 || got != c.filled || v.fills.Load() != c.fills {
			t.Errorf("%d: status %d, filled %q, want %q, after %d calls, want %d", i, res.StatusCode, got, c.filled,
				v.fills.Load(), c.fills)
		}
	}
}
