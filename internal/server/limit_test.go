// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/serve"
	"github.com/kerb-edge/kerb/internal/server"
	"github.com/kerb-edge/kerb/internal/server/servertest"
	"github.com/kerb-edge/kerb/internal/store"
)

const testToken = "a-token-that-is-long-enough"

// tcpServer runs a server on a Unix socket and on TCP with a token, and returns the TCP address, a client of the socket
// and the log.
func tcpServer(t *testing.T, change func(*config.TCP)) (address string, unix *http.Client, log *lockedBuffer,
	files certificateFiles) {
	t.Helper()
	files = certificates(t)
	c := config.Config{TCP: &config.TCP{Address: "127.0.0.1:0", Certificate: files.cert, Key: files.key,
		TokenFile: write(t, testToken, 0o600)}}
	path := filepath.Join(t.TempDir(), "kerb.sock")
	c.Paths = pathsIn(path)
	if change != nil {
		change(c.TCP)
	}
	endpoints, err := server.Listen(c)
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(filepath.Join(t.TempDir(), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	log = &lockedBuffer{}
	s := server.New(servertest.New(st), slog.New(slog.NewTextHandler(log, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, endpoints...) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, st.Close()); err != nil {
			t.Error(err)
		}
	})
	unix = &http.Client{Transport: client.Unix(path)}
	return endpoints[1].Addr().String(), unix, log, files
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// dialFrom opens connections to address from an address of the loopback network, and sends the begin of a TLS record on
// each.
func dialFrom(t *testing.T, from, address string, n int) (conns []net.Conn) {
	t.Helper()
	for range n {
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_, _ = c.Write([]byte{22, 3, 1, 2, 0, 1}) // a connection that was refused resets
		conns = append(conns, c)
	}
	return conns
}

// awaitStatus reads the agent's status on the Unix socket until it contains want.
func awaitStatus(t *testing.T, unix *http.Client, want string) {
	t.Helper()
	text := ""
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		r, err := unix.Get("http://kerb/v1/status")
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if text = string(data); strings.Contains(text, want) {
			return
		}
	}
	t.Fatalf("the status never had %s: %s", want, text)
}

// One address cannot have more than its share of the TCP endpoint's connections, all together no more than the total,
// and the Unix socket answers and reports it.
func TestConnectionsAreLimited(t *testing.T) {
	address, unix, _, _ := tcpServer(t, nil)
	awaitStatus(t, unix, `"reason":"BelowLimit"`)
	dialFrom(t, "127.0.0.2", address, serve.MaxConnectionsPerAddress)
	over := dialFrom(t, "127.0.0.2", address, 1)[0]
	_ = over.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := over.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection over the limit of an address is kept: %v", err)
	}
	awaitStatus(t, unix, "127.0.0.2")
	for i := range serve.MaxConnections / serve.MaxConnectionsPerAddress {
		dialFrom(t, fmt.Sprintf("127.0.1.%d", i+1), address, serve.MaxConnectionsPerAddress)
	}
	awaitStatus(t, unix, fmt.Sprintf("%d of %d", serve.MaxConnections, serve.MaxConnections))
}

// A client that does not finish its TLS handshake is disconnected.
func TestHandshakeHasADeadline(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the deadline")
	}
	t.Parallel()
	address, _, _, _ := tcpServer(t, nil)
	c := dialFrom(t, "127.0.0.3", address, 1)[0]
	_ = c.SetReadDeadline(time.Now().Add(serve.HandshakeTimeout + 15*time.Second)) // before: readTimeout, 30 s
	if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection without a handshake is kept: %v", err)
	}
}

// A connection ends with the first request whose token is wrong, and the log has one line for many failures of one
// address.
func TestFailedAuthenticationIsSlowAndQuiet(t *testing.T) {
	address, _, log, files := tcpServer(t, nil)
	c, err := tls.Dial("tcp", address, &tls.Config{RootCAs: files.pool, MinVersion: tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const guess = "GET /v1/modules HTTP/1.1\r\nHost: kerb\r\nAuthorization: Bearer x\r\n\r\n"
	_, _ = c.Write([]byte(strings.Repeat(guess, 100)))
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	answers, _ := io.ReadAll(c)
	if n := strings.Count(string(answers), "401 Unauthorized"); n != 1 {
		t.Errorf("%d answers on one connection, want 1", n)
	}
	for range 4 {
		if got := status(address, "x", files.pool, nil); got != 401 {
			t.Errorf("status %d", got)
		}
	}
	if n := strings.Count(log.String(), "127.0.0.1"); n != 1 {
		t.Errorf("%d log lines of 5 failures, want 1:\n%s", n, log)
	}
	if got := status(address, testToken, files.pool, nil); got != 200 {
		t.Errorf("the right token after failures: %d", got)
	}
}

// A client without a certificate is a failed authentication, too.
func TestHandshakeFailureIsLogged(t *testing.T) {
	address, _, log, files := tcpServer(t, func(c *config.TCP) { c.ClientCA = c.Certificate })
	for range 5 {
		if got := status(address, testToken, files.pool, nil); got != 0 {
			t.Errorf("status %d", got)
		}
	}
	if n := strings.Count(log.String(), "client didn't provide a certificate"); n != 1 {
		t.Errorf("%d log lines of 5 failures, want 1:\n%s", n, log)
	}
}

// Clients that send large bodies slowly do not keep others waiting.
func TestSlowBodiesTakeNoTurn(t *testing.T) {
	s := newServer(t)
	var sending sync.WaitGroup
	var slow []*io.PipeWriter
	for range 2 {
		r, w := io.Pipe()
		slow = append(slow, w)
		request, err := http.NewRequest("POST", "/v1/apply", r)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		request.ContentLength = -1
		sending.Go(func() { s.ServeHTTP(&discardWriter{header: http.Header{}}, request) })
		if _, err := w.Write([]byte("[")); err != nil { // the server reads it
			t.Fatal(err)
		}
	}
	done := make(chan int, 1)
	go func() {
		done <- call(s, "POST", "/v1/apply", "["+counter+strings.Repeat(" ", 1<<20)+"]").Code
	}()
	select {
	case code := <-done:
		if code != 200 {
			t.Errorf("status %d", code)
		}
	case <-time.After(20 * time.Second):
		t.Error("a large change waits for clients that send slowly")
	}
	for _, w := range slow {
		w.Close()
	}
	sending.Wait()
}

type discardWriter struct{ header http.Header }

func (w *discardWriter) Header() http.Header         { return w.header }
func (w *discardWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w *discardWriter) WriteHeader(int)             {}

// An entity tag changes with what the operator wrote, and a change that was made for an older version is refused.
func TestIfMatch(t *testing.T) {
	s := newServer(t)
	call(s, "POST", "/v1/apply", counter)
	first := call(s, "GET", "/v1/modules/count", "").Header().Get("ETag")
	if !strings.HasPrefix(first, `"`) || first != call(s, "GET", "/v1/modules/count", "").Header().Get("ETag") {
		t.Fatalf("ETag %q", first)
	}
	changed := strings.Replace(counter, `"services":"*"`, `"services":"app=web"`, 1)
	if got := call(s, "PUT", "/v1/modules/count", changed, "If-Match", first); got.Code != 200 {
		t.Fatalf("with the present version: %d %s", got.Code, got.Body)
	}
	got := call(s, "PUT", "/v1/modules/count", counter, "If-Match", first)
	if p := got.problem(t); got.Code != 412 || p.Resource != "Module count" ||
		!strings.Contains(p.Detail, "changed since") {
		t.Errorf("with an old version: %d %+v", got.Code, p)
	}
	for _, c := range []struct {
		method, path, header, value string
		want                        int
	}{
		{"DELETE", "/v1/modules/count", "If-Match", first, 412},
		{"PUT", "/v1/modules/count", "If-None-Match", "*", 412},
		{"PUT", "/v1/modules/count", "If-Match", "*", 200},
		{"PUT", "/v1/modules/count", "If-Match", `W/"x"`, 400},
		{"PUT", "/v1/modules/count", "If-Match", call(s, "GET", "/v1/modules/count", "").Header().Get("ETag"), 200},
	} {
		if got := call(s, c.method, c.path, changed, c.header, c.value); got.Code != c.want {
			t.Errorf("%s %s: %s: %d %s, want %d", c.method, c.header, c.value, got.Code, got.Body, c.want)
		}
	}
	// Deleted and created again: the generation is the same, the version is not.
	call(s, "DELETE", "/v1/modules/count", "")
	call(s, "POST", "/v1/apply", changed)
	if again := call(s, "GET", "/v1/modules/count", "").Header().Get("ETag"); again == first {
		t.Errorf("a resource of other content has the same ETag %s", again)
	}
}

// Apply with ifUnchanged compares metadata.resourceVersion; all resources must match, or nothing happens.
func TestApplyIfUnchanged(t *testing.T) {
	s := newServer(t)
	const path = "/v1/apply?ifUnchanged=true"
	if got := call(s, "POST", path, "["+counter+","+web+"]"); got.Code != 200 {
		t.Fatalf("of what does not exist: %d %s", got.Code, got.Body)
	}
	if got := call(s, "POST", path, counter); got.Code != 412 || !strings.Contains(got.Body.String(), "exists already") {
		t.Errorf("without a version of what exists: %d %s", got.Code, got.Body)
	}
	read := call(s, "GET", "/v1/modules", "").Body.String()
	if !strings.Contains(read, "resourceVersion") {
		t.Fatalf("no resourceVersion in %s", read)
	}
	if got := call(s, "POST", path, read); got.Code != 200 {
		t.Errorf("with the present version: %d %s", got.Code, got.Body)
	}
	call(s, "POST", "/v1/apply", strings.Replace(counter, `"*"`, `"app=web"`, 1))
	service := call(s, "GET", "/v1/services/web", "").Body.String()
	both := "[" + strings.Replace(service, "/run/netns/web", "/run/netns/other", 1) + "," + strings.Trim(read, "[]\n") +
		"]"
	if got := call(s, "POST", path, both); got.Code != 412 {
		t.Errorf("one of two has changed: %d %s", got.Code, got.Body)
	}
	if now := call(s, "GET", "/v1/services/web", "").Body.String(); now != service {
		t.Errorf("the other was changed: %s", now)
	}
}

// A query that says dryRun in a way that is not understood is refused: taken as none, it would delete the module.
func TestQueriesThatAreNotUnderstood(t *testing.T) {
	for _, query := range []string{"dryRun", "dryRun=", "dryRun=yes", "dryRun=true;force=true", "dryRun=true;",
		"dryRun=%zz", "dryRun=true%", "dryRun=false&dryRun=true", "ifUnchanged", "force=true&dryrun=true"} {
		s := newServer(t)
		call(s, "POST", "/v1/apply", counter)
		if got := call(s, "DELETE", "/v1/modules/count?"+query, ""); got.Code != http.StatusBadRequest {
			t.Errorf("?%s: %d %s", query, got.Code, got.Body)
		}
		if got := call(s, "GET", "/v1/modules/count", ""); got.Code != http.StatusOK {
			t.Errorf("?%s: the module is gone", query)
		}
	}
	if got := call(newServer(t), "POST", "/v1/apply?verify=true", counter); got.Code < http.StatusBadRequest ||
		!strings.Contains(got.Body.String(), "set dryRun, too") {
		t.Errorf("verify alone: %d %s", got.Code, got.Body)
	}
	got := call(newServer(t), "POST", "/v1/apply?dryRun=true&measure=true", counter)
	if got.Code < http.StatusBadRequest || !strings.Contains(got.Body.String(), "needs verify") {
		t.Errorf("measure without verify: %d %s", got.Code, got.Body)
	}
}

// A client that wants the resource need not read it: the answer to PUT is the one to GET, with its entity tag.
func TestPutReturnsResource(t *testing.T) {
	s := newServer(t)
	for prefer, want := range map[string]bool{"": false, "return=minimal": false, "return=representation": true,
		`respond-async, Return = "representation"; x`: true, "wait=5": false} {
		got := call(s, "PUT", "/v1/services/web", web, "Prefer", prefer)
		read := call(s, "GET", "/v1/services/web", "")
		same := got.Body.String() == read.Body.String() && got.Header().Get("ETag") == read.Header().Get("ETag")
		if got.Code != 200 || same != want {
			t.Errorf("%q: %d %s", prefer, got.Code, got.Body)
		}
		planned := call(s, "PUT", "/v1/services/db?dryRun=true", strings.ReplaceAll(web, "web", "db"), "Prefer", prefer)
		if planned.Code != 200 || !strings.Contains(planned.Body.String(), `"dryRun":true`) {
			t.Errorf("%q: a dry run is answered with %d %s", prefer, planned.Code, planned.Body)
		}
	}
}

// overtaken is a backend on which another client's change follows each.
type overtaken struct {
	*servertest.Fake
	by func(*servertest.Fake)
}

func (b overtaken) Apply(ctx context.Context, r resource.Request) (v1alpha1.ApplyResult, error) {
	result, err := b.Fake.Apply(ctx, r)
	b.by(b.Fake)
	return result, err
}

// A PUT is never answered with another client's version of the resource, or with an error although it was done.
func TestPutIsOvertaken(t *testing.T) {
	others, err := resource.Decode([]byte(strings.Replace(web, "/run/netns/web", "/run/netns/other", 1)))
	if err != nil {
		t.Fatal(err)
	}
	for what, by := range map[string]func(*servertest.Fake) error{
		"changed": func(f *servertest.Fake) error {
			_, err := f.Apply(t.Context(), resource.Request{Resources: others})
			return err
		},
		"deleted": func(f *servertest.Fake) error {
			_, err := f.Apply(t.Context(), resource.Request{Remove: resource.Refs(others)})
			return err
		},
	} {
		st, err := store.Open(filepath.Join(t.TempDir(), "state.db"))
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		s := server.New(overtaken{servertest.New(st), func(f *servertest.Fake) {
			if err := by(f); err != nil {
				t.Error(err)
			}
		}}, slog.New(slog.DiscardHandler))
		got := call(s, "PUT", "/v1/services/web", web, "Prefer", "return=representation")
		if got.Code != 200 || got.Header().Get("ETag") != "" || !strings.Contains(got.Body.String(), `"action":"create"`) {
			t.Errorf("%s since: %d, ETag %q, %s", what, got.Code, got.Header().Get("ETag"), got.Body)
		}
	}
}

// briefly is a backend that counts how often it was asked for a resource in brief.
type briefly struct {
	server.Backend
	count int
}

func (b *briefly) Brief(ctx context.Context, kind resource.Kind, name string) (resource.Object, error) {
	b.count++
	return b.Backend.Brief(ctx, kind, name)
}

// A client that needs little of a resource does not have the kernel asked for the rest.
func TestMinimalGet(t *testing.T) {
	st, err := store.Open(filepath.Join(t.TempDir(), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	b := &briefly{Backend: servertest.New(st)}
	s := server.New(b, slog.New(slog.DiscardHandler))
	call(s, "PUT", "/v1/services/web", web)
	want := call(s, "GET", "/v1/services/web", "")
	for prefer, minimal := range map[string]int{"": 0, "return=representation": 0, "return=minimal": 1,
		"wait=5, Return=Minimal": 0, `respond-async, Return = "minimal"; x`: 1} {
		b.count = 0
		got := call(s, "GET", "/v1/services/web", "", "Prefer", prefer)
		if got.Code != 200 || b.count != minimal || got.Body.String() != want.Body.String() ||
			got.Header().Get("ETag") != want.Header().Get("ETag") {
			t.Errorf("%q: asked in brief %d times: %d %s", prefer, b.count, got.Code, got.Body)
		}
	}
	if got := call(s, "GET", "/v1/services/other", "", "Prefer", "return=minimal"); got.Code != http.StatusNotFound {
		t.Errorf("one that is not there: %d %s", got.Code, got.Body)
	}
}
